"""Ends a process whose peers have stopped answering without having died."""

import collections
import faulthandler
import os
import statistics
import sys
import threading
from collections.abc import Callable

import jax

from ncl_jax.errors import EXIT_FAILED
from ncl_jax.runtime import distributed


def _end(sentence: str) -> None:
  """Prints the stacks of all threads, then ends the process; a hung one cannot."""
  try:
    print(f"error: {sentence}", file=sys.stderr)
    faulthandler.dump_traceback(all_threads=True)
    sys.stderr.flush()
  finally:  # even where nobody reads any more
    os._exit(EXIT_FAILED)


class Watchdog:
  """Ends the process when the time since the last beat is too long.

  Too long is `seconds` and `times` the median time between two beats, whichever is
  longer. Nothing is watched before the first beat. To be used in a `with` block.

  Args:
    seconds: the least time; 0 turns the watchdog off. None for what
      `distributed.initialize` was told, and off where one process runs alone.
    times: multiple of the median.
    tick: seconds between two looks. Time in which the whole process is stopped, by
      Ctrl-Z say, does not count.
    act: what is done, with a sentence; None ends the process with exit code 1.
  """

  def __init__(
    self,
    seconds: float | None = None,
    *,
    times: float = 100.0,
    tick: float = 1.0,
    act: Callable[[str], None] | None = None,
  ) -> None:
    if seconds is None:
      seconds = distributed.hang_seconds() if jax.process_count() > 1 else 0
    self._seconds = seconds
    self._times, self._tick, self._act = times, tick, act or _end
    self._beats: collections.deque[float] = collections.deque(maxlen=101)
    self._waited: float | None = None
    self._closed = threading.Event()
    self._thread = threading.Thread(target=self._watch, daemon=True)

  def __enter__(self) -> "Watchdog":
    if self._seconds:
      self._thread.start()
    return self

  def __exit__(self, *unused: object) -> None:
    self._closed.set()
    if self._thread.is_alive():
      self._thread.join()

  def beat(self) -> None:
    """Says that a step has ended."""
    if self._waited is not None:
      self._beats.append(self._waited)
    self._waited = 0.0

  def _watch(self) -> None:
    while not self._closed.wait(self._tick):
      if self._waited is None:
        continue
      self._waited += self._tick
      usual = statistics.median(self._beats) if self._beats else 0.0
      if self._waited > max(self._seconds, self._times * usual):
        self._act(
          f"no step has ended for {self._waited:.0f} s ({usual:.0f} s is usual): "
          "another process may hang. The stacks of this one follow; the same command "
          "resumes from the last checkpoint"
        )
        return
