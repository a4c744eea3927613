"""Several processes as one program: start, agreement, and stop requests."""

import collections
import contextlib
import ctypes
import dataclasses
import faulthandler
import hashlib
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType

import jax
import numpy as np
from absl import logging
from jax.experimental import multihost_utils

from ncl_jax.errors import EXIT_TERMINATED, SIGNALS, InputError, Stopped

# The signals of this system; Windows lacks the last two.
_NUMBERS = {
  getattr(signal, name): code for name, code in SIGNALS.items() if hasattr(signal, name)
}

# The SIGTERM action of JAX's preemption service; empty until it is known.
_service_action = b""


@dataclasses.dataclass(frozen=True)
class Timeouts:
  """How long processes wait for each other, in seconds, before they end."""

  start: int = 300  # for all of them to appear
  heartbeat: int = 30  # for a sign of life from one of them
  hang: int = 600  # for a step, while all of them show signs of life; 0: for ever


_timeouts = Timeouts()


@contextlib.contextmanager
def hang_watch() -> Iterator[Callable[[], None]]:
  """Ends this process if a step takes too long: another process may hang.

  Too long is `Timeouts.hang` or 100 times the median step, whichever is longer. The
  stacks of all threads are printed before. A process that runs alone is not watched,
  and nothing is before the first step has ended. Time in which the process is stopped
  counts.

  Yields:
    Function to be called after each step.
  """
  seconds = _timeouts.hang if jax.process_count() > 1 else 0
  ends: collections.deque[float] = collections.deque(maxlen=100)

  def beat() -> None:
    ends.append(time.monotonic())
    usual = statistics.median(np.diff(ends)) if len(ends) > 1 else 0.0
    # Python's own watch, which needs no Python to run: a hung call may hold its lock.
    faulthandler.dump_traceback_later(max(seconds, 100 * usual), file=2, exit=True)

  try:
    yield beat if seconds else lambda: None
  finally:
    if seconds:
      faulthandler.cancel_dump_traceback_later()


def initialize(
  coordinator: str = "",
  num_processes: int = 0,
  process_id: int = -1,
  *,
  detect: bool = False,
  timeouts: Timeouts = _timeouts,
) -> None:
  """Joins the other processes; does nothing in a single-process program.

  JAX's preemption service handles SIGTERM only inside `StopRequests`. Elsewhere nothing
  would query the service, so the signal ends the program.

  Args:
    coordinator: "HOST:PORT" of process 0; requires the next two arguments.
    process_id: index of this process, from 0.
    detect: take all three from Slurm, Open MPI, Kubernetes or the TPU instead.

  Raises:
    InputError: if some arguments are missing, or no cluster is found.
  """
  given = {
    "--coordinator": bool(coordinator),
    "--num_processes": num_processes > 0,
    "--process_id": process_id >= 0,
  }
  missing = [name for name, there in given.items() if not there]
  if not detect and len(missing) == len(given):
    return
  if len(missing) < len(given) if detect else missing:
    fault = (
      "--distributed is too much" if detect else f"{', '.join(missing)} is missing"
    )
    raise InputError(
      "several processes need --coordinator, --num_processes and --process_id, or "
      f"--distributed alone: {fault}"
    )
  if not detect and (process_id >= num_processes or ":" not in coordinator):
    raise InputError(
      f"--coordinator={coordinator} --num_processes={num_processes} "
      f"--process_id={process_id}: allowed are HOST:PORT and a process from 0 to "
      f"{num_processes - 1}"
    )
  global _service_action, _timeouts
  _timeouts = timeouts
  before = _sigterm_action()
  try:
    with _no_proxy():
      jax.distributed.initialize(
        coordinator_address=coordinator or None,
        num_processes=None if detect else num_processes,
        process_id=None if detect else process_id,
        initialization_timeout=timeouts.start,
        heartbeat_timeout_seconds=timeouts.heartbeat,
        shutdown_timeout_seconds=timeouts.heartbeat,
      )
  except ValueError as error:
    raise InputError(
      f"--distributed found no cluster here ({error}): give --coordinator, "
      "--num_processes and --process_id"
    ) from error
  _service_action = _sigterm_action(before)


def _sigterm_action(new: bytes = b"") -> bytes:
  """Returns the action for SIGTERM, as C's `struct sigaction`, and sets `new` if given.

  The service's handler is not a Python function, so `signal.signal` can neither return
  nor restore it.
  """
  if os.name != "posix":
    return b""
  before = ctypes.create_string_buffer(512)  # larger than any system's
  libc = ctypes.CDLL(None, use_errno=True)
  if libc.sigaction(int(signal.SIGTERM), new or None, before):
    raise OSError(ctypes.get_errno(), "sigaction failed")
  return before.raw


