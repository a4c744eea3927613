"""The one exception that means: the user can mend this, and how."""


class InputError(ValueError):
  """Wrong input, found before any work was done.

  The message names the value seen and the values allowed; the programs print it alone,
  without a traceback, and exit with code 2.
  """
