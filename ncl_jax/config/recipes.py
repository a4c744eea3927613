"""The recipes of `configs/` by name, config files by path, and saved runs.

Also the config file by which the programs read a run's config.json: `get_config` below.
"""

import difflib
import importlib.util
import pathlib
import re

from ml_collections import ConfigDict

from ncl_jax.config import keys
from ncl_jax.errors import InputError
from ncl_jax.host import paths


def names() -> list[str]:
  """Every recipe that comes with the package."""
  return sorted(path.stem for path in paths.shipped("configs").glob("*.py"))


def locate(given: str) -> pathlib.Path:
  """The file of a config.

  Args:
    given: the name of a recipe ("digits"), or a path that ends in .py or .json. A name
      is never looked up in the working directory.

  Raises:
    InputError: if there is none.
  """
  if re.fullmatch(r"[\w-]+", given):
    if given in names():
      return paths.shipped("configs") / f"{given}.py"
    near = difflib.get_close_matches(given, names(), n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}"
    raise InputError(
      f"no recipe is named {given!r} (a path would end in .py or .json): {hint}"
    )
  path = paths.local(given)
  if not path.is_file():
    name = path.stem
    hint = f"; the recipe that comes with ncl_jax is {name}" if name in names() else ""
    raise InputError(f"--config names the file {given!r}: there is none{hint}")
  return path


def load(given: str, argument: str = "") -> ConfigDict:
  """The settings of a recipe or of a saved run.

  Args:
    given: as in `locate`.
    argument: what the command line has after the colon, a method; "": the recipe's own.

  Raises:
    InputError: if there is no such file, or a saved run is given a method.

  >>> load("digits", "cl").data.source
  'digits'
  """
  path = locate(given)
  if path.suffix == ".json":
    if argument:
      raise InputError(f"{given} is a run's, of one method: choose another by a recipe")
    return get_config(str(path))
  spec = importlib.util.spec_from_file_location("recipe", path)
  if spec is None or spec.loader is None:
    raise InputError(f"{given}: a config file ends in .py or .json")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module.get_config(argument) if argument else module.get_config()


def get_config(path: str) -> ConfigDict:
  """The settings in a run's config.json.

  Raises:
    InputError: if it is not one of ours.
  """
  try:
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return keys.from_json(text)
  except (InputError, UnicodeDecodeError) as error:
    raise InputError(f"{path}: {error}") from error
