"""The files of configs/, loaded by name."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).parent.parent


def load(name):
  spec = importlib.util.spec_from_file_location(name, ROOT / "configs" / f"{name}.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def get(name, argument="ncl"):
  return load(name).get_config(argument)
