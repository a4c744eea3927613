"""Exceptions, and the programs' exit codes."""

import contextlib
import os
from collections.abc import Iterator

EXIT_FAILED, EXIT_INPUT, EXIT_DIVERGED = 1, 2, 3
EXIT_INTERRUPTED, EXIT_TERMINATED = 130, 143

EXIT_CODES = {
  0: "done",
  EXIT_FAILED: "failed; earlier checkpoints are kept",
  EXIT_INPUT: "wrong input; nothing was changed",
  EXIT_DIVERGED: "training diverged; the same command would diverge again",
  EXIT_INTERRUPTED: "stopped by Ctrl-C; resumable state is saved",
  EXIT_TERMINATED: "stopped by SIGTERM, SIGHUP or SIGUSR1; resumable state is saved",
}

# Schedulers send SIGTERM or SIGUSR1 before they end a job; a closed terminal sends
# SIGHUP. All three have the same effect.
SIGNALS = {
  "SIGINT": EXIT_INTERRUPTED,
  "SIGTERM": EXIT_TERMINATED,
  "SIGHUP": EXIT_TERMINATED,
  "SIGUSR1": EXIT_TERMINATED,
}


class InputError(ValueError):
  """Wrong input, found before any work was done.

  The message names the value seen and the values allowed. Programs print it without a
  traceback and exit with code 2.
  """


class SaveError(RuntimeError):
  """A checkpoint could not be written; the earlier ones are untouched. Exit code 1."""


class Failed(RuntimeError):
  """Parts of the work failed and were reported; the rest is done. Exit code 1."""


class Stopped(Exception):
  """Training was asked to stop and saved everything; exit code as in `SIGNALS`."""

  def __init__(self, message: str, exit_code: int):
    super().__init__(message)
    self.exit_code = exit_code


@contextlib.contextmanager
def naming(path: str | os.PathLike) -> Iterator[None]:
  """Adds the file's name to an OSError; those of write and fsync have none.

  >>> with naming("runs/a/metrics.jsonl"):
  ...   raise OSError(28, "No space left on device")
  Traceback (most recent call last):
  OSError: [Errno 28] No space left on device: 'runs/a/metrics.jsonl'
  """
  try:
    yield
  except OSError as error:
    if error.filename is not None or error.errno is None:
      raise
    raise OSError(error.errno, error.strerror, os.fspath(path)) from error
