"""Reads the command line: flags, a config file, and changes of its settings."""

import re
import traceback
from collections.abc import Sequence

from absl import flags
from ml_collections import ConfigDict, config_flags

from ncl_jax import config as config_lib
from ncl_jax.config import recipes
from ncl_jax.errors import Failed, InputError
from ncl_jax.host import paths


def parse(required: Sequence[str], argv: list[str], fields: Sequence[str] = ()) -> None:
  """Fills `flags.FLAGS`; an unknown config field gets a suggestion, not a traceback."""
  known = list(fields) or config_lib.known_keys()
  argv = _located(argv)
  file = _config_file(argv)
  if fields and file.endswith(".json"):
    raise InputError(f"--config={file} is not for this program: see --help")
  for argument in argv[1:]:
    key = argument.lstrip("-").split("=", 1)[0].removeprefix("config.")
    is_field = argument.startswith(("--config.", "-config."))
    if is_field and key not in known and not key.startswith("expected."):
      near = None if fields else config_lib.nearest_key(key)
      hint = f"did you mean --config.{near}?" if near else f"known: {', '.join(known)}"
      raise InputError(f"unknown config field {key!r}: {hint}")
  rest = _parsed(argv)
  if rest:
    raise InputError(f"unexpected argument {rest[0]!r}: flags are written --NAME=VALUE")
  if not fields and file and "method" not in flags.FLAGS.config:
    raise InputError(
      f"{file} is no config of a run: its first lines say which command it is for"
    )
  for name in required:
    if flags.FLAGS[name].value in (None, ""):
      raise InputError(f"--{name} is missing: see --help")


def recipe(method: str = "") -> ConfigDict:
  """What the file of --config gives, without the changes of the command line.

  Args:
    method: another one than after the colon there; "": that one.
  """
  named = config_flags.get_config_filename(flags.FLAGS["config"])
  file, _, argument = named.partition(":")
  if file == recipes.__file__:
    return recipes.load(argument, method)
  return recipes.load(file, method or argument)


def _parsed(argv: list[str]) -> list[str]:
  """The arguments that are no flags; a config file's own errors become one message."""
  try:
    rest = flags.FLAGS([_read_by(argument) for argument in argv])[1:]
  except (InputError, Failed, flags.Error):
    raise
  # A config file is a program: anything can happen in it.
  except Exception as error:
    file = _config_file(argv)
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
    kind = "" if isinstance(error, AttributeError) else f"{type(error).__name__}: "
    place = f"{file}, line {line}" if line else file
    text = str(error).replace("module 'config_config'", "it")
    raise InputError(f"in the config {place}: {kind}{text[:600]}") from error
  if _config_file(argv):
    given = flags.FLAGS["config"].value
    if not isinstance(given, ConfigDict):
      # An input or output error is kept in its place, to be raised when it is used.
      failure = getattr(given, "__dict__", {}).get("_error", given)
      raise InputError(
        f"{_config_file(argv)}: its get_config() must return a ConfigDict, as those in"
        f" configs/ do; it gave {str(failure)[:300]}"
      )
  return rest


def _located(argv: list[str]) -> list[str]:
  """The arguments, with the file in --config=NAME:METHOD or --config=PATH in full."""
  argv = re.sub("(^|\0)--?config[\0=]", r"\1--config=", "\0".join(argv)).split("\0")
  for i, argument in enumerate(argv):
    if argument.startswith("--config="):
      paths.local(argument.partition("=")[2])
      file, *method = argument.partition("=")[2].split(":", 1)
      argv[i] = ":".join([f"--config={recipes.locate(file)}", *method])
  return argv


def _config_file(argv: list[str]) -> str:
  """The path in --config=PATH:METHOD, or an empty text."""
  given = [a.removeprefix("--config=") for a in argv if a.startswith("--config=")]
  return given[-1].split(":", 1)[0] if given else ""


def _read_by(argument: str) -> str:
  """A run's config.json in --config is read by the module of recipes."""
  file = _config_file([argument])
  if not file.endswith(".json"):
    return argument
  if argument != f"--config={file}":
    raise InputError(f"{argument}: a run's config names its method, none may follow")
  return f"--config={recipes.__file__}:{file}"
