"""A run's directory: its config.json, written once and compared ever after."""

import pathlib

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import data as data_lib
from ncl_jax import sharding as sharding_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError


def prepare(
  config: ConfigDict, workdir: str | pathlib.Path, source: Source
) -> tuple[ConfigDict, pathlib.Path, Mesh]:
  """Settles the config, the directory and the devices; last of all writes config.json.

  Args:
    config: as given.
    workdir: new, or of an earlier call with the same config.
    source: the data.

  Returns:
    (resolved config, absolute path, mesh of all devices).

  Raises:
    InputError: if the settings do not fit the data or the devices, or the directory
      belongs to another config; nothing is changed there.
  """
  config_lib.validate(config)
  config = config_lib.resolve(config, source)
  path = pathlib.Path(workdir).expanduser().resolve()
  file = path / "config.json"
  if file.exists():
    stored = read_config(path)
    faults = config_lib.differences(stored, config)
    if faults:
      raise InputError(
        f"{path} holds a run of another config; nothing was changed. "
        f"Differences: {'; '.join(faults)}. Choose another --workdir, or that config."
      )
    config.train.cpu_devices = config.train.cpu_devices or stored.train.cpu_devices
  elif path.exists() and (not path.is_dir() or any(path.iterdir())):
    raise InputError(f"{path} is neither empty nor a work directory of this program")
  accumulate = config.train.accumulate
  devices = sharding_lib.set_cpu_devices(
    config.train.batch_size // accumulate, config.train.cpu_devices
  )
  config.train.cpu_devices = devices
  mesh = sharding_lib.make_mesh()
  sharding_lib.check_batch(mesh, config.train.batch_size, accumulate)
  if jax.process_index() == 0:
    path.mkdir(parents=True, exist_ok=True)
    swap = path / "config.json.tmp"
    swap.write_text(config_lib.to_json(config), encoding="utf-8")
    swap.replace(file)
  return config, path, mesh


def read_config(workdir: str | pathlib.Path) -> ConfigDict:
  """The resolved settings of a work directory.

  Raises:
    FileNotFoundError: if it has no config.json.
    InputError: if that file is not one of ours.
  """
  file = pathlib.Path(workdir).expanduser().resolve() / "config.json"
  if not file.exists():
    raise FileNotFoundError(f"no config.json in {file.parent}: train there first")
  return config_lib.from_json(file.read_text(encoding="utf-8"))


def load_source(config: ConfigDict) -> Source:
  """The data that the settings name."""
  return data_lib.load(
    config.data.source,
    image_size=config.data.image_size,
    train_examples=config.data.train_examples,
    on_bad_image=config.data.on_bad_image,
  )
