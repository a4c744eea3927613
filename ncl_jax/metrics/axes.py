"""Whether single dimensions stand for classes, and how much the axes matter.

`f` is [N, D]: features after the transform, with L2-normalised rows unless said
otherwise. Rows with label -1 are ignored. `naming_accuracy` and the purities work
under `jax.jit` with `num_classes`, `signed` and `budget` static.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.metrics.consistency import activated
from ncl_jax.metrics.rows import counted, labelled, nan_unless
from ncl_jax.numerics import (
  at_least_float32,
  on_any_mesh,
  safe_divide,
  undefined_is_nan,
)

Array = jax.typing.ArrayLike


@on_any_mesh()
def naming_accuracy(
  train_f: Array,
  train_labels: Array,
  f: Array,
  labels: Array,
  num_classes: int,
  *,
  signed: bool = False,
) -> jax.Array:
  """Accuracy with which the strongest dimension names an image's class.

  Each dimension is named after the class that activates it most in training,
  `c_d = argmax_c sum_(n: y_n = c) max(f_nd, 0)`. An image gets the name of its largest
  `f_nd / sd_d`, where `sd_d` is the standard deviation over the training rows. Tied
  classes or dimensions count with equal fractions. A dimension that is constant or
  never positive in training has no name. An image without a positive entry in a named
  dimension counts as wrong. There is no threshold and no budget, so all images have the
  same weight.

  Permuting dimensions or scaling them by positive factors does not change the value.
  One-hot codes of pure sub-classes score 1, and their rotations less. Features that are
  independent of the labels score at chance: at most the share of the commonest class.

  Args:
    train_f: [M, D] features that name the dimensions.
    train_labels: [M] int in -1..num_classes-1.
    f: [N, D] features to score.
    labels: [N] int in -1..num_classes-1.
    signed: treat `f_d` and `-f_d` as separate dimensions, for features without a
      preferred sign.

  Returns:
    [] in 0..1; NaN if either set has no labelled row. Under `jax.jit`, where values
    cannot be checked, also NaN if a labelled row is not finite.

  Raises:
    InputError: wrong shape, labels or number of classes, or NaN or infinity in a
      labelled row.

  >>> train = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
  >>> test = jnp.array([[0.8, 0.2], [0.1, 0.9], [0.0, 0.0], [1.0, 0.0]])
  >>> y, test_y = jnp.array([0, 0, 1]), jnp.array([0, 1, 1, 0])
  >>> print(naming_accuracy(train, y, test, test_y, num_classes=2))
  0.75
  """
  train_f, known, onehot = labelled(train_f, train_labels, num_classes, prefix="train_")
  f, valid, truth = labelled(f, labels, num_classes)
  checks.same_width("train_f", train_f, "f", f)
  train_f = jnp.where(known[:, None], train_f, 0)
  f = jnp.where(valid[:, None], f, 0)
  finite = jnp.all(jnp.isfinite(train_f)) & jnp.all(jnp.isfinite(f))
  # Only ratios within a dimension matter, so scale to keep squares in range.
  size = jnp.max(jnp.abs(train_f), axis=0, keepdims=True)
  train_f, f = safe_divide(train_f, size), safe_divide(f, size)
  count = jnp.sum(known, dtype=f.dtype)
  some = jnp.maximum(count, 1)
  mean = jnp.sum(train_f, axis=0, keepdims=True) / some
  deviation = jnp.where(known[:, None], train_f - mean, 0)
  sd = jnp.sqrt(jnp.sum(deviation**2, axis=0, keepdims=True) / some)
  # Rounding alone gives a constant dimension a small deviation.
  sd = jnp.where(sd > 8 * jnp.finfo(sd.dtype).eps, sd, 0)
  if signed:
    train_f, f = (jnp.concatenate([x, -x], axis=1) for x in (train_f, f))
    sd = jnp.concatenate([sd, sd], axis=1)
  mass = jnp.matmul(jnp.maximum(train_f, 0).T, onehot, precision="highest")
  most = jnp.max(mass, axis=1, keepdims=True)
  names = _shares((mass == most) & (most > 0), f.dtype)
  named = (sd > 0) & (most.T > 0)
  strength = jnp.where(named, safe_divide(f, sd), 0)
  best = jnp.max(strength, axis=1, keepdims=True)
  choice = _shares((strength == best) & (best > 0), f.dtype)
  guess = jnp.matmul(choice, names, precision="highest")
  hits = jnp.sum(guess * jnp.where(valid[:, None], truth, 0))
  with undefined_is_nan():
    return jnp.where(
      finite & (count > 0), hits / jnp.sum(valid, dtype=f.dtype), jnp.nan
    )


@on_any_mesh()
def energy_weighted_purity(
  f: Array, labels: Array, num_classes: int, *, budget: float
) -> jax.Array:
  """Mean purity of the dimensions, weighted by their share of the features' energy.

  `sum_d w_d p_d`, where `w_d` is proportional to `mean_n f_nd^2`, and `p_d` is the
  share of the commonest class among the `ceil(budget N)` largest values of dimension d
  (`metrics.purity`). The weights keep many hardly used dimensions from hiding the few
  used ones. For a constant non-zero dimension `p_d` is the share of the commonest
  class.

  Permuting dimensions, or scaling all by one factor, does not change the value. It
  depends on the budget: use at most half of the smallest class, and compare with the
  value for permuted labels. On noise-free clusters it cannot tell axes from their
  rotation; `naming_accuracy` can.

  Args:
    labels: [N] int in -1..num_classes-1.
    budget: share of the labelled rows, above 0 and at most 1.

  Returns:
    [] in 0..1; NaN if all features are 0. Under `jax.jit`, where values cannot be
    checked, also NaN if a labelled row is not finite.

  Raises:
    InputError: wrong shape, labels, number of classes or budget, or NaN or infinity in
      a labelled row.

  >>> f = jnp.array([[3.0, 0.0], [2.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
  >>> labels = jnp.array([0, 0, 1, 0])
  >>> print(energy_weighted_purity(f, labels, num_classes=2, budget=0.5).round(3))
  0.938
  """
  f, valid, onehot = labelled(f, labels, num_classes)
  f = jnp.where(valid[:, None], f, 0)
  weight = activated(f, budget, where=valid)
  # A constant dimension has no largest entries, so all of them count.
  weight = jnp.where(jnp.isnan(weight), 1, weight)
  onehot = jnp.where(valid[:, None], onehot, 0)
  counts = jnp.matmul(weight.T, onehot, precision="highest")
  purity = jnp.max(counts, axis=1) / jnp.sum(counts, axis=1)
  with undefined_is_nan():
    energy = jnp.sum((f / jnp.max(jnp.abs(f))) ** 2, axis=0)
    # 0 / 0 if all features are 0. Values that are not finite survive the scaling.
    return jnp.sum(energy * purity) / jnp.sum(energy)


@on_any_mesh()
def purity_at(f: Array, labels: Array, num_classes: int, counts: Array) -> jax.Array:
  """Share of the commonest class among the k largest values, for several k.

  Like `metrics.purity`, but with a number of rows instead of a fraction. Rows that tie
  at the k-th largest value count with equal fractions.

  Args:
    labels: [N] int in -1..num_classes-1.
    counts: [M] values of k, from 1 to the number of labelled rows; others give NaN.

  Returns:
    [D, M] in 0..1; NaN for a dimension that is constant over the labelled rows. Under
    `jax.jit`, where values cannot be checked, also NaN for a dimension with NaN or
    infinity in a labelled row.

  Raises:
    InputError: wrong shape, labels, counts or number of classes.

  >>> f = jnp.array([[3.0], [2.0], [1.0], [0.0]])
  >>> purity_at(f, jnp.array([0, 0, 1, 1]), 2, jnp.array([1, 4])).tolist()
  [[1.0, 0.5]]
  """
  f, valid, onehot = labelled(f, labels, num_classes)
  counts = _numbers_of_rows(counts, len(f))
  onehot = jnp.where(valid[:, None], onehot, 0)
  rows = jnp.sum(valid)

  def of_dimension(column):
    order = jnp.argsort(jnp.where(valid, -column, jnp.inf))
    falling = jnp.where(valid[order], column[order], -jnp.inf)
    total = jnp.concatenate([jnp.zeros((1, num_classes), f.dtype), onehot[order]])
    total = jnp.cumsum(total, axis=0)  # [N + 1, K] classes of the k largest
    cut = falling[jnp.clip(counts - 1, 0, len(falling) - 1)]
    first = jnp.searchsorted(-falling, -cut, side="left")
    last = jnp.searchsorted(-falling, -cut, side="right")
    share = (counts - first).astype(f.dtype) / (last - first).astype(f.dtype)
    found = total[first] + share[:, None] * (total[last] - total[first])
    constant = falling[0] == falling[jnp.maximum(rows - 1, 0)]
    unknown = jnp.any(~jnp.isfinite(column) & valid)
    defined = (counts >= 1) & (counts <= rows) & ~constant & ~unknown
    return jnp.where(defined, jnp.max(found, axis=1) / counts.astype(f.dtype), jnp.nan)

  with undefined_is_nan():
    return jax.lax.map(of_dimension, f.T)


@on_any_mesh()
def consistency_at_matched_rates(
  f: Array,
  other: Array,
  labels: Array,
  num_classes: int,
  threshold: float = 1e-5,
  minimum: int = 10,
) -> tuple[jax.Array, jax.Array]:
  """Class consistency of two sets of features at the same activation rates.

  Dimension d of the sparse `f` is active on `a_d` images, and its consistency is its
  purity there. For `other`, the purity of the `a_d` largest values is averaged over all
  dimensions. Both are then averaged over the `d` with `a_d >= minimum`. A difference
  therefore comes neither from activation rates nor from rare dimensions.

  Args:
    f: [N, D] sparse features.
    other: [N, E] features of the same images.
    labels: [N] int in -1..num_classes-1.
    threshold: `f_d` is active above it.
    minimum: dimensions of `f` with fewer active images are left out.

  Returns:
    `(consistency of f, consistency of other)`, both [] in 0..1; NaN if no dimension has
    `minimum` active images. Under `jax.jit`, where values cannot be checked, also NaN
    if a labelled row of either is not finite.

  Raises:
    InputError: wrong shape, labels or number of classes.

  >>> f = jnp.array([[1.0], [1.0], [0.0], [0.0]])
  >>> other = jnp.array([[3.0], [0.0], [2.0], [1.0]])
  >>> y = jnp.array([0, 0, 1, 1])
  >>> [float(x) for x in consistency_at_matched_rates(f, other, y, 2, minimum=2)]
  [1.0, 0.5]
  """
  threshold = checks.number("threshold", threshold)
  f, valid, onehot = labelled(f, labels, num_classes)
  on = (f > threshold) & valid[:, None]
  active = jnp.sum(on, axis=0, dtype=jnp.int32)
  counts = jnp.matmul(on.T.astype(f.dtype), onehot, precision="highest")
  with undefined_is_nan():
    own = jnp.max(counts, axis=1) / active.astype(f.dtype)
    others = jnp.nanmean(purity_at(other, labels, num_classes, active), axis=0)
    # If all labelled images are active, both sides use all images.
    others = jnp.where(active == jnp.sum(valid), own, others)
    enough = active >= minimum
    both = (jnp.where(enough, x, jnp.nan) for x in (own, others))
    own, others = (jnp.nanmean(x) for x in both)
  finite = [jnp.isfinite(x).all(axis=1) for x in (f, at_least_float32(other))]
  good = jnp.all(finite[0] & finite[1] | ~valid)
  return nan_unless(good, own), nan_unless(good, others)


@on_any_mesh()
def axis_gain(
  measure: Callable[[jax.Array], Array], f: Array, key: Array, *, draws: int = 10
) -> tuple[jax.Array, jax.Array]:
  """Returns how much a measure depends on the choice of axes.

  The gain is `measure(f) - E_Q measure(f Q)` over random rotations Q (Haar, with
  reflections). A rotation preserves distances, rank and linear-probe accuracy, so a
  positive gain means that the individual axes carry meaning. Compare the values too:
  rotated sparse features can score below features that were never sparse.

  Args:
    measure: maps features [N, D] to a scalar. For a measure of training and test
      features, stack them as `f` and split them inside.
    key: random key of the rotations.

  Returns:
    `(gain, rotated)`: `measure(f) - rotated`, and the mean under rotation; both [].

  Raises:
    InputError: wrong shape or number of draws.

  >>> f = jnp.eye(4).repeat(5, axis=0)
  >>> gain, rotated = axis_gain(lambda x: jnp.mean(x == 0), f, jax.random.key(0))
  >>> float(gain), float(rotated)
  (0.75, 0.0)
  """
  checks.whole("draws", draws, 1)
  f, _ = counted(f, None)
  values = [
    measure(jnp.matmul(f, _rotation(k, f.shape[1], f.dtype), precision="highest"))
    for k in jax.random.split(key, draws)
  ]
  rotated = jnp.mean(jnp.stack([jnp.asarray(value) for value in values]))
  return jnp.asarray(measure(f)) - rotated, rotated


def _numbers_of_rows(counts: Array, rows: int) -> jax.Array:
  """`counts` as int32; what lies beyond all rows stays beyond them."""
  found: Any = checks.array("counts", counts)
  if found.ndim != 1 or not jnp.issubdtype(found.dtype, jnp.integer):
    raise InputError(
      f"counts are {found.dtype}{list(found.shape)}: they must be integers [M]"
    )
  if found.dtype.itemsize == 8:
    found = found.clip(0, rows + 1)  # before the cast, which wraps
  return jnp.asarray(found.astype(np.int32))


def _rotation(key: jax.Array, width: int, dtype: jnp.dtype) -> jax.Array:
  """An orthogonal matrix [width, width], uniformly distributed."""
  q, r = jnp.linalg.qr(jax.random.normal(key, (width, width), dtype))
  # Without the signs the distribution would depend on the algorithm, and not be Haar.
  return q * jnp.where(jnp.diag(r) < 0, -1, 1)[None]


def _shares(chosen: jax.Array, dtype: jnp.dtype) -> jax.Array:
  """Divides each row by its number of ones; rows without ones stay 0."""
  chosen = chosen.astype(dtype)
  return safe_divide(chosen, jnp.sum(chosen, axis=1, keepdims=True))
