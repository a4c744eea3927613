"""A run's directory: config.json and data.json, written once, compared ever after."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import socket
from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import data as data_lib
from ncl_jax import distributed, paths
from ncl_jax import sharding as sharding_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError

_LOCK = ".lock"


def prepare(
  config: ConfigDict, workdir: str | pathlib.Path, source: Source
) -> tuple[ConfigDict, pathlib.Path, Mesh]:
  """Settles the config, the directory and the devices, and writes nothing yet.

  Args:
    config: as given.
    workdir: new, or of an earlier call with the same config.
    source: the data.

  Returns:
    (resolved config, absolute path, mesh of all devices).

  Raises:
    InputError: if the settings do not fit the data or the devices, the directory
      belongs to another config or other data, or processes disagree.
  """
  config_lib.validate(config)
  config = config_lib.resolve(config, source)
  path = paths.local(workdir).resolve()
  file = path / "config.json"
  if file.exists():
    stored = read_config(path)
    faults = config_lib.differences(stored, config)
    if faults:
      raise InputError(
        f"{path} holds a run of another config; nothing was changed. "
        f"Differences: {'; '.join(faults)}. Choose another --workdir, or that config."
      )
    if change := data_changed(path, source):
      raise InputError(
        f"the training set of {source.name} is not the one that {path} began with: "
        f"{change}. Bring that back, or choose another --workdir"
      )
    config.train.cpu_devices = config.train.cpu_devices or stored.train.cpu_devices
  elif path.exists() and not _is_free(path):
    raise InputError(f"{path} is neither empty nor a work directory of this program")
  elif config.train.init_from:
    # A run that has begun needs its origin no more.
    origin = pathlib.Path(config.train.init_from)
    if not (origin / "config.json").is_file():
      raise InputError(f"train.init_from is {origin}: there is no config.json of a run")
  accumulate = config.train.accumulate
  devices = sharding_lib.set_cpu_devices(
    config.train.batch_size // accumulate, config.train.cpu_devices
  )
  config.train.cpu_devices = devices
  mesh = sharding_lib.make_mesh()
  sharding_lib.check_batch(mesh, config.train.batch_size, accumulate)
  # Also the point up to which every process sees the directory as it was.
  distributed.agree("the config", config_lib.to_json(config))
  distributed.agree("the training set", f"{source.name} {fingerprint(source)}")
  return config, path, mesh


@contextlib.contextmanager
def hold(workdir: pathlib.Path, config: ConfigDict, source: Source) -> Iterator[None]:
  """Opens a directory for training, with its two files; keeps other runs out.

  Args:
    workdir: from `prepare`.
    config: likewise.
    source: the data.

  Raises:
    InputError: if a living process is training there, saying which; nothing is changed.
  """
  if jax.process_index() != 0:
    yield
    return
  workdir.mkdir(parents=True, exist_ok=True)
  # Text about the holder, for people; the lock itself is the kernel's, so no kill can
  # leave it behind.
  with (workdir / _LOCK).open("a+", encoding="utf-8") as file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      file.seek(0)
      raise InputError(
        f"{workdir} is in use: {file.read().strip()} is training there. Wait for it, "
        "stop it, or choose another --workdir"
      ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    # The config first: it makes a directory a run's, and without it a file of the
    # other's name is somebody's own.
    texts = {
      "config.json": config_lib.to_json(config),
      "data.json": json.dumps(fingerprint(source), indent=2) + "\n",
    }
    for name, text in texts.items():
      swap = workdir / f"{name}.tmp"
      swap.write_text(text, encoding="utf-8")
      swap.replace(workdir / name)
    yield


def fingerprint(source: Source) -> dict[str, Any]:
  """What tells one training set from another, for data.json.

  The shape of the images, their number, and digests of their labels and of their names,
  where they have some.
  """
  split = source.split("train")
  labels = hashlib.sha256(split.labels.tobytes()).hexdigest()
  return {
    "image_shape": list(source.image_shape),
    "training_images": len(split),
    "labels": labels,
    "names": source.names,
  }


def data_changed(workdir: pathlib.Path, source: Source) -> str:
  """How a training set differs from the one that a run began with; "" if it does not.

  Args:
    workdir: of the run; without data.json nothing is known.
    source: the data as they are now.
  """
  try:
    then = json.loads((workdir / "data.json").read_text(encoding="utf-8"))
  except (OSError, ValueError):
    return ""
  now = fingerprint(source)
  if then == now:
    return ""
  for key, what in (("training_images", "images"), ("image_shape", "is their shape")):
    if then.get(key) != now[key]:
      return f"{then.get(key)} {what} then, {now[key]} now"
  return f"as many images, {now['training_images']}, with other labels or names"


def read_config(workdir: str | pathlib.Path) -> ConfigDict:
  """The resolved settings of a work directory.

  Raises:
    FileNotFoundError: if it has no config.json.
    InputError: if that file is not one of ours.
  """
  file = paths.local(workdir).resolve() / "config.json"
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
    pair_factors=config.data.pair_factors,
    classes_file=config.data.classes_file,
  )


def _is_free(path: pathlib.Path) -> bool:
  """Whether a directory may become a work directory: nobody's files are in it."""
  # A kill between the two may leave the lock without a config.json.
  ours = {_LOCK, "config.json.tmp"}
  return path.is_dir() and all(entry.name in ours for entry in path.iterdir())
