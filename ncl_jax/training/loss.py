"""The loss of the train step: the form that fits the batch, and its temperature."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import losses, numerics
from ncl_jax.runtime import sharding as sharding_lib

# A device's share of the similarities up to which it holds them all at once. Beyond it
# tiles are as fast or faster, measured on a CPU, and need less memory.
PLAIN_BYTES = 16 * 2**20
# Gathered embeddings up to which every device holds them; beyond, they go round.
GATHER_BYTES = 2**30
# Rows of a tile: on a CPU as measured, elsewhere so that a tile fills the device.
CPU_BLOCK, BLOCK = 512, 2048


def form(rows: int, width: int, devices: int) -> str:
  """How NT-Xent is computed: by the memory that it would need.

  Args:
    rows: B = 2N, of the whole batch.
    width: D.
    devices: over which the batch is split.

  Returns:
    "plain": all similarities at once; "tiled": on one device; "gathered": on many,
    each with all embeddings; "ring": embeddings go from device to device.

  >>> form(512, 256, 1), form(65536, 256, 1), form(65536, 256, 8), form(2**21, 256, 8)
  ('plain', 'tiled', 'gathered', 'ring')
  """
  # Over devices the plain form sums the embeddings' gradients, as large as they are, on
  # each of them; the others send nothing of that size backward.
  sent = rows * width * 4 if devices > 1 else 0
  if max(rows * rows // devices * 4, sent) <= PLAIN_BYTES:
    return "plain"
  if devices == 1:
    return "tiled"
  return "gathered" if rows * width * 4 <= GATHER_BYTES else "ring"


def nt_xent(
  mesh: Mesh | None, precision: str = "highest"
) -> Callable[[jax.Array, Any], jax.Array]:
  """`losses.nt_xent` for batches that are split over a mesh, in the form that fits.

  Args:
    mesh: from `sharding.make_mesh`; None for one device.
    precision: of the matrix products.

  Returns:
    `f(z, temperature) -> [N, 2]` of global arrays, z [N, 2, D].
  """
  devices = mesh.size if mesh else 1
  block = CPU_BLOCK if sharding_lib.platform(mesh) == "cpu" else BLOCK

  def compute(z, temperature):
    chosen = form(2 * z.shape[0], z.shape[2], devices)
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

    # A number known now is left to the loss, which makes use of it.
    learnt = (temperature,) if isinstance(temperature, jax.Array) else ()
    rows = PartitionSpec(sharding_lib.AXIS)
    return jax.shard_map(
      part,
      mesh=mesh,
      in_specs=(rows, *(PartitionSpec() for _ in learnt)),
      out_specs=rows,
    )(z, *learnt)

  return compute


def sup_con(precision: str = "highest") -> Callable[..., jax.Array]:
  """`losses.sup_con` of the whole batch, by rows at a time where memory asks for it.

  Args:
    precision: of the matrix products.

  Returns:
    `f(z, labels, temperature) -> [N, 2]` of global arrays, z [N, 2, D].
  """
  block = CPU_BLOCK if jax.default_backend() == "cpu" else BLOCK

  def compute(z, labels, temperature):
    plain = form(2 * z.shape[0], z.shape[2], 1) == "plain"
    return losses.sup_con(
      z,
      labels,
      temperature=temperature,
      block_size=None if plain else block,
      precision=precision,
    )

  return compute


def clip(precision: str = "highest") -> Callable[..., jax.Array]:
  """`losses.clip` of the whole batch, by rows at a time where memory asks for it.

  Args:
    precision: of the matrix products.

  Returns:
    `f(z, temperature) -> [N]` of global arrays, z [N, 2, D], the towers side by side.
  """
  block = CPU_BLOCK if jax.default_backend() == "cpu" else BLOCK

  def compute(z, temperature):
    plain = form(2 * z.shape[0], z.shape[2], 1) == "plain"
    return losses.clip(
      z[:, 0],
      z[:, 1],
      temperature=temperature,
      block_size=None if plain else block,
      precision=precision,
    )

  return compute


def penalty(config: ConfigDict, z: jax.Array) -> jax.Array | float:
  """`l1 mean_n |f_n|_1`: sparsity that is asked for, as CL's control asks for it.

  Args:
    config: `loss.l1` is used.
    z: [N, V, D] features after the transform; rows are normalised here.

  Returns:
    [], between l1 and l1 sqrt(D); 0 where `loss.l1` is.
  """
  if not config.loss.l1:
    return 0.0
  f = numerics.l2_normalize(z)
  return config.loss.l1 * jnp.abs(f).sum(-1).mean()


def init(config: ConfigDict) -> dict[str, Any]:
  """What the loss learns: the logarithm of 1/T, where asked for; DINO's prototypes.

  Args:
    config: settings.

  Returns:
    {"loss": {"log_scale": []}} with `loss.learn_temperature`, {"prototypes": [K, D]}
    with DINO, to join the parameters; else {}.
  """
  learnt: dict[str, Any] = {}
  if config.loss.learn_temperature:
    learnt["loss"] = {"log_scale": -jnp.log(jnp.float32(config.loss.temperature))}
  if config.loss.name == "dino":
    shape = (config.loss.prototypes, config_lib.widths(config)["z"])
    # A key of its own: the network's are drawn from the seed's key itself.
    key = jax.random.fold_in(numerics.key(config.seed), 1)
    learnt["prototypes"] = jax.random.uniform(key, shape, minval=-1.0)
  return learnt


def temperature(config: ConfigDict, params: Any) -> Any:
  """T: the setting, or what has been learnt.

  Args:
    config: settings.
    params: {"loss"} of `init` among others.
  """
  if not config.loss.learn_temperature:
    return config.loss.temperature
  return jnp.exp(-params["loss"]["log_scale"])
