"""Losses of a whole batch on a mesh, by the implementation that fits its memory."""

from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from ncl_jax import losses
from ncl_jax.methods.record import LossInputs
from ncl_jax.runtime import sharding as sharding_lib

# Similarities on a device up to which it holds them all at once. Beyond that,
# tiles are as fast or faster, measured on a CPU, and need less memory.
PLAIN_BYTES = 16 * 2**20
# Gathered embeddings up to which every device holds them; beyond, a ring passes them.
GATHER_BYTES = 2**30
# Rows of a tile: on a CPU as measured, elsewhere so that a tile fills the device.
CPU_BLOCK, BLOCK = 512, 2048


def choose(rows: int, width: int, devices: int) -> str:
  """Returns how NT-Xent is computed, by the memory that it would need.

  Args:
    rows: B = 2N, of the whole batch.
    width: D.
    devices: over which the batch is split.

  Returns:
    "plain": all similarities at once; "tiled": on one device; "gathered": on many,
    each with all embeddings; "ring": embeddings pass from device to device.

  >>> choose(512, 256, 1), choose(65536, 256, 1)
  ('plain', 'tiled')
  >>> choose(65536, 256, 8), choose(2**21, 256, 8)
  ('gathered', 'ring')
  """
  # Over devices the plain one sums the embeddings' gradients, as large as they are, on
  # each of them; the others send nothing of that size backward.
  sent = rows * width * 4 if devices > 1 else 0
  if max(rows * rows // devices * 4, sent) <= PLAIN_BYTES:
    return "plain"
  if devices == 1:
    return "tiled"
  return "gathered" if rows * width * 4 <= GATHER_BYTES else "ring"


def each_nt_xent(
  z: jax.Array, temperature: Any, mesh: Mesh | None, precision: str = "highest"
) -> jax.Array:
  """`losses.nt_xent` [N, 2] of global arrays split over a mesh; see `choose`.

  Args:
    mesh: from `sharding.make_mesh`; None for one device.
  """
  block = CPU_BLOCK if sharding_lib.platform(mesh) == "cpu" else BLOCK
  chosen = choose(2 * z.shape[0], z.shape[2], mesh.size if mesh else 1)
  if chosen in ("plain", "tiled"):
    size = None if chosen == "plain" else block
    return losses.nt_xent(
      z, temperature=temperature, block_size=size, precision=precision
    )

  def part(z, *learnt):
    return losses.nt_xent(
      z,
      temperature=learnt[0] if learnt else temperature,
      block_size=block,
      axis_name=sharding_lib.AXIS,
      ring=chosen == "ring",
      precision=precision,
    )

  # A known number is left to the loss, which checks it.
  learnt = (temperature,) if isinstance(temperature, jax.Array) else ()
  rows = PartitionSpec(sharding_lib.AXIS)
  return jax.shard_map(
    part, mesh=mesh, in_specs=(rows, *(PartitionSpec() for _ in learnt)), out_specs=rows
  )(z, *learnt)


def nt_xent(given: LossInputs) -> jax.Array:
  """The mean of `each_nt_xent`, []."""
  precision = given.settings.precision
  return each_nt_xent(given.f, given.temperature, given.mesh, precision).mean()


def sup_con(given: LossInputs) -> jax.Array:
  """The mean of `losses.sup_con` over the batch, in blocks of rows if it is large."""
  return losses.sup_con(given.f, given.labels, **_similarities(given)).mean()


def clip(given: LossInputs) -> jax.Array:
  """The mean of `losses.clip` over the batch, in blocks of rows if it is large."""
  return losses.clip(given.f[:, 0], given.f[:, 1], **_similarities(given)).mean()


def _similarities(given: LossInputs) -> dict[str, Any]:
  rows, _, width = given.f.shape
  block = CPU_BLOCK if jax.default_backend() == "cpu" else BLOCK
  return {
    "temperature": given.temperature,
    "precision": given.settings.precision,
    "block_size": None if choose(2 * rows, width, 1) == "plain" else block,
  }
