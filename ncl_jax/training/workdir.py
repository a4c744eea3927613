"""A run's directory: config.json and data.json are written once, then compared."""

import contextlib
import functools
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import data as data_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.host import paths
from ncl_jax.runtime import distributed, jsonl, lock
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import fingerprints

_LOCK = ".lock"


def prepare(
  config: ConfigDict, workdir: str | pathlib.Path, source: Source
) -> tuple[ConfigDict, pathlib.Path, Mesh]:
  """Settles the config, the directory and the devices, and writes nothing yet.

  Returns:
    (resolved config, absolute path, mesh of all devices).

  Raises:
    InputError: if the settings do not fit the data or the devices, the directory
      belongs to another config or other data, or processes disagree.
  """
  config_lib.validate(config)
  config = config_lib.resolve(config, source)
  path = paths.absolute(workdir)
  if (path / "config.json").exists():
    _check_same(path, config, source)
    stored = _stored(path)
    config.train.cpu_devices = config.train.cpu_devices or stored.train.cpu_devices
  elif path.exists() and not _is_free(path):
    raise InputError(f"{path} is neither empty nor a work directory of this program")
  elif config.train.init_from:
    # A run that has begun no longer needs its origin.
    origin = paths.absolute(config.train.init_from)
    if not (origin / "config.json").is_file():
      raise InputError(f"train.init_from is {origin}: there is no config.json of a run")
  chunks = config.train.grad_cache_chunks
  devices = sharding_lib.set_cpu_devices(
    config.train.batch_size // chunks, config.train.cpu_devices
  )
  config.train.cpu_devices = devices
  mesh = sharding_lib.make_mesh()
  sharding_lib.check_batch(mesh, config.train.batch_size, chunks)
  # Also the point up to which every process sees the directory as it was.
  distributed.agree("the config", config_lib.to_json(config))
  seen = fingerprints.training_set(source)
  distributed.agree("the training set", f"{source.name} {seen}")
  return config, path, mesh


def _check_same(path: pathlib.Path, config: ConfigDict, source: Source) -> None:
  """Raises unless a run has this config and these data, wherever they lie."""
  stored = _stored(path)
  change = data_changed(path, source)
  if not change and recorded_data(path):
    stored.data.source = config.data.source
  faults = config_lib.differences(stored, config)
  if faults:
    hint = ""
    if any(fault.startswith("train.epochs:") for fault in faults):
      hint = (
        " A run's schedule ends with its epochs: to train on, begin another run from "
        f"its weights by --config.train.init_from={path}, with the epochs to add and "
        "its own learning rate and warm-up (docs/resuming.md)."
      )
    raise InputError(
      f"{path} holds a run of another config; nothing was changed. "
      f"Differences: {'; '.join(faults)}. Choose another --workdir, or that config."
      f"{hint}"
    )
  if change:
    raise InputError(
      f"the training set of {source.name} is not the one that {path} began with: "
      f"{change}. Bring that back, or choose another --workdir"
    )


@contextlib.contextmanager
def alone(folder: pathlib.Path, use: str) -> Iterator[None]:
  """Makes a directory and keeps other programs out of it; process 0 does so for all.

  Raises:
    InputError: if a living process holds it, saying which and for what `use`.
  """
  first = jax.process_index() == 0
  with lock.hold(folder / _LOCK, use) if first else contextlib.nullcontext():
    yield


@contextlib.contextmanager
def hold(workdir: pathlib.Path, config: ConfigDict, source: Source) -> Iterator[None]:
  """Opens a directory for training, with its two files; keeps other runs out.

  Raises:
    InputError: if a living process is training there, saying which, or a run of another
      config has begun there since `prepare`; nothing is changed.
  """
  with alone(workdir, "training"):
    if jax.process_index() == 0:
      if (workdir / "config.json").exists():
        # Again: between `prepare` and the lock another run may have come and gone.
        _check_same(workdir, config, source)
      # The config first: it makes a directory a run's, and without it a file of the
      # other's name is somebody's own.
      jsonl.replace(workdir / "config.json", config_lib.to_json(config))
      seen = json.dumps(fingerprints.training_set(source), indent=2, allow_nan=False)
      jsonl.replace(workdir / "data.json", f"{seen}\n")
    yield


