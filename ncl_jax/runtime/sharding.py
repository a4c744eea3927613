"""Devices: the mesh, shardings, and conversion of host batches to global arrays."""

import os
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ncl_jax.errors import InputError
from ncl_jax.host import resources

AXIS = "data"


def make_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
  """A mesh with one axis, `data`, of some devices or all; those of a process adjoin.

  The axis is Auto: losses are written for the global batch and XLA places the
  collectives. Each process reads consecutive rows of a batch. `jax.make_mesh` would
  follow the network's topology instead, which mixes processes on most TPU slices, does
  not support several slices, and would help the ring loss alone.
  """
  devices = jax.devices() if devices is None else devices
  ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
  return Mesh(np.array(ordered), (AXIS,), axis_types=(AxisType.Auto,))


def platform(mesh: Mesh | None = None) -> str:
  """The platform of a mesh's devices, for example "cpu"; None: of this process."""
  return mesh.devices.flat[0].platform if mesh else jax.default_backend()


def slices(mesh: Mesh) -> int:
  """Number of TPU slices that the devices lie in; 1 for devices without slices."""
  return len({getattr(device, "slice_index", 0) for device in mesh.devices.flat})


def replicated(mesh: Mesh) -> NamedSharding:
  """The sharding with the whole array on each device."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharded(mesh: Mesh) -> NamedSharding:
  """The sharding with the leading axis split over the devices."""
  return NamedSharding(mesh, PartitionSpec(AXIS))


def process_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
  """The rows of a global batch that belong to this process's devices, ascending.

  Raises:
    InputError: if the devices cannot share the batch equally.
  """
  check_batch(mesh, batch_size)
  here = jax.process_index()
  own = [device.process_index == here for device in mesh.devices.flat]
  return np.arange(batch_size).reshape(mesh.size, -1)[own].ravel()


def to_global(mesh: Mesh, batch: Any) -> Any:
  """Makes global arrays, split along the leading axis, from each process's part.

  `batch` is a tree of numpy arrays with the rows `process_rows` of the global batch.
  """
  sharding = batch_sharded(mesh)
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch
  )


def check_batch(mesh: Mesh, batch_size: int, chunks: int = 1) -> None:
  """Raises an InputError unless devices times chunks divides the batch size."""
  shares = mesh.size * chunks
  if batch_size % shares:
    below = batch_size - batch_size % shares
    near = f"{below} or {below + shares}" if below else f"{shares}"
    parts = f" in {chunks} chunks (train.grad_cache_chunks)" if chunks > 1 else ""
    raise InputError(
      f"batch size {batch_size} cannot be shared equally by {mesh.size} devices"
      f"{parts}: the nearest that can is {near}"
    )


def that_share(mesh: Mesh, batch_size: int) -> Mesh:
  """The mesh with as many devices as divide the batch size, equally many per process.

  For batch sizes set by a recipe: 64 images use 2 of 3 devices, or 8 of 12. The first
  devices of each process are used.

  Raises:
    InputError: if even one device per process is too many.
  """
  groups: dict[int, list[jax.Device]] = {}
  for device in mesh.devices.flat:
    groups.setdefault(device.process_index, []).append(device)
  for count in range(min(map(len, groups.values())), 0, -1):
    if batch_size % (count * len(groups)) == 0:
      if count * len(groups) == mesh.size:
        return mesh
      return make_mesh([d for group in groups.values() for d in group[:count]])
  below = batch_size - batch_size % len(groups)
  raise InputError(
    f"batch size {batch_size} cannot be shared equally by {len(groups)} processes: the "
    f"nearest that can is {below or below + len(groups)}"
  )


def pad_to_devices(mesh: Mesh, batch_size: int) -> int:
  """The smallest multiple of the number of devices that is at least `batch_size`."""
  return -(-batch_size // mesh.size) * mesh.size


def set_cpu_devices(batch_size: int, wanted: int = 0) -> int:
  """Sets the number of simulated CPU devices, before JAX starts; returns it.

  XLA runs a convolution on one CPU core. With one simulated device per core, which pays
  on jax 0.10 but not on 0.12, a batch uses all cores. A user's choice (by
  `jax_num_cpu_devices` or XLA_FLAGS) stands. Accelerators are unaffected.

  Args:
    batch_size: images in a batch; each device gets an equal share.
    wanted: the number to use, as recorded by an earlier run; 0 to choose.
  """
  flags = os.environ.get("XLA_FLAGS", "")
  chosen = jax.config.values["jax_num_cpu_devices"] > 0
  if not chosen and "xla_force_host_platform_device_count" not in flags:
    if not wanted:
      cores = resources.cores()
      pays = jax.version.__version_info__ < (0, 11)
      wanted = max(n for n in range(1, cores + 1) if batch_size % n == 0) if pays else 1
    try:
      jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:
      # JAX has already started, for example in a notebook; its devices are used.
      if platform() == "cpu" and jax.local_device_count("cpu") != wanted:
        logging.info("jax is running already: its %d devices stay", jax.device_count())
  return jax.local_device_count("cpu")
