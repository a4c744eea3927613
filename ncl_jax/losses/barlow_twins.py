"""Barlow Twins' loss: the views' dimensions correlate with their own, with no other."""

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

  Variances are biased and get 1e-5 added: a dimension that is constant has correlation
  0 with every other, costs 1, and its gradient is finite. Statistics are those of the
  whole batch; under `jax.jit` with the N axis sharded, only sums of D and of D x D
  numbers move between devices.

  Args:
    za: [N, D] features of the first views, not normalised.
    zb: [N, D] those of the second, pair by pair.
    off_diagonal: weight of the second sum, the paper's lambda; at least 0.
    precision: of the matrix product: "highest", or "bfloat16".

  Returns:
    [] float32 (float64 if the features are); D if no dimension carries anything.

  Raises:
    InputError: other shapes or precision.

  Source: Zbontar et al. 2021 (arXiv:2103.03230), Eq. 1 and 2; lambda = 5e-3 there,
  0.0051 in the released code.

  >>> z = jnp.array([[1.0, 5.0], [-1.0, 5.0]])
  >>> print(barlow_twins(z, z).round(3))  # one perfect dimension, one constant
  1.0
  """
  check_pairs(za, zb)
  checks.choice("precision", precision, PRECISIONS)
  a, b = _standardised(za), _standardised(zb)
  c = product(a.T, b, precision) / a.shape[0]
  own = jnp.diagonal(c)
  others = jnp.sum(c * c) - jnp.sum(own * own)
  return jnp.sum((1 - own) ** 2) + off_diagonal * others


def _standardised(z: jax.typing.ArrayLike) -> jax.Array:
  """Columns of mean 0 and, but for `EPSILON`, variance 1."""
  z = at_least_float32(z)
  z = z - jnp.mean(z, axis=0, keepdims=True)
  return z * jax.lax.rsqrt(jnp.mean(z * z, axis=0, keepdims=True) + EPSILON)
