"""VICReg's loss: invariance of views, variance and covariance of dimensions."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.losses.similarities import PRECISIONS, check_pairs, product
from ncl_jax.numerics import at_least_float32, on_any_mesh

EPSILON = 1e-4  # added to variances before the root, as in the paper


@on_any_mesh()
def vicreg(
  za: jax.typing.ArrayLike,
  zb: jax.typing.ArrayLike,
  *,
  invariance: float = 25.0,
  variance: float = 25.0,
  covariance: float = 1.0,
  precision: str = "highest",
) -> jax.Array:
  """Invariance, variance and covariance of two views, weighted.

  `invariance mean_nd (a_nd - b_nd)^2 + variance (v(a) + v(b)) + covariance (c(a) +
  c(b))`, where `v(z) = mean_d max(0, 1 - sqrt(var_d + 1e-4))` and `c(z) =
  sum_{i != j} C_ij^2 / D`, C the covariance matrix; variances and covariances are
  unbiased and cover the whole batch.

  Constant dimensions have a finite gradient (0 through v where z is exactly constant).
  Under `jax.jit` with the N axis sharded, devices exchange only sums of D and of D x D
  numbers.

  Args:
    za: [N, D] features of the first views, not normalised; N at least 2.
    zb: [N, D] features of the second views, in the same order.
    invariance, variance, covariance: weights of the three terms.
    precision: of the matrix products: "highest", or "bfloat16".

  Returns:
    [] float32 (float64 if the features are). If nothing varies it is
    `2 variance 0.99`.

  Raises:
    InputError: other shapes or precision, or a single pair.

  Source: Bardes, Ponce & LeCun 2021 (arXiv:2105.04906), Eq. 1-6; the first term is also
  a mean over dimensions, as in the paper's Algorithm 1. The released code halves v.

  >>> z = jnp.array([[2.0, 0.0], [0.0, 2.0], [-2.0, 0.0], [0.0, -2.0]])
  >>> print(vicreg(z, z), vicreg(0 * z, 0 * z).round(2))  # spread out, collapsed
  0.0 49.5
  """
  check_pairs(za, zb)
  invariance = checks.number("invariance", invariance)
  variance = checks.number("variance", variance)
  covariance = checks.number("covariance", covariance)
  checks.choice("precision", precision, PRECISIONS)
  a, b = at_least_float32(za), at_least_float32(zb)
  if len(a) < 2:
    raise InputError("za and zb have 1 row: a variance needs at least 2")

  def spread(z: jax.Array) -> jax.Array:
    z = z - jnp.mean(z, axis=0, keepdims=True)
    c = product(z.T, z, precision) / (len(z) - 1)
    own = jnp.diagonal(c)
    hinge = jnp.mean(jax.nn.relu(1 - jnp.sqrt(own + EPSILON)))
    others = (jnp.sum(c * c) - jnp.sum(own * own)) / z.shape[1]
    return variance * hinge + covariance * others

  return invariance * jnp.mean((a - b) ** 2) + spread(a) + spread(b)