@contextlib.contextmanager
def _no_proxy() -> Iterator[None]:
  """Removes proxies from the environment, because processes must connect directly."""
  proxies = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
  names = [name for name in os.environ if name.lower() in proxies]
  taken = {name: os.environ.pop(name) for name in names}
  try:
    yield
  finally:
    os.environ |= taken


def leave(code: int) -> None:
  """Leaves the other processes; does nothing in a single-process program.

  With exit code 0, and after a stop that all processes agreed on, they wait for each
  other. With any other code this process prints the current exception and ends at once,
  and the others notice.
  """
  if not jax.distributed.is_initialized():
    return
  if code in (0, EXIT_TERMINATED):
    jax.distributed.shutdown()
    return
  if sys.exc_info()[0] is not None:
    traceback.print_exc()
  sys.stdout.flush()
  sys.stderr.flush()
  # A regular shutdown would wait for processes that wait for this one.
  os._exit(code)


def agree(what: str, value: str) -> None:
  """Checks that `value` is the same on all processes; `what` is its name.

  Raises:
    InputError: on every process, if one differs.
  """
  if jax.process_count() == 1:
    return
  digest = np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8)
  digests = multihost_utils.process_allgather(digest)
  strangers = np.flatnonzero(np.any(digests != digests[:1], axis=1))
  if strangers.size:
    raise InputError(
      f"{what} differs between the processes: process "
      f"{', '.join(map(str, strangers))} has another than process 0"
    )


def hear_as_sigterm() -> None:
  """Makes SIGHUP and SIGUSR1 act like SIGTERM; ignored signals stay ignored.

  Programs call this at start-up, in the main thread.
  """
  for number in _NUMBERS:
    usual = signal.getsignal(number) == signal.SIG_DFL
    if usual and number not in (signal.SIGTERM, signal.SIGINT):
      signal.signal(number, _to_sigterm)


def _to_sigterm(number: int, frame: FrameType | None) -> None:
  os.kill(os.getpid(), signal.SIGTERM)


class StopRequests:
  """Collects the signals in `errors.SIGNALS`; the loop queries them after each step.

  Several processes agree on the step, and a signal to any of them is enough; Ctrl-C is
  then not handled here. A second SIGTERM or Ctrl-C acts at once, with its default
  effect. A second SIGHUP does not, because a closed terminal may send two. Signals that
  are ignored, like SIGHUP under nohup, stay ignored. Use in a `with` block; outside the
  main thread it has no effect.
  """

  _asked = 0

  def __init__(self) -> None:
    self._seen: int | None = None
    self._before: dict[int, object] = {}
    self._sigterm_before = b""
    # Then JAX's own service has the handler, and gives all processes the same step.
    self._together = jax.distributed.is_initialized()

  def __enter__(self) -> "StopRequests":
    if threading.current_thread() is threading.main_thread():
      for number in _NUMBERS:
        own = self._together and number in (signal.SIGTERM, signal.SIGINT)
        if not own and signal.getsignal(number) != signal.SIG_IGN:
          handler = _to_sigterm if self._together else self._note
          self._before[number] = signal.signal(number, handler)
      ignored = signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
      if self._together and _service_action and not ignored:
        self._sigterm_before = _sigterm_action(_service_action)
    return self

  def __exit__(self, *unused: object) -> None:
    self._restore(*_NUMBERS)
    if self._sigterm_before:
      _sigterm_action(self._sigterm_before)

  def _note(self, number: int, frame: FrameType | None) -> None:
    if self._seen is None:
      self._seen = number
      logging.info("%s: stopping after this step", signal.Signals(number).name)
    if number in (signal.SIGTERM, signal.SIGINT):
      self._restore(signal.SIGTERM, signal.SIGINT)

  def _restore(self, *numbers: int) -> None:
    for number in numbers:
      if number in self._before:
        signal.signal(number, self._before.pop(number))  # type: ignore[arg-type]

  def at(self) -> bool:
    """Whether to save and stop now; every process must ask equally often."""
    if self._together:
      # JAX's service agrees on the number after the highest that any process has sent.
      # No number may be skipped, so this counts queries, not steps, over all loops.
      StopRequests._asked += 1
      if multihost_utils.reached_preemption_sync_point(StopRequests._asked):
        self._seen = signal.SIGTERM
    return self._seen is not None

  def stopped(self, step: int, total: int) -> Stopped:
    """The exception that ends the loop, once the state after `step` is saved."""
    number = signal.Signals(self._seen or signal.SIGTERM)
    name = "Ctrl-C" if number == signal.SIGINT else number.name
    return Stopped(
      f"stopped by {name} after step {step} of {total}, which is saved: run the same "
      "command to resume",
      _NUMBERS[number],
    )
