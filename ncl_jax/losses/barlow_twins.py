"""Barlow Twins' loss: the views' cross-correlation matrix should be the identity."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.losses.similarities import PRECISIONS, check_pairs, product
from ncl_jax.numerics import at_least_float32, on_any_mesh

EPSILON = 1e-5  # added to variances, that of BatchNorm in the released code


@on_any_mesh()
def barlow_twins(
  za: jax.typing.ArrayLike,
  zb: jax.typing.ArrayLike,
  *,
  off_diagonal: float = 0.0051,
  precision: str = "highest",
) -> jax.Array:
  """The cross-correlation matrix of two views against the identity.

  With `C_ij` the correlation of dimension i of one view with dimension j of the other
  over the batch, `sum_i (1 - C_ii)^2 + off_diagonal sum_{i != j} C_ij^2`.

  Variances are biased, and 1e-5 is added to them. A constant dimension therefore has
  correlation 0 with every other, costs 1, and has a finite gradient. Statistics cover
  the whole batch. Under `jax.jit` with the N axis sharded, devices exchange only sums
  of D and of D x D numbers.

  Args:
    za: [N, D] features of the first views, not normalised.
    zb: [N, D] features of the second views, in the same order.
    off_diagonal: weight of the second sum, the paper's lambda; at least 0.
    precision: of the matrix product: "highest", or "bfloat16".

  Returns:
    [] float32 (float64 if the features are); D if all dimensions are constant.

  Raises:
    InputError: other shapes or precision, or a weight below 0.

  Source: Zbontar et al. 2021 (arXiv:2103.03230), Eq. 1 and 2; lambda = 5e-3 there,
  0.0051 in the released code.

  >>> z = jnp.array([[1.0, 5.0], [-1.0, 5.0]])
  >>> print(barlow_twins(z, z).round(3))  # one perfect dimension, one constant
  1.0
  """
  check_pairs(za, zb)
  off_diagonal = checks.number("off_diagonal", off_diagonal, 0)
  checks.choice("precision", precision, PRECISIONS)
  a, b = _standardised(za), _standardised(zb)
  c = product(a.T, b, precision) / a.shape[0]
  own = jnp.diagonal(c)
  others = jnp.sum(c * c) - jnp.sum(own * own)
  return jnp.sum((1 - own) ** 2) + off_diagonal * others


def _standardised(z: jax.typing.ArrayLike) -> jax.Array:
  """Columns of mean 0 and variance 1 (up to `EPSILON`)."""
  z = at_least_float32(z)
  z = z - jnp.mean(z, axis=0, keepdims=True)
  return z * jax.lax.rsqrt(jnp.mean(z * z, axis=0, keepdims=True) + EPSILON)
