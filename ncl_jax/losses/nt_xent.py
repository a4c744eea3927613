"""NT-Xent: the contrastive loss of CL and NCL."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.losses import tiled
from ncl_jax.losses.similarities import PRECISIONS, all_pairs, check_views
from ncl_jax.numerics import on_any_mesh, reverse_mode_only

_NO_FORWARD_MODE = (
  "tiled nt_xent supports jax.grad and jax.hessian, not jax.jvp: leave block_size and "
  "axis_name out"
)


@on_any_mesh(rows="z")
def nt_xent(
  z: jax.typing.ArrayLike,
  *,
  temperature: jax.typing.ArrayLike,
  block_size: int | None = None,
  axis_name: str | None = None,
  ring: bool = False,
  precision: str = "highest",
) -> jax.Array:
  """NT-Xent, the contrastive loss of SimCLR: InfoNCE with in-batch negatives.

  With rows `f = z / |z|` and `s_ij = f_i . f_j / temperature`, row i with other view p
  costs `-log(exp(s_ip) / sum_{j != i} exp(s_ij))`: one positive, 2N - 2 negatives.
  Non-negative contrastive learning is the same loss of `nonneg.apply(z, name)`.

  An all-zero row has similarity 0 with every other row and gradient 0. A single example
  has no negatives and loss 0. Under `jax.jit` with the N axis sharded, negatives come
  from the whole batch, at the cost of one gather of the embeddings.

  Args:
    z: [N, 2, D] features of the two views of N examples, not normalised.
    temperature: above 0; the recipes use 0.2. May be a traced value.
    block_size: rows of a tile. The 2N x 2N similarity matrix is then never held in
      memory, forward or backward, and memory is linear in N. None: all at once. Arrays
      that are split over devices also need `axis_name`, or each tile is gathered.
      Tiles support reverse mode of any order and `jax.hessian`, but not `jax.jvp`.
    axis_name: inside `jax.shard_map`, the axis over which the examples are split. z is
      this device's part, and negatives come from all devices. Always tiled; without
      `block_size`, a tile has all rows of this device.
    ring: with `axis_name`, pass the embeddings from device to device, once forward and
      once backward, instead of gathering them: for batches that no device can hold.
    precision: of the matrix products: "highest", or "bfloat16".

  Returns:
    [N, 2] the loss of each view in nats, float32 (float64 if `z` is); the batch's loss
    is its mean.

  Raises:
    InputError: another shape or precision, a temperature that is not a finite number
      above 0, a block size that is not even, or a ring without an axis.

  Source: Chen et al. 2020 (arXiv:2002.05709), Eq. 1; the loss of Wang et al. 2024
  (arXiv:2403.12459).

  >>> z = jnp.array([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]])
  >>> print(nt_xent(z, temperature=0.5).round(2))
  [[0.24 0.24]
   [0.24 0.24]]
  """
  checks.choice("precision", precision, PRECISIONS)
  if ring and axis_name is None:
    raise InputError("ring = True: it needs axis_name, the devices to go round")
  if block_size is None and axis_name is None:
    s = all_pairs(z, temperature, precision)
    i = jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
    j = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
    positive = jnp.sum(jnp.where(j == i ^ 1, s, 0), axis=1)
    return (jax.nn.logsumexp(s, axis=1) - positive).reshape(-1, 2)

  check_views(z=z)
  temperature = checks.positive("temperature", temperature)
  z = jnp.asarray(z).reshape(-1, jnp.shape(z)[2])
  if block_size is not None:
    checks.whole("block_size", block_size, 2)
    if block_size % 2:
      raise InputError(f"block_size is {block_size}: it must be even, views are pairs")
  block = min(block_size or len(z), len(z))
  tiling = tiled.Tiling(block, precision, axis_name, ring)
  temperature = jnp.asarray(temperature, jnp.result_type(float))
  # One copy per device, so that its gradient is summed over the devices.
  temperature += jnp.zeros_like(z, temperature.dtype, shape=())
  with reverse_mode_only(_NO_FORWARD_MODE):
    return tiled.row_losses(z, temperature, tiling).reshape(-1, 2)
