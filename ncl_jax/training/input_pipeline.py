"""Transfers training data to the devices: once if the set is small, or by batches."""

import dataclasses
from collections.abc import Generator

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import methods
from ncl_jax.data.source import Batch, Source, epoch_order
from ncl_jax.errors import InputError
from ncl_jax.models import byte_tokenizer
from ncl_jax.runtime import sharding as sharding_lib


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where the training set lies, and how many steps a call of the program makes."""

  on_device: bool  # every device holds the whole set; else batches are sent to them
  steps_per_call: int = 1  # the most; 1 unless `on_device`


def layout(config: ConfigDict, source: Source, mesh: Mesh) -> Layout:
  """Chooses the layout by `data.on_device_mib` and `train.steps_per_call`.

  Raises:
    InputError: for several steps in a call with batches that are sent one by one.
  """
  train = source.split("train")
  on_cpu = sharding_lib.platform(mesh) == "cpu"
  on_device = False
  # Others are decoded, or paired, batch by batch.
  if isinstance(train.images, np.ndarray) and not train.partners:
    # Simulated devices share the host's memory, which holds a copy for each.
    copies = len(mesh.local_devices) if on_cpu else 1
    on_device = train.images.nbytes * copies <= config.data.on_device_mib * 2**20
  wanted = config.train.steps_per_call
  if wanted > 1 and not on_device:
    raise InputError(
      f"train.steps_per_call is {wanted}: allowed is 1 for data that are not kept on "
      f"the devices. Those are decoded images of at most data.on_device_mib = "
      f"{config.data.on_device_mib}"
    )
  if not wanted:
    # On CPU a call costs nothing compared with its step.
    wanted = 20 if on_device and not on_cpu else 1
  return Layout(on_device, wanted)


def open_feed(
  source: Source, config: ConfigDict, mesh: Mesh, start: int, on_device: bool
) -> "_OnDevice | _Streamed":
  """Opens the data of a run from step `start` on, in the order given by its seed.

  Returns:
    Feed to be closed: `feed.at(step)` is the data for the steps after `step`, which are
    asked for in their order. The batches are the same with `on_device` and without.
  """
  if on_device:
    return _OnDevice(source, config, mesh)
  return _Streamed(source, config, mesh, start)


def batch_of(
  data: dict[str, jax.Array],
  start: jax.Array,
  size: int,
  mesh: Mesh,
  shape: tuple[int, ...],
):
  """Takes a batch out of data on the device, inside the compiled step.

  Each device takes its own rows from its own copy: nothing is transferred.

  Args:
    data: {"image" [M, H W C], "label" [M], "order" [M]}, as `open_feed` gives them,
      and perhaps "tokens" [M, L].
    start: index into the order of the batch's first image.
  """
  rows = jax.lax.dynamic_slice(data["order"], (start,), (size,))
  rows = jax.lax.with_sharding_constraint(rows, sharding_lib.batch_sharded(mesh))
  batch = {name: jnp.take(x, rows, 0) for name, x in data.items() if name != "order"}
  return batch | {"image": batch["image"].reshape(size, *shape)}


class _OnDevice:
  """Images and labels on every device; only the order is sent, once per epoch."""

  def __init__(self, source: Source, config: ConfigDict, mesh: Mesh):
    split = source.split("train")
    images = np.asarray(split.images)
    self._whole = sharding_lib.replicated(mesh)
    self._per_epoch = source.steps_per_epoch(config.train.batch_size)
    self._count, self._seed = len(split), config.seed
    self._epoch = -1
    # An image is a row: by itself a TPU would lay the set out with its three channels
    # padded, four times as large, in a copy that every call would make.
    rows = images.reshape(len(images), -1)
    texts = _tokens(source, config)
    self._data = self._put({"image": rows, "label": split.labels} | texts)
    size = images.nbytes / 2**20
    logging.info("the training images are on the devices, %.1f MiB on each", size)

  def _put(self, arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {
      name: jax.make_array_from_process_local_data(self._whole, a, a.shape)
      for name, a in arrays.items()
    }

  def at(self, step: int) -> dict[str, jax.Array]:
    epoch = step // self._per_epoch
    if epoch != self._epoch:
      order = epoch_order(self._count, self._seed, epoch).astype(np.int32)
      self._data |= self._put({"order": order})
      self._epoch = epoch
    return dict(self._data)

  def close(self) -> None:
    self._data.clear()


class _Streamed:
  """Batches made in the background and sent while the devices compute."""

  def __init__(self, source: Source, config: ConfigDict, mesh: Mesh, start: int):
    self._mesh, self._next = mesh, start
    self._texts = _tokens(source, config)
    self._batches: Generator[Batch, None, None] = source.train_batches(
      config.seed,
      start,
      config.train.batch_size,
      sharding_lib.process_rows(mesh, config.train.batch_size),
      # A text is an image's partner, where there are two towers.
      pairs=not self._texts,
    )

  def at(self, step: int) -> dict[str, jax.Array]:
    if step != self._next:
      raise ValueError(f"step {step} asked for, the next is {self._next}")
    self._next += 1
    batch = next(self._batches)
    texts = {name: rows[batch["id"]] for name, rows in self._texts.items()}
    return sharding_lib.to_global(
      self._mesh, {"image": batch["image"], "label": batch["label"]} | texts
    )

  def close(self) -> None:
    self._batches.close()


def _tokens(source: Source, config: ConfigDict) -> dict[str, np.ndarray]:
  """{"tokens" [M, L]} of the training captions, if the method takes them; else {}."""
  if not methods.of(config).captions:
    return {}
  captions = source.split("train").captions
  assert captions is not None  # as `config.resolve` has seen
  return {"tokens": byte_tokenizer.encode(captions, config.text.length)}
