"""Class consistency against the released code, loops and closed forms."""

import collections
import itertools

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ncl_jax import metrics
from ncl_jax.errors import InputError

GOLDEN = golden_numbers.load("metrics")
LABELS = GOLDEN["labels"]


def draw(n=60, d=5, classes=4, seed=0):
  """Rectified features with a dead dimension, and labels of which some are missing."""
  rng = np.random.default_rng(seed)
  f = np.maximum(rng.normal(size=(n, d)) - 1, 0)
  f[:, 2] = 0
  labels = rng.integers(-1, classes, n)
  return f.astype(np.float32), labels


def consistency_loop(f, labels, rule):
  rates, active = [], []
  for column in f.T:
    on = np.abs(column) > 1e-5 if rule == "abs" else column > 0
    seen = collections.Counter(
      y for y, a in zip(labels, on, strict=True) if a and y >= 0
    )
    active.append(seen.total())
    rates.append(max(seen.values()) / seen.total() if seen else np.nan)
  return rates, active


@pytest.mark.parametrize("dtype, rtol", [("float32", 2e-5), ("float64", 1e-5)])
class TestGolden:
  @pytest.mark.parametrize("variant", ["nonneg", "signed"])
  def test_training_log(self, variant, dtype, rtol):
    with jax.enable_x64(dtype == "float64"):
      f = jnp.asarray(GOLDEN[f"{variant}__trainlog__input_normalized"], dtype)
      rate, _ = metrics.class_consistency(f, LABELS, 10)
    target = GOLDEN[f"{variant}__trainlog__semantic_consistency"]
    np.testing.assert_allclose(np.nanmean(rate), target, rtol=rtol)

  def test_per_dimension(self, dtype, rtol):
    with jax.enable_x64(dtype == "float64"):
      f = jnp.asarray(GOLDEN["features_nonneg"], dtype)
      rate, active = metrics.class_consistency(f, LABELS, 10)
    target = GOLDEN["nonneg__main_eval__cluster_acc_per_dim"]
    rate, active = np.asarray(rate), np.asarray(active)
    np.testing.assert_allclose(100 * rate[active > 0], target, rtol=rtol)


@pytest.mark.parametrize("rule", ["abs", "positive"])
def test_consistency_equals_the_loop(rule):
  f, labels = draw()
  f = f - np.float32(0.1)
  rate, active = metrics.class_consistency(f, labels, 4, rule)
  expected_rate, expected_active = consistency_loop(f, labels, rule)
  np.testing.assert_allclose(rate, expected_rate, rtol=1e-6)
  np.testing.assert_array_equal(active, expected_active)


def test_rules_and_threshold():
  f = jnp.array([[1.0, 1e-6], [-1.0, 1e-6], [0.5, 0.0]])
  labels = jnp.array([0, 1, 1])

  def active(**options):
    return metrics.class_consistency(f, labels, 2, **options)[1].tolist()

  assert active() == [3, 0]
  assert active(rule="positive") == [2, 2]
  assert active(threshold=1e-7) == [3, 2]
  assert active(threshold=0.7) == [2, 0]


def test_one_hot_features_are_consistent():
  labels = np.repeat(np.arange(4), 5)
  f = np.eye(6, dtype=np.float32)[labels]
  rate, active = metrics.class_consistency(f, labels, 4)
  np.testing.assert_array_equal(rate, [1, 1, 1, 1, np.nan, np.nan])
  np.testing.assert_array_equal(active, [5, 5, 5, 5, 0, 0])
  expected = [1, 1, 1, 1, np.nan, np.nan]
  np.testing.assert_array_equal(metrics.purity(f, labels, 4, budget=0.25), expected)


def purity_over_all_orders(column, labels, m):
  """Expected class counts of the top m, over every order of the samples."""
  totals = np.zeros(max(labels) + 1)
  purities = []
  for order in itertools.permutations(range(len(column))):
    top = sorted(order, key=lambda n: -column[n])[:m]
    counts = np.bincount(np.asarray(labels)[top], minlength=len(totals))
    totals += counts
    purities.append(max(counts) / m)
  return max(totals) / len(purities) / m, np.mean(purities)


@pytest.mark.parametrize(
  "column",
  [
    [3, 2, 1, 0, -1, -2],  # no ties
    [5, 0, 0, 0, 0, 0],  # fewer active samples than the budget
    [2, 2, 2, 1, 1, 0],  # ties across the cut
    [0, 0, 4, 4, 0, 0],  # ties above the cut only
  ],
)
@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_purity_is_the_mean_over_orders_of_the_tied(column, m):
  labels = [0, 0, 1, 1, 1, 0]
  expected, if_broken = purity_over_all_orders(column, labels, m)
  f = jnp.asarray(column, jnp.float32)[:, None]
  result = metrics.purity(f, jnp.asarray(labels), 2, budget=m / 6)
  np.testing.assert_allclose(result, [expected], rtol=1e-6)
  assert result[0] <= if_broken + 1e-6


