"""How every program starts and ends: flags, log, compile cache, one message an error.

The exit codes are `errors.EXIT_CODES`; after 130 and 143 the same command goes on. A
result that is printed and cannot be written is a failure.
"""

import contextlib
import dataclasses
import functools
import logging as python_logging
import os
import pathlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from absl import flags, logging
from ml_collections import config_flags

from ncl_jax import data, errors
from ncl_jax.cli import arguments, usage
from ncl_jax.cli.arguments import recipe as recipe
from ncl_jax.evaluators import watch
from ncl_jax.host import bucket, paths
from ncl_jax.runtime import accelerator, compile_cache, distributed


class _Checked(flags.ArgumentParser):
  """A text that a function accepts; of others it raises `InputError`."""

  def __init__(self, check: Callable[[str], Any], syntactic_help: str) -> None:
    self._check, self.syntactic_help = check, syntactic_help

  def parse(self, argument: str) -> str:
    if argument:
      self._check(argument)
    return argument


class _Several(flags.ListParser):
  """Such texts, separated by commas."""

  def __init__(self, item: _Checked) -> None:
    super().__init__()
    self._item = item

  def parse(self, argument: Any) -> list[str]:
    return [self._item.parse(text) for text in super().parse(argument)]


class _Ints(flags.ListParser):
  def parse(self, argument: Any) -> Any:
    return tuple(map(int, super().parse(argument)))


# Parsers for `flags.DEFINE`: they refuse an invalid path or data set at the start.
PATH = _Checked(paths.local, "a path")
ARRAYS = _Checked(lambda text: paths.local(text.removeprefix("arrays:")), "a path")
WORKDIR = _Checked(paths.absolute, "a path or gs://BUCKET/FOLDER")
WORKDIRS = _Several(WORKDIR)
SOURCE = _Checked(data.check, "a data source")
SOURCES = _Several(SOURCE)
INTS = _Ints()

_COORDINATOR = flags.DEFINE_string(
  "coordinator", "", "several processes: HOST:PORT of process 0"
)
_NUM_PROCESSES = flags.DEFINE_integer("num_processes", 0, "number of processes")
_PROCESS_ID = flags.DEFINE_integer("process_id", -1, "number of this process, from 0")
_DISTRIBUTED = flags.DEFINE_bool(
  "distributed", False, "get these three from Slurm, Open MPI, Kubernetes or the TPU"
)
_START = flags.DEFINE_integer(
  "start_seconds", 300, "seconds to wait for all processes to start", lower_bound=1
)
_HEARTBEAT = flags.DEFINE_integer(
  "heartbeat_seconds",
  30,
  "seconds without a sign of life after which a process counts as dead",
  lower_bound=1,
)
_HANG = flags.DEFINE_integer(
  "hang_seconds",
  600,
  "longest time of a training step in seconds, or 100 usual steps if that is longer; "
  "then the process prints its stacks and exits; 0: no limit",
  lower_bound=0,
)
# --help explains these under a heading of their own.
_ON_MANY = (_COORDINATOR, _NUM_PROCESSES, _PROCESS_ID, _DISTRIBUTED)
_TIMES = (_START, _HEARTBEAT, _HANG)


def run(
  main: Callable[[], None], required: Sequence[str] = (), fields: Sequence[str] = ()
) -> None:
  """Parses the flags, runs `main`, and ends the process.

  Args:
    main: takes nothing; reads the flags that its module defined.
    required: names of flags that must be given.
    fields: of the config, where it is not one of training.
  """
  code = errors.EXIT_FAILED
  try:
    with _without_noise():
      code = _run(main, required, fields)
  finally:
    _flush()
    distributed.leave(code)
  sys.exit(code)


def run_on_checkpoint(main: Callable[[str, int | None], None]) -> None:
  """As `run`, for programs on checkpoints: `--workdir`, `--step` and `--watch`.

  Args:
    main: takes the work directory and the step, None for the newest checkpoint.
  """
  define_data_source()
  workdir = flags.DEFINE(WORKDIR, "workdir", None, "work directory of a run")
  step = flags.DEFINE_integer("step", None, "step of the checkpoint; default: newest")
  follow = flags.DEFINE_bool(
    "watch", False, "evaluate each new checkpoint until training is complete"
  )

  def evaluate() -> None:
    if not follow.value:
      main(workdir.value or "", step.value)
    elif step.value is not None:
      raise errors.InputError("--step and --watch: give one of them")
    else:
      watch.each(workdir.value or "", lambda found: main(workdir.value or "", found))

  evaluate.__module__ = main.__module__
  run(evaluate, required=("workdir",))


def define_config(after: str = "the method") -> flags.FlagHolder:
  """Defines `--config`, with settings under it; `after`: what may follow a colon."""
  text = f"name of a recipe, FILE.py, or a run's config.json; after a colon {after}"
  return config_flags.DEFINE_config_file("config", None, text)


def define_evaluators(
  name: str = "evaluators",
  text: str = "all, or some, by the names in docs/evaluation.md",
) -> Callable[[], tuple[str, ...] | None]:
  """Defines a flag for names; gives a function that reads it, None for all."""
  holder = flags.DEFINE_list(name, "all", text)
  return lambda: None if holder.value == ["all"] else tuple(holder.value or ())


def define_data_source() -> None:
  """Defines `--data_source`, for programs that read runs."""
  flags.DEFINE(
    SOURCE,
    "data_source",
    "",
    "new place of the run's data, if they were moved: arrays:FILE.npz",
  )


