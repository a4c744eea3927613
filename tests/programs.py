"""Calls a program in this process as `python -m launch.NAME` would."""

import contextlib
import io
import pathlib
import runpy
import sys
import warnings

from absl import flags
from absl.testing import flagsaver

import ncl_jax.cli  # noqa: F401  its flags stay from one program to the next

ROOT = pathlib.Path(__file__).parent.parent


def call(program, *arguments):
  """Runs a program to its end.

  Args:
    program: its name.
    arguments: of the command line.

  Returns:
    (exit code, standard output, standard error); the log is in neither.
  """
  out, err = io.StringIO(), io.StringIO()
  saved, argv, path = flagsaver.save_flag_values(), sys.argv, sys.path
  sys.argv, sys.path = [program, *map(str, arguments)], [str(ROOT), *path]
  flags.FLAGS.unparse_flags()
  code = None
  try:
    with (
      contextlib.redirect_stdout(out),
      contextlib.redirect_stderr(err),
      warnings.catch_warnings(),
    ):
      # Of ml_collections, on how it imports a config file.
      warnings.filterwarnings("ignore", "the load_module", DeprecationWarning)
      runpy.run_module(f"launch.{program}", run_name="__main__", alter_sys=True)
  except SystemExit as end:
    code = end.code
  finally:
    sys.argv, sys.path = argv, path
    flagsaver.restore_flag_values(saved)
    # Else the next config file is executed on top of this one's names.
    sys.modules.pop("config_config", None)
  return code, out.getvalue(), err.getvalue()