def data_changed(workdir: pathlib.Path, source: Source) -> str:
  """How a training set differs from the one that a run began with; "" if it does not.

  Only samples of large sets are compared. Without data.json nothing is known.
  """
  then, now = recorded_data(workdir), fingerprints.training_set(source)
  # A file of an earlier version lacks some keys: of those nothing is known.
  differ = [key for key in then if key in now and then[key] != now[key]]
  if not differ:
    return ""
  for key, what in (("training_images", "images"), ("image_shape", "is their shape")):
    if key in differ:
      return f"{then[key]} {what} then, {now[key]} now"
  return f"as many images, {now['training_images']}, with other {', '.join(differ)}"


def recorded_data(workdir: pathlib.Path) -> dict[str, Any]:
  """The training set of a run, as its data.json has it; {} where there is none."""
  try:
    return dict(json.loads((workdir / "data.json").read_text(encoding="utf-8")))
  except (OSError, ValueError, TypeError):
    return {}


# Where the data of runs lie now, see `data_moved`.
_moved_to = ""


def data_moved(spec: str) -> None:
  """Says where the data of the runs that are read from now on lie; "": as recorded."""
  global _moved_to
  _moved_to = spec


def moved_to() -> str:
  """What `data_moved` was told last."""
  return _moved_to


def read_config(workdir: str | pathlib.Path) -> ConfigDict:
  """The resolved settings of a work directory, with `data_moved` taken into account.

  Raises:
    FileNotFoundError: if it has no config.json.
    InputError: if that file is not one of ours.
  """
  config = _stored(paths.absolute(workdir))
  config.data.source = _moved_to or config.data.source
  cache = config.data.decoded_cache
  if cache and not paths.local(cache).is_dir():
    logging.info("data.decoded_cache is %s, which is not here: not used", cache)
    return streamed(config)
  return config


def _stored(path: pathlib.Path) -> ConfigDict:
  file = path / "config.json"
  if not file.exists():
    raise FileNotFoundError(f"no config.json in {file.parent}: train there first")
  try:
    return config_lib.from_json(file.read_text(encoding="utf-8"))
  except (InputError, UnicodeDecodeError) as error:
    raise InputError(
      f"{file} is no run's of this version: {error}. Choose another --workdir"
    ) from error


def load_source(config: ConfigDict, flag: str = "--config.data.source") -> Source:
  """The data that the settings name; `flag` is the option for another place.

  Raises:
    InputError: if they cannot be loaded.
  """
  try:
    return data_lib.load(
      config.data.source,
      image_size=config.data.image_size,
      train_examples=config.data.train_examples,
      on_bad_image=config.data.on_bad_image,
      pair_factors=config.data.pair_factors,
      classes_file=config.data.classes_file,
      decoded=config.data.decoded_cache,
    )
  except InputError as error:
    kind, _, place = config.data.source.partition(":")
    is_path = kind != "tfds" and place and not paths.scheme(place)
    if not is_path or paths.local(place).exists():
      raise
    raise InputError(
      f"{error}. If the data were moved, name their place by {flag}={kind}:PATH: a run "
      "knows its training set by what it holds"
    ) from error


def streamed(config: ConfigDict) -> ConfigDict:
  """The settings without a cache of decoded images, for readers of a few images."""
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.data.decoded_cache = ""
  return config


def kept_source(config: ConfigDict, flag: str = "--config.data.source") -> Source:
  """As `load_source`; the same object again while neither settings nor files differ."""
  settings = tuple(sorted(config.data.to_dict().items()))
  return _kept_source(settings, fingerprints.stamp(config.data.source), flag)


# Of one set: it may fill half of the memory.
@functools.lru_cache(maxsize=1)
def _kept_source(settings: tuple, stamp: tuple, flag: str) -> Source:
  del stamp  # of the files: others are loaded anew
  config = config_lib.defaults()
  config.data.update(dict(settings))
  return load_source(config, flag)


def _is_free(path: pathlib.Path) -> bool:
  """Whether a directory holds nothing, or what a kill before config.json left."""
  ours = {_LOCK, "config.json.tmp"}
  return path.is_dir() and all(entry.name in ours for entry in paths.entries(path))
