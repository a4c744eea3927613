"""Exceptions that mean something to a caller, and the programs' exit codes."""

EXIT_FAILED, EXIT_INPUT, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143


class InputError(ValueError):
  """Wrong input, found before any work was done.

  The message names the value seen and the values allowed; the programs print it alone,
  without a traceback, and exit with code 2.
  """


class SaveError(RuntimeError):
  """A checkpoint could not be written; the earlier ones are untouched. Exit code 1."""


class Failed(RuntimeError):
  """Parts of the work failed and were told; the rest was done. Exit code 1."""


class Stopped(Exception):
  """Training ended early because it was asked to, with everything saved.

  Attributes:
    exit_code: 143 after SIGTERM, 130 after Ctrl-C: what the signal itself would give.
  """

  def __init__(self, message: str, exit_code: int):
    super().__init__(message)
    self.exit_code = exit_code
