"""Class consistency: do the samples that activate a dimension share a class?

`f` is [N, D]: features after the transform. `where` [N] marks the rows that count; None
= all. Rows with label -1 are unlabelled and ignored. All functions refuse NaN and
infinity in a row that counts. They work under `jax.jit` with `num_classes`, `rule` and
`budget` static. Values cannot be checked there, so a dimension with such an entry gives
NaN.
"""

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.metrics.rows import counted, labelled, largest, nan_unless
from ncl_jax.numerics import entropy, on_any_mesh, undefined_is_nan

Array = jax.typing.ArrayLike
RULES = ("abs", "positive")


@on_any_mesh()
def class_consistency(
  f: Array,
  labels: Array,
  num_classes: int,
  rule: str = "abs",
  threshold: float = 1e-5,
  *,
  where: Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Share of the most frequent class among the samples that activate a dimension.

  `rate_d = max_c #(n active in d, y_n = c) / #(n active in d)`. A dimension with few
  active samples scores high by chance, so compare `rate` with `active`, with `purity`,
  and with the rates for shuffled labels. Features without exact zeros are at chance
  under "abs".

  Args:
    labels: [N] int in -1..num_classes-1; rows with -1 are not counted.
    rule: the definition of "active": "abs" is `|f| > threshold` (the released code);
      "positive" is `f > 0`, regardless of the threshold (fits the paper's figures for
      CL).
    threshold: see `rule`.

  Returns:
    `(rate [D], active [D])`: rate in 0..1, NaN for a dead dimension; active is the
    number of samples that activate the dimension, int32.

  Raises:
    InputError: wrong shape, number of classes, or rule.

  >>> f = jnp.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [1.0, 0.0]])
  >>> rate, active = class_consistency(f, jnp.array([0, 1, 1, 1]), num_classes=2)
  >>> rate.tolist(), active.tolist()
  ([0.75, nan], [4, 0])
  """
  counts, known = _active_counts(f, labels, num_classes, rule, threshold, where)
  active = jnp.sum(counts, axis=1)
  with undefined_is_nan():
    # 0 / 0 gives NaN for a dead dimension.
    rate = jnp.max(counts, axis=1) / active
  return nan_unless(known, rate), active.astype(jnp.int32)


@on_any_mesh()
def label_entropy(
  f: Array,
  labels: Array,
  num_classes: int,
  rule: str = "abs",
  threshold: float = 1e-5,
  *,
  where: Array | None = None,
) -> jax.Array:
  """Entropy of the classes of the samples that activate a dimension.

  `H_d = -sum_c p_c log p_c`, `p_c = #(n active in d, y_n = c) / #(n active in d)`. It
  is 0 if they share one class. Unlike consistency it distinguishes two classes from
  many.

  The arguments are those of `class_consistency`.

  Returns:
    [D] in nats, 0..log K; NaN for a dead dimension.

  Raises:
    InputError: as `class_consistency`.

  >>> f = jnp.array([[1.0, 0.0], [1.0, 2.0], [0.0, 2.0]])
  >>> label_entropy(f, jnp.array([0, 1, 1]), num_classes=2).round(2).tolist()
  [0.6899999976158142, 0.0]
  """
  counts, known = _active_counts(f, labels, num_classes, rule, threshold, where)
  with undefined_is_nan():
    spread = entropy(counts / jnp.sum(counts, axis=1, keepdims=True))
  return nan_unless(known, spread)


@on_any_mesh()
def purity(
  f: Array,
  labels: Array,
  num_classes: int,
  budget: float = 0.03,
  *,
  where: Array | None = None,
) -> jax.Array:
  """Class consistency at a matched activation rate: the same budget per dimension.

  The `m = ceil(budget N)` largest samples of a dimension count as activated, whatever
  their values, so sparse and dense features are treated alike. If more samples tie at
  the m-th largest value than places are left (a rectified dimension with fewer than m
  positive entries has a tail of zeros), each of them counts with the same fraction:
  `purity_d = max_c E[count_c] / m`, where the expectation is over the order of the tied
  samples. This never exceeds the mean purity under random tie-breaking, and it does not
  depend on the order of samples.

  Args:
    labels: [N] int in -1..num_classes-1; rows with -1 are not counted.
    budget: share of the counted samples, above 0 and at most 1.

  Returns:
    [D] in 0..1; NaN for a dimension that is constant over the counted samples.

  Raises:
    InputError: wrong shape, number of classes, or budget.

  >>> f = jnp.array([[3.0, 0.0], [2.0, 0.0], [1.0, 5.0], [0.0, 0.0], [0.0, 0.0]])
  >>> purity(f, jnp.array([0, 0, 1, 1, 1]), num_classes=2, budget=0.4).tolist()
  [1.0, 0.75]
  """
  f, valid, onehot = labelled(f, labels, num_classes, where)
  weight = activated(f, budget, where=valid)
  with undefined_is_nan():
    counts = jnp.matmul(weight.T, onehot, precision="highest")
    return jnp.max(counts, axis=1) / jnp.sum(weight, axis=0)


@on_any_mesh(rows="f")
def activated(
  f: Array, budget: float = 0.03, *, where: Array | None = None
) -> jax.Array:
  """The samples that activate each dimension at a matched rate, as weights.

  The m = ceil(budget N) largest samples of a dimension have weight 1 and all others 0.
  If more samples tie at the m-th largest value than places are left, each of them has
  the same fractional weight. For attributes `marks` [N, M] of the samples,
  `activated(f).T @ marks / m` is the share of a dimension's activated samples with each
  attribute.

  Args:
    budget: share of the counted samples, above 0 and at most 1.

  Returns:
    [N, D] in 0..1; columns sum to m. NaN for a dimension that is constant over the
    counted samples. Rows that do not count are 0.

  Raises:
    InputError: wrong shape or budget.

  >>> activated(jnp.array([[3.0], [1.0], [0.0], [0.0]]), budget=0.75).T.tolist()
  [[1.0, 1.0, 0.5, 0.5]]
  """
  budget = checks.positive("budget", budget)
  if budget > 1:
    raise InputError(f"budget = {budget!r}: it must be at most 1")
  f, valid = counted(f, where)
  # A table on the host: 0.07 * 100 is just above 7 in floats, and `ceil` would make
  # it 8.
  table = np.ceil(np.round(budget * np.arange(f.shape[0] + 1), 6)).astype(np.int32)
  table[1:] = np.maximum(table[1:], 1)  # the rounding may turn a small budget into 0
  m = jnp.asarray(table)[jnp.sum(valid)]
  low = jnp.where(valid[:, None], f, -jnp.inf)
  top, _ = largest(low.T, int(table[-1]))
  cut = top[:, m - 1]
  above = low > cut[None]
  tied = (low == cut[None]) & valid[:, None]
  # The maximum matters only if no row counts; else at least one sample has the value.
  room = (m - jnp.sum(above, axis=0)) / jnp.maximum(jnp.sum(tied, axis=0), 1)
  constant = top[:, 0] == jnp.min(jnp.where(valid[:, None], f, jnp.inf), axis=0)
  weight = jnp.where(above, 1, jnp.where(tied, room[None], 0)).astype(f.dtype)
  known = jnp.all(jnp.isfinite(f), axis=0) & ~constant
  return nan_unless(~valid[:, None] | known[None], weight)


def _active_counts(f, labels, num_classes, rule, threshold, where):
  """[D, K] active samples of each class; [D] whether the dimension is finite."""
  checks.choice("rule", rule, RULES)
  threshold = checks.number("threshold", threshold)
  f, valid, onehot = labelled(f, labels, num_classes, where)
  on = jnp.abs(f) > threshold if rule == "abs" else f > 0
  on = (on & valid[:, None]).astype(onehot.dtype)
  counts = jnp.matmul(on.T, onehot, precision="highest")
  return counts, jnp.all(jnp.isfinite(f), axis=0)
