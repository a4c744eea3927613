"""Finds, downloads and prepares a set of TensorFlow Datasets."""

import contextlib
import difflib
import importlib.util
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from absl import logging

from ncl_jax.errors import InputError
from ncl_jax.host import network

RANDOM_ACCESS = "array_record"
_HOSTS = ("storage.googleapis.com", "www.cs.toronto.edu")  # most sets come from these


def prepared(name: str) -> Any:
  """A builder whose data are prepared."""
  _require("tensorflow_datasets", f"tfds:{name}")
  import tensorflow_datasets as tfds

  data_dir = os.environ.get("TFDS_DATA_DIR")
  try:
    with _quiet():
      builder = tfds.builder(name, data_dir=data_dir)
      is_prepared = builder.is_prepared()
  except tfds.core.DatasetNotFoundError as error:
    near = difflib.get_close_matches(name.split("/")[0], tfds.list_builders())
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise InputError(
      f"no TensorFlow data set {name!r}, neither known by name nor prepared in"
      f" {data_dir or '~/tensorflow_datasets'} (TFDS_DATA_DIR){hint}"
    ) from error
  if not is_prepared:
    where = f"tfds:{name} is not prepared in {builder.data_dir}"
    _require("tensorflow", f"{where}: preparing it")
    if _needs_network(builder, data_dir) and network.offline(_HOSTS):
      raise InputError(
        f"{where}, and there is no network. Run `tfds build {name}` where there is, "
        "copy the folder and set TFDS_DATA_DIR"
      )
    logging.warning("tfds:%s: downloading and preparing in %s", name, builder.data_dir)
    _hide_accelerators()
    try:
      builder.download_and_prepare()
    except (
      OSError,
      AssertionError,  # to be downloaded by hand; contains the instructions
      ValueError,
      ImportError,
      tfds.core.download.download_manager.NonMatchingChecksumError,
    ) as error:
      raise InputError(
        f"tfds:{name} is not in {builder.data_dir} and cannot be prepared: {error}"
      ) from error
  stored = builder.info.file_format.value
  if stored != RANDOM_ACCESS:
    _require("tensorflow", f"tfds:{name} is stored as {stored}: reading it")
    _hide_accelerators()
  return builder


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
  """Without the warnings of TensorFlow Datasets."""
  level = logging.get_verbosity()
  logging.set_verbosity(logging.ERROR)
  try:
    yield
  finally:
    logging.set_verbosity(level)


def _needs_network(builder: Any, data_dir: str | None) -> bool:
  """False if files were downloaded earlier, or are to be placed there by hand."""
  folder = pathlib.Path(data_dir or "~/tensorflow_datasets").expanduser()
  earlier = any((folder / "downloads").glob("**/*.INFO"))
  return builder.MANUAL_DOWNLOAD_INSTRUCTIONS is None and not earlier


def _require(package: str, what: str) -> None:
  """Refuses what needs a package that is not installed; names the extra."""
  if importlib.util.find_spec(package) is None:
    raise InputError(f"{what} needs {package}: pip install 'ncl_jax[tfds]'")


def _hide_accelerators():
  """Keeps TensorFlow off the GPUs, whose memory JAX needs; call before its first op."""
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no log of its start
  import tensorflow as tf

  tf.config.set_visible_devices([], "GPU")
