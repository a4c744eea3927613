"""Devices: the mesh, how arrays lie on it, from host batch to global array."""

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
  """Devices along one axis, `data`, those of each process next to each other.

  The axis is Auto: losses are written for the global batch and XLA places the
  collectives. `jax.make_mesh` would follow the network's topology instead, which mixes
  the processes on most TPU slices and refuses more than one slice. Only the ring form
  of the loss has neighbours, so a process reads one run of a batch's rows.

  Args:
    devices: which; None for all devices of all processes.
  """
  devices = jax.devices() if devices is None else devices
  ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
  return Mesh(np.array(ordered), (AXIS,), axis_types=(AxisType.Auto,))


def platform(mesh: Mesh | None = None) -> str:
  """What the devices are, "cpu" or "tpu" say; they need not be at hand.

  Args:
    mesh: from `make_mesh`; None for this process's own devices.
  """
  return mesh.devices.flat[0].platform if mesh else jax.default_backend()


def replicated(mesh: Mesh) -> NamedSharding:
  """The whole array on each device."""
  return NamedSharding(mesh, PartitionSpec())


def batch_sharded(mesh: Mesh) -> NamedSharding:
  """The leading axis split over the devices."""
  return NamedSharding(mesh, PartitionSpec(AXIS))


def process_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
  """The rows of a batch that lie on this process's devices.

  Args:
    mesh: one axis; its devices may be in any order.
    batch_size: the global one, a multiple of the number of devices.

  Returns:
    int64 [batch_size * local devices / devices], ascending.

  Raises:
    InputError: if the devices cannot share the batch equally.
  """
  check_batch(mesh, batch_size)
  here = jax.process_index()
  own = [device.process_index == here for device in mesh.devices.flat]
  return np.arange(batch_size).reshape(mesh.size, -1)[own].ravel()


def to_global(mesh: Mesh, batch: Any) -> Any:
  """Puts this process's part of a batch on its devices.

  Args:
    mesh: from `make_mesh`.
    batch: tree of numpy arrays, the rows `process_rows` of the global batch.

  Returns:
    Tree of global arrays, split along the leading axis.
  """
  sharding = batch_sharded(mesh)
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(sharding, np.asarray(x)), batch
  )


def check_batch(mesh: Mesh, batch_size: int, accumulate: int = 1) -> None:
  """Equal shares for all devices in each chunk, or a clear refusal.

  Args:
    mesh: from `make_mesh`.
    batch_size: images in a batch.
    accumulate: chunks that a batch is split into.

  Raises:
    InputError: if `batch_size` is not a multiple of devices times chunks.
  """
  shares = mesh.size * accumulate
  if batch_size % shares:
    below = batch_size - batch_size % shares
    near = f"{below} or {below + shares}" if below else f"{shares}"
    chunks = (
      f" in {accumulate} chunks (train.grad_cache_chunks)" if accumulate > 1 else ""
    )
    raise InputError(
      f"batch size {batch_size} cannot be shared equally by {mesh.size} devices"
      f"{chunks}: the nearest that can is {near}"
    )


def that_share(mesh: Mesh, batch_size: int) -> Mesh:
  """As many of the devices as can share a batch equally, equally many a process.

  For batch sizes that a recipe sets: 64 images go to 2 of 3 devices, to 8 of 12.

  Args:
    mesh: from `make_mesh`.
    batch_size: images in a batch.

  Returns:
    The mesh itself, or one of its first devices of each process.

  Raises:
    InputError: if not even one device of each process can.
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
  """Splits the host into as many simulated devices as help; before jax starts up.

  XLA runs a convolution on one CPU core; with one simulated device a core, the batch
  uses all of them, and the program is the sharded one that runs on a pod. Measured to
  pay on jax 0.10 and not on 0.12, hence the version test. A user's own choice (by
  `jax_num_cpu_devices` or XLA_FLAGS) is never overruled; accelerators are unaffected.

  Args:
    batch_size: images in a batch; each device gets an equal share.
    wanted: the number to use, as recorded by an earlier run; 0 to choose.

  Returns:
    The number of CPU devices that are now configured.
  """
  chosen_by_user = jax.config.values[
    "jax_num_cpu_devices"
  ] > 0 or "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
  if not chosen_by_user:
    if not wanted:
      cores = resources.cores()
      pays = jax.version.__version_info__ < (0, 11)
      wanted = max(n for n in range(1, cores + 1) if batch_size % n == 0) if pays else 1
    try:
      jax.config.update("jax_num_cpu_devices", wanted)
    except RuntimeError:
      # jax has started already, in a notebook say: what is there is used.
      logging.info("jax is running already: its %d devices stay", jax.device_count())
  return jax.local_device_count("cpu")
