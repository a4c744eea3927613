"""The spectral contrastive loss: factorises the matrix of positive pairs."""

import functools

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.losses.similarities import PRECISIONS, check_views, product, rounded
from ncl_jax.numerics import at_least_float32, on_any_mesh


@on_any_mesh()
def spectral(
  z: jax.typing.ArrayLike,
  weights: jax.typing.ArrayLike | None = None,
  *,
  precision: str = "highest",
) -> jax.Array:
  """Spectral contrastive loss: aligns pairs and makes all others orthogonal.

  With f_n, f'_n the two views of example n, not normalised,
  `-2 mean_n f_n . f'_n + mean_{i != j} (f_i . f'_j)^2`, where the negatives are the N
  (N - 1) pairs across views. For non-negative features this loss makes NCL equal to
  non-negative matrix factorisation.

  If z lists a whole space of pairs with the probability of each, the expectations are
  exact: `-2 sum_n w_n f_n . f'_n + sum_ij w_i w_j (f_i . f'_j)^2`. This includes i = j,
  because the members of a negative pair are drawn independently. If each pair is listed
  in both orders, this is `||A - F F^T||^2 - ||A||^2`, with `A = C^-1/2 P C^-1/2`, P(x,
  x') the probabilities of pairs, C the diagonal matrix of P(x), and `F_x = sqrt(P(x))
  f(x)`.

  The cost is linear in N: `sum_ij (f_i . f'_j)^2` is the inner product of the two
  views' second moments. Under `jax.jit` with the N axis sharded, devices exchange only
  these moments.

  Args:
    z: [N, 2, D] features of the two views of N examples; not normalised here.
    weights: [N] at least 0, proportional to the pairs' probabilities, without gradient.
      None: z is a sample.
    precision: of the matrix products: "highest", or "bfloat16".

  Returns:
    [] float32 (float64 if `z` is). A sample of one has no negatives.

  Raises:
    InputError: other shapes or precision.

  Source: HaoChen et al. 2021 (arXiv:2106.04156), Eq. 6; Wang et al. 2024
  (arXiv:2403.12459).

  >>> z = jnp.array([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 1.0]]])
  >>> print(spectral(z))
  -1.5
  """
  check_views(z=z)
  checks.choice("precision", precision, PRECISIONS)
  f = at_least_float32(z)
  n = f.shape[0]
  if weights is None:
    positive = jnp.sum(_positive(f, precision), axis=1)
    pull = jnp.mean(positive)
    if n == 1:
      return -2 * pull
    push = _sum_of_squares(f, precision) - jnp.sum(positive**2)
    push /= float(n * (n - 1))
  else:
    if checks.real("weights", weights) != (n,):
      raise InputError(
        f"weights have shape {list(jnp.shape(weights))}: they must be [N], one for "
        f"each pair of z {list(jnp.shape(z))}"
      )
    w = jax.lax.stop_gradient(jnp.asarray(weights, f.dtype))
    f *= jnp.sqrt(w / jnp.sum(w))[:, None, None]
    pull = jnp.sum(_positive(f, precision))
    push = _sum_of_squares(f, precision)
  return push - 2 * pull


def _positive(f: jax.Array, precision: str) -> jax.Array:
  f = rounded(f, precision)
  return f[:, 0] * f[:, 1]


def _sum_of_squares(f: jax.Array, precision: str) -> jax.Array:
  """`sum_ij (f_i0 . f_j1)^2`, from the smaller of the N x N and D x D matrices."""
  n, _, d = f.shape
  if n < d:
    return jnp.sum(product(f[:, 0], f[:, 1].T, precision) ** 2)
  return _by_moments(f, precision)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def _by_moments(f: jax.Array, precision: str) -> jax.Array:
  """`sum_ij (f_i0 . f_j1)^2` as the inner product of the moments M_0 and M_1.

  The derivative by f_i0 is `2 f_i0 M_1`, and by f_j1 it is `2 f_j1 M_0`. This saves one
  product of autodiff's, and no device needs another device's rows.
  """
  moments = _moments(f, precision)
  return jnp.sum(moments[0] * moments[1])


@_by_moments.defjvp
def _by_moments_jvp(precision, primals, tangents):
  (f,), (change,) = primals, tangents
  moments = _moments(f, precision)
  slope = product(f.swapaxes(0, 1), moments[::-1], precision).swapaxes(0, 1)
  return jnp.sum(moments[0] * moments[1]), 2 * jnp.sum(slope * change)


def _moments(f: jax.Array, precision: str) -> jax.Array:
  """[2, D, D] `sum_n f_nv f_nv^T` of both views."""
  views = f.swapaxes(0, 1)
  return product(views.swapaxes(1, 2), views, precision)
