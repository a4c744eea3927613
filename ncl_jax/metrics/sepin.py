"""SEPIN: the information about an image that only one dimension carries."""

import functools

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.metrics.rows import counted, nan_unless
from ncl_jax.numerics import at_least_float32, l2_normalize, on_any_mesh

Array = jax.typing.ArrayLike


@on_any_mesh()
def sepin(
  f_a: Array,
  f_b: Array,
  *,
  temperature: Array,
  renormalize: bool = True,
  where: Array | None = None,
) -> jax.Array:
  """Information in each dimension that no other dimension has, by the InfoNCE bound.

  `SEPIN_i = I(x; f_i | f_others) = I(x; f) - I(x; f_others)`, estimated as
  `L(f without i) - L(f)` in nats. L is the InfoNCE loss of a row against its other view
  and the N - 1 other images in that view, `-log(exp(s_nn / T) / sum_m exp(s_nm / T))`
  with the cosine s, averaged over rows and both directions. The information is at most
  log N, so report N and T with the value. Noise does not score exactly 0: with one
  dimension fewer the cosines spread more, which costs about 1 / (2 T^2 D^2). Compare
  with noise of the same shape.

  All D leave-one-out losses take O(D N^2): `s_nm - a_ni b_mi`, divided by the remaining
  lengths of the rows. If one entry holds more than half of a row's squared length, this
  difference would be rounding error, and the row is recomputed without the entry.

  Args:
    f_a: [N, D] features of one view after the transform; rows are normalised here.
    f_b: [N, D] the same images' other view.
    temperature: T, above 0.
    renormalize: scale rows to unit length again after the removal; False keeps their
      length from before.
    where: [N] images to count, as rows and as candidates; None = all.

  Returns:
    [D]; exactly 0 for a dimension that is 0 throughout.

  Raises:
    InputError: wrong or different shapes, or temperature.

  Source: Do & Tran 2020, Theory and evaluation metrics for learning disentangled
  representations (arXiv:1908.09961); the bound: van den Oord et al. 2018
  (arXiv:1807.03748).

  >>> f = jnp.eye(3)[jnp.array([0, 1, 0, 1])]
  >>> [f"{x:.3f}" for x in sepin(f, f, temperature=0.5)]
  ['0.283', '0.283', '0.000']
  """
  checks.features("f_a", f_a)
  checks.features("f_b", f_b)
  if jnp.shape(f_a) != jnp.shape(f_b):
    raise InputError(
      f"f_a has shape {list(jnp.shape(f_a))} and f_b {list(jnp.shape(f_b))}: they must "
      "be two views of the same images"
    )
  temperature = checks.positive("temperature", temperature)
  a, valid = counted(f_a, where)
  b, _ = counted(f_b, where)
  return _sepin(l2_normalize(a), l2_normalize(b), valid, temperature, renormalize)


@on_any_mesh()
def sepin_at(
  scores: Array, k: int | None = None, *, ranked_by: Array | None = None
) -> jax.Array:
  """SEPIN@k: mean of the k largest scores.

  The largest of many noisy scores are partly large by chance. Ranking the dimensions by
  their scores on other images removes this bias.

  Args:
    scores: [D] from `sepin`.
    k: number of dimensions; None = all.
    ranked_by: [D] scores that rank the dimensions (the first of tied ones wins); None =
      `scores`.

  Returns:
    [] mean of the k scores; NaN if `ranked_by` contains NaN.

  Raises:
    InputError: k is not in 1..D, or different shapes.

  >>> float(sepin_at(jnp.array([0.125, 0.5, 0.25]), 2))
  0.375
  """
  ranked_by = scores if ranked_by is None else ranked_by
  shapes = checks.real("scores", scores), checks.real("ranked_by", ranked_by)
  if len(shapes[0]) != 1 or shapes[0] != shapes[1] or not shapes[0][0]:
    raise InputError(
      f"scores have shape {list(shapes[0])}, ranked_by {list(shapes[1])}: both must be "
      "[D], D at least 1"
    )
  scores, ranked_by = at_least_float32(scores), jnp.asarray(ranked_by)
  if k is None:
    return jnp.mean(scores)
  checks.whole("k", k, 1, len(scores))
  mean = jnp.mean(scores[jax.lax.top_k(ranked_by, k)[1]])
  return nan_unless(~jnp.any(jnp.isnan(ranked_by)), mean)


@functools.partial(jax.jit, static_argnames="renormalize")
def _sepin(a, b, valid, temperature, renormalize):
  pairs = valid[:, None] & valid[None]

  def losses(s):
    """[N] InfoNCE of the rows, mean of both directions."""
    s = s / temperature
    ab = jax.nn.logsumexp(s, axis=1, where=pairs)
    ba = jax.nn.logsumexp(s, axis=0, where=pairs)
    return (ab + ba) / 2 - jnp.diagonal(s)

  s = _product(a, b)
  whole = losses(s)
  # At most one entry of a row can hold more than half of its square length.
  largest_a, rest_a = _without_largest(a)
  largest_b, rest_b = _without_largest(b)
  if renormalize:
    new_a, new_b = _product(rest_a, b), _product(a, rest_b)
    both = _product(rest_a, rest_b)

  def without(i):
    x, y = a[:, i], b[:, i]
    left = s - x[:, None] * y[None]
    if renormalize:
      anew_x, anew_y = largest_a == i, largest_b == i
      length_x = jnp.where(anew_x, 1, jnp.sqrt(jnp.maximum(1 - x**2, 0)))[:, None]
      length_y = jnp.where(anew_y, 1, jnp.sqrt(jnp.maximum(1 - y**2, 0)))[None]
      anew_x, anew_y = anew_x[:, None], anew_y[None]
      left = jnp.where(anew_x, new_a, jnp.where(anew_y, new_b, left))
      left = jnp.where(anew_x & anew_y, both, left) / (length_x * length_y)
    change = jnp.where(valid, losses(left) - whole, 0)
    used = jnp.any(x != 0) | jnp.any(y != 0)
    # Exactly 0 for an unused dimension, not just up to rounding.
    return jnp.where(used, jnp.sum(change) / jnp.sum(valid, dtype=change.dtype), 0)

  return jax.lax.map(without, jnp.arange(a.shape[1]))


def _without_largest(x):
  """Index of the entry with over half of a row's squared length (or -1); the rest."""
  index = jnp.argmax(jnp.abs(x), axis=1)
  at = index[:, None] == jnp.arange(x.shape[1])[None]
  peaked = jnp.max(jnp.abs(x), axis=1) ** 2 > 0.5
  return jnp.where(peaked, index, -1), l2_normalize(jnp.where(at, 0, x))


def _product(x, y):
  return jnp.matmul(x, y.T, precision="highest")
