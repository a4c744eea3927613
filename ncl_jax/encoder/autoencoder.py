"""The sparse autoencoder between embeddings and codes, and its losses."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from ncl_jax import nonneg, numerics

Array = jax.Array

# A unit is dead after more than this number of updates without being in any code, and
# at most so many dead units reconstruct the residual at a time: the values of the
# published code.
DEAD_AFTER = 30
AUXILIARY = 512


@dataclasses.dataclass(frozen=True)
class Autoencoder:
  """The network from an embedding x to its code z and back; hashable.

  `z = TopK(relu((x - p) W + b))` and `decode(z) = z V + p`, where V is W transposed if
  the decoder is tied.

  Attributes:
    out: D, dimensions of a code.
    active: k, largest number of active dimensions in a code; 0 = all.
    transform: the non-negative transform, see `nonneg.NAMES`.
    tied: whether the decoder is the encoder transposed.

  Source: Wen et al. 2025 (arXiv:2503.01776), Section 3; Gao et al. 2024
  (arXiv:2406.04093).
  """

  out: int
  active: int
  transform: str = "relu"
  tied: bool = True

  def init(self, key: Array, live: Array) -> dict[str, Array]:
    """Parameters for embeddings whose columns `live` [E] are not constant.

    Weights are uniform with the bound `E^-0.5` as in a linear layer of torch. Those of
    constant columns are 0, and stay 0, as neither code nor error depends on them.
    """
    bound = 1 / math.sqrt(len(live))
    kernel = jax.random.uniform(key, (len(live), self.out), minval=-bound, maxval=bound)
    kernel *= live[:, None]
    params = {
      "kernel": kernel,
      "bias": jnp.zeros(self.out),
      "pre_bias": jnp.zeros(len(live)),
    }
    # A free decoder also starts as the transpose: dead units are far fewer.
    return params if self.tied else params | {"decoder": kernel.T}

  def scores(self, params: dict[str, Array], x: Array) -> Array:
    """The transform of the encoder's output before TopK: [N, E] -> [N, D]."""
    z = (x - params["pre_bias"][None]) @ params["kernel"] + params["bias"][None]
    return nonneg.apply(z, self.transform)

  def codes(self, params: dict[str, Array], x: Array) -> Array:
    """[N, E] -> [N, D], not normalised."""
    return top_k(self.scores(params, x), (self.active,))[0]

  def decode(self, params: dict[str, Array], z: Array) -> Array:
    """[N, D] -> [N, E]."""
    decoder = params["kernel"].T if self.tied else params["decoder"]
    return z @ decoder + params["pre_bias"][None]


def top_k(z: Array, counts: tuple[int, ...]) -> tuple[Array, ...]:
  """Keeps the largest entries of each row and sets the others to 0, for each count.

  Of tied entries of z [N, D] the first are kept; a count of 0, D or more keeps all.

  >>> [rows.tolist() for rows in top_k(jnp.array([[4.0, 1.0, 3.0, 0.0]]), (1, 2))]
  [[[4.0, 0.0, 0.0, 0.0]], [[4.0, 0.0, 3.0, 0.0]]]
  """
  width = z.shape[-1]
  partial = [count for count in counts if 0 < count < width]
  if not partial:
    return (z,) * len(counts)
  values, columns = jax.lax.top_k(z, max(partial))
  # By position instead of value, because ties at the edge would make codes too long.
  rows = jnp.arange(len(z))[:, None]
  kept = {
    count: jnp.zeros_like(z).at[rows, columns[:, :count]].set(values[:, :count])
    for count in set(partial)
  }
  return tuple(kept.get(count, z) for count in counts)


def reconstruction(
  network: Autoencoder, params: Any, x: Array, scores: Array, silent: Array
) -> tuple[dict[str, Array], Array]:
  """The three reconstruction losses of CSR, and the codes that they are of.

  With the error `mse(a, b) = mean (a - b)^2` over all entries and the residual
  `e = x - decode(z_k)`:

  - "k": `mse(x, decode(z_k))`;
  - "4k": `mse(x, decode(z_4k))`, where z_4k has four times as many active dimensions;
  - "auxiliary": `mse(decode(a) - p, e) / mse(mean e, e)`, where a holds the `AUXILIARY`
    largest activations of dead units. The residual is a constant in its gradient.

  Args:
    network, params: the sizes and the weights.
    x: [N, E] what is to be reconstructed.
    scores: [N, D] from `network.scores`, of x or of a view of it.
    silent: [D] updates since a unit was last in a code.

  Source: Wen et al. 2025 (arXiv:2503.01776), Section 3.1, and its released code.
  """
  z, wide = top_k(scores, (network.active, 4 * network.active))
  decoded = network.decode(params, z)
  losses = {
    "k": jnp.mean((x - decoded) ** 2),
    "4k": jnp.mean((x - network.decode(params, wide)) ** 2),
  }
  dead = silent > DEAD_AFTER
  spare = jnp.where(dead[None], scores, 0)
  # What costs most is left out while no unit is dead, or few are.
  revived = jax.lax.switch(
    (dead.sum() > 0).astype(int) + (dead.sum() > AUXILIARY),
    (
      lambda: jnp.broadcast_to(params["pre_bias"][None], x.shape),
      lambda: network.decode(params, spare),
      lambda: network.decode(params, top_k(spare, (AUXILIARY,))[0]),
    ),
  )
  # The pre-bias on both sides, and constant on one, as released: it learns here too.
  target = jax.lax.stop_gradient(x - decoded + params["pre_bias"][None])
  error = jnp.mean((revived - target) ** 2)
  spread = jnp.mean((target - target.mean(0, keepdims=True)) ** 2)
  losses["auxiliary"] = numerics.safe_divide(error, spread)
  return losses, z