@pytest.mark.parametrize("masked", [False, True])
def test_activated_equals_the_loop(masked):
  """Of each counted sample: how many of the m places it has, shared among the tied."""
  f, _ = draw(n=40)
  f = np.round(f, 1)  # ties above 0, too
  where = np.arange(40) % 3 > 0 if masked else np.ones(40, bool)
  m = int(np.ceil(0.2 * where.sum()))
  expected = np.zeros_like(f)
  for d, column in enumerate(f.T):
    for n in np.flatnonzero(where):
      before = sum(column[i] > column[n] for i in np.flatnonzero(where))
      equal = sum(column[i] == column[n] for i in np.flatnonzero(where))
      expected[n, d] = min(max((m - before) / equal, 0), 1)
  expected[where, 2] = np.nan  # constant
  result = np.asarray(metrics.activated(f, 0.2, where=where))
  np.testing.assert_allclose(result, expected, rtol=1e-6)
  np.testing.assert_allclose(result.sum(0)[[0, 1, 3, 4]], m, rtol=1e-6)


def test_one_consistent_sample_does_not_make_a_dimension_pure():
  """A single active sample is consistent by chance, but not at a matched rate."""
  labels = np.arange(100) % 10
  f = np.zeros((100, 1), np.float32)
  f[7] = 1
  rate, _ = metrics.class_consistency(f, labels, 10)
  assert rate[0] == 1
  # One sample of class 7, and nine places shared by 99 of which nine are of class 7.
  expected = (1 + 9 * 9 / 99) / 10
  np.testing.assert_allclose(
    metrics.purity(f, labels, 10, budget=0.1), [expected], rtol=1e-5
  )


@pytest.mark.parametrize(
  "budget, m", [(0.07, 7), (0.03, 3), (0.001, 1), (0.071, 8), (1, 100)]
)
def test_budget_is_rounded_up_but_not_by_float_noise(budget, m):
  f = np.arange(100, dtype=np.float32)[:, None]
  labels = (np.arange(100) < 100 - m).astype(int)  # the top m are class 0
  assert metrics.purity(f, labels, 2, budget=budget) == 1
  if m > 1:
    labels = (np.arange(100) < 101 - m).astype(int)
    np.testing.assert_allclose(
      metrics.purity(f, labels, 2, budget=budget), max(m - 1, 1) / m, rtol=1e-6
    )


def purity(f, labels, where=None):
  return metrics.purity(f, labels, 4, budget=0.2, where=where)


def rate(f, labels, where=None):
  return metrics.class_consistency(f, labels, 4, where=where)[0]


@pytest.mark.parametrize("statistic", [purity, rate])
def test_mask_equals_subset_and_jit_equals_no_jit(statistic):
  f, labels = draw()
  where = np.arange(len(f)) % 3 > 0
  both = where & (labels >= 0)
  expected = statistic(f[both], labels[both])
  assert np.isnan(expected[2])
  padded = np.where(where[:, None], f, np.nan)
  results = [
    statistic(padded, labels, where),
    jax.jit(statistic)(padded, labels, where),
    statistic(f, np.where(where, labels, -1)),
  ]
  for result in results:
    np.testing.assert_allclose(result, expected, rtol=1e-6)
  order = np.random.default_rng(1).permutation(len(f))
  np.testing.assert_allclose(
    statistic(f[order], labels[order]), statistic(f, labels), rtol=1e-6
  )


def test_nothing_to_count():
  f, labels = draw()
  for result in (purity(f, np.full_like(labels, -1)), rate(f, labels, labels > 9)):
    assert jnp.all(jnp.isnan(result))


@pytest.mark.parametrize(
  "change, message",
  [
    ({"rule": "relu"}, "rule = 'relu': it must be one of abs, positive"),
    ({"num_classes": 0}, "num_classes = 0"),
    ({"num_classes": 3}, "labels run from -1 to 3: they must be in 0..2"),
    ({"labels": np.zeros(59, int)}, "labels have shape \\[59\\]"),
    ({"labels": np.zeros(60)}, "must be integers"),
  ],
)
def test_refuses(change, message):
  f, labels = draw()
  with pytest.raises(InputError, match=message):
    metrics.class_consistency(**({"f": f, "labels": labels, "num_classes": 4} | change))


@pytest.mark.parametrize("budget", [0, -0.1, 1.5, float("nan"), "3%"])
def test_refuses_a_budget(budget):
  with pytest.raises(InputError, match="budget = "):
    metrics.purity(*draw(), 4, budget=budget)


@pytest.mark.parametrize("rule", ["abs", "positive"])
def test_label_entropy_equals_scipy_s(rule):
  f, labels = draw()
  f = f - np.float32(0.1) if rule == "positive" else f
  result = metrics.label_entropy(f, labels, 4, rule)
  for d, column in enumerate(f.T):
    on = (np.abs(column) > 1e-5 if rule == "abs" else column > 0) & (labels >= 0)
    if on.any():
      expected = scipy.stats.entropy(np.bincount(labels[on]))
      np.testing.assert_allclose(result[d], expected, rtol=1e-5, atol=1e-6)
    else:
      assert np.isnan(result[d])


def test_label_entropy_of_one_hot_features():
  """Each dimension one class: 0; a dimension that all share: log K."""
  labels = np.arange(12) % 3
  f = np.hstack([np.eye(3)[labels], np.ones((12, 1))])
  entropy = metrics.label_entropy(f, labels, 3)
  np.testing.assert_allclose(entropy, [0, 0, 0, np.log(3)], atol=1e-6)


@pytest.mark.parametrize("budget", [1e-300, 1e-8, 1e-3])
def test_the_smallest_budget_is_one_sample(budget):
  f = jnp.array([[1.0], [3.0], [2.0]])
  assert metrics.activated(f, budget).ravel().tolist() == [0, 1, 0]