def define_fields(kind: type) -> Callable[[], dict[str, Any]]:
  """Defines a flag for each field of a dataclass, explained by its docstring.

  Args:
    kind: the dataclass; every field has a default, of type bool, int, float, str or
      tuple of ints.

  Returns:
    Function that gives the fields set on the command line, to be called after parsing.
  """
  entries = re.findall(r"^    (\w+): (.*(?:\n {6}.*)*)", kind.__doc__ or "", re.M)
  explained = {name: " ".join(text.split()) for name, text in entries}
  define: dict[type, Callable[..., Any]] = {
    bool: flags.DEFINE_bool,
    int: flags.DEFINE_integer,
    float: flags.DEFINE_float,
    str: flags.DEFINE_string,
    tuple: functools.partial(flags.DEFINE, INTS),
  }
  holders = {
    field.name: define[type(field.default)](field.name, None, explained[field.name])
    for field in dataclasses.fields(kind)
  }
  return lambda: {n: h.value for n, h in holders.items() if h.value is not None}


def _run(
  main: Callable[[], None], required: Sequence[str], fields: Sequence[str]
) -> int:
  if {"-h", "-help", "--help"} & {*sys.argv[1:]}:
    print(usage.usage(main, {flag.name for flag in (*_ON_MANY, *_TIMES)}))
    return 0
  try:
    arguments.parse(required, sys.argv, fields)
    _set_up_log()
    distributed.hear_as_sigterm()
    compile_cache.set_up()
    distributed.initialize(
      _COORDINATOR.value,
      _NUM_PROCESSES.value,
      _PROCESS_ID.value,
      detect=_DISTRIBUTED.value,
      timeouts=distributed.Timeouts(_START.value, _HEARTBEAT.value, _HANG.value),
    )
    accelerator.require()
    if "data_source" in flags.FLAGS:
      from ncl_jax.training import workdir

      workdir.data_moved(flags.FLAGS.data_source)
    main()
  except (errors.InputError, FileNotFoundError, flags.Error) as error:
    return _say(f"error: {_message(error)}", errors.EXIT_INPUT)
  except FloatingPointError as error:
    return _say(f"error: {error}", errors.EXIT_DIVERGED)
  except (errors.Failed, errors.SaveError) as error:
    return _say(f"error: {error}", errors.EXIT_FAILED)
  except errors.Stopped as reason:
    return _say(str(reason), reason.exit_code)
  except KeyboardInterrupt:
    return _say(
      "interrupted: run the same command again to go on", errors.EXIT_INTERRUPTED
    )
  except Exception as error:
    if failure := bucket.failure(error):
      return _say(f"error: {failure}", errors.EXIT_FAILED)
    if not isinstance(error, OSError):
      raise
    # `errors.naming` gives the file where ours are written; else the place must do.
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = error.filename or f"{frame.name} in {frame.filename}, line {frame.lineno}"
    return _say(f"error: {place}: {error.strerror or error}", errors.EXIT_FAILED)
  return 0


def _say(text: str, code: int) -> int:
  with contextlib.suppress(OSError):
    print(text, file=sys.stderr)
  return code


def _flush() -> None:
  """Writes what is left; a terminal that is gone must not change the exit code."""
  for stream in (sys.stdout, sys.stderr):
    try:
      stream.flush()
    except OSError:
      os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _message(error: Exception) -> str:
  """An error's text, without the traceback that config flags put around it."""
  text = str(error).strip()
  _, ours, message = text.rpartition(f"{errors.__name__}.InputError: ")
  if ours:
    return message
  for kind, allowed in (
    (r"invalid literal for int\(\) with base 10", "a whole number"),
    (r"could not convert string to float", "a number"),
  ):
    text = re.sub(rf": {kind}: .*", f"; allowed: {allowed}", text)
  head, inside, trace = text.partition(": Error whilst parsing config file:")
  if "get_config() takes 0 positional arguments" in text:
    head = head.partition(": TypeError")[0]
    return f"{head}: its get_config takes no argument, nothing after a colon"
  return f"{head}: {trace.splitlines()[-1]}" if inside else text


@contextlib.contextmanager
def _without_noise() -> Iterator[None]:
  """Leaves out what tensorstore prints of transfers that end after one has failed."""
  shown = sys.unraisablehook
  sys.unraisablehook = lambda raised: (
    None if str(raised.exc_value) == "Event loop is closed" else shown(raised)
  )
  try:
    yield
  finally:
    sys.unraisablehook = shown


def _set_up_log() -> None:
  """Our own messages at INFO, everyone else's from WARNING; process 0 speaks.

  What Orbax and gcsfs log with a traceback is raised again, and becomes one sentence:
  the traceback is left out.
  """
  logging.set_verbosity(logging.INFO)
  logging.use_absl_handler()
  handler = logging.get_absl_handler()
  handler.setFormatter(python_logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
  here = str(pathlib.Path(__file__).parent.parent)

  def shown(record: python_logging.LogRecord) -> bool:
    if record.exc_info and {"orbax", "gcsfs"} & {*record.pathname.split(os.sep)}:
      return False
    if record.levelno >= python_logging.WARNING:
      return True
    if not record.pathname.startswith(here):
      return False
    # Asked for our own messages alone, and only once the processes know each other: it
    # starts jax's backends, which logs, and is too early while jax itself connects.
    return not jax.distributed.is_initialized() or jax.process_index() == 0

  handler.addFilter(shown)
