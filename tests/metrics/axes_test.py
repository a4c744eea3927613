"""Naming, energy-weighted purity and axis gain: loops, oracles, invariances, edges."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax import metrics
from ncl_jax.errors import InputError

BUDGET = 0.05
# Compiled as a whole: the same numbers, as a test below says.
naming_accuracy = jax.jit(
  metrics.naming_accuracy, static_argnums=4, static_argnames="signed"
)
energy_weighted_purity = jax.jit(
  metrics.energy_weighted_purity, static_argnums=2, static_argnames="budget"
)
purity_at = jax.jit(metrics.purity_at, static_argnums=2)


def draw(n=80, d=6, classes=4, seed=0):
  """Rectified features with a dead dimension and an all-zero row; labels, some -1."""
  rng = np.random.default_rng(seed)
  f = np.maximum(rng.normal(size=(n, d)) - 0.3, 0)
  f[:, 2] = 0
  f[5] = 0
  return f.astype(np.float32), rng.integers(-1, classes, n)


def subclasses(per_class=10, classes=10, each=6):
  """A one-hot code of pure sub-classes, and its labels."""
  code = np.eye(per_class * classes, dtype=np.float32).repeat(each, axis=0)
  return code, np.arange(classes).repeat(per_class * each)


def rotation(width, seed=0):
  q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(width, width)))
  return (q * np.sign(np.diag(r))).astype(np.float32)


def naming_loop(train_f, train_labels, f, labels, classes, signed):
  train_f = np.asarray(train_f, float)[train_labels >= 0]
  train_labels = train_labels[train_labels >= 0]
  f = np.asarray(f, float)[labels >= 0]
  labels = labels[labels >= 0]
  units = []
  for d in range(f.shape[1]):
    for sign in (1, -1) if signed else (1,):
      column = sign * train_f[:, d]
      mass = [column[(train_labels == c) & (column > 0)].sum() for c in range(classes)]
      if np.ptp(column) > 0 and max(mass) > 0:
        units.append((d, sign, column.std(), int(np.argmax(mass))))
  hits = 0
  for row, label in zip(f, labels, strict=True):
    scores = [sign * row[d] / sd for d, sign, sd, _ in units]
    winner = int(np.argmax(scores))
    hits += scores[winner] > 0 and units[winner][3] == label
  return hits / len(f)


@pytest.mark.parametrize("signed", [False, True])
def test_naming_equals_the_loop(signed):
  train_f, train_labels = draw(seed=1)
  f, labels = draw(seed=2)
  if signed:
    train_f, f = train_f - 0.2, f - 0.2
  found = naming_accuracy(train_f, train_labels, f, labels, 4, signed=signed)
  expected = naming_loop(train_f, train_labels, f, labels, 4, signed)
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def ewp_loop(f, labels, budget):
  f = np.asarray(f, float)[labels >= 0]
  labels = labels[labels >= 0]
  m = int(np.ceil(round(budget * len(f), 6)))
  total = energy = 0.0
  for column in f.T:
    # Continuous values: no ties but at zero, and these are averaged over orders.
    best = []
    for seed in range(4000 if np.sum(column > 0) < m else 1):
      order = np.random.default_rng(seed).permutation(len(f))
      top = order[np.argsort(-column[order], kind="stable")[:m]]
      best.append(np.bincount(labels[top], minlength=4))
    weight = np.mean(column**2)
    total += weight * np.mean(best, 0).max() / m
    energy += weight
  return total / energy


@pytest.mark.parametrize("budget, tolerance", [(0.05, 1e-6), (0.9, 5e-3)])
def test_energy_weighted_purity_equals_the_loop(budget, tolerance):
  f, labels = draw()
  found = energy_weighted_purity(f, labels, 4, budget=budget)
  np.testing.assert_allclose(found, ewp_loop(f, labels, budget), atol=tolerance)


def test_the_oracle_names_every_image_and_its_rotation_does_not():
  code, labels = subclasses()
  assert float(naming_accuracy(code, labels, code, labels, 10)) == 1
  for seed in range(5):
    turned = code @ rotation(code.shape[1], seed)
    for signed in (False, True):
      arguments = turned, labels, turned, labels, 10
      assert naming_accuracy(*arguments, signed=signed) < 0.9


def test_the_axis_gain_of_the_oracle_is_what_its_rotations_lose():
  code, labels = subclasses()

  def naming(f):
    return naming_accuracy(f, labels, f, labels, 10)

  gain, rotated = metrics.axis_gain(naming, code, jax.random.key(0), draws=4)
  assert gain > 0.2
  np.testing.assert_allclose(gain + rotated, 1, rtol=1e-6)


def test_the_energy_weighted_purity_of_the_oracle_is_1_within_a_subclass():
  code, labels = subclasses()
  found = energy_weighted_purity(code, labels, 10, budget=0.01)
  np.testing.assert_allclose(found, 1, rtol=1e-6)


def test_dense_isotropic_features_gain_nothing():
  rng = np.random.default_rng(0)
  means = rng.normal(size=(10, 16))
  labels = rng.integers(0, 10, 3000)
  f = (means[labels] + rng.normal(size=(3000, 16))).astype(np.float32)
  f = f @ rotation(16)

  @jax.jit
  def naming(x):
    return naming_accuracy(x[:2000], labels[:2000], x[2000:], labels[2000:], 10)

  spread = [naming(f @ rotation(16, seed)) for seed in range(1, 12)]
  gain, _ = metrics.axis_gain(naming, f, jax.random.key(1))
  assert abs(gain) < 3 * np.std(spread)


def test_noise_names_at_chance():
  rng = np.random.default_rng(0)
  f = np.maximum(rng.normal(size=(4000, 32)), 0).astype(np.float32)
  labels = rng.integers(0, 10, 4000)
  found = naming_accuracy(f[:2000], labels[:2000], f[2000:], labels[2000:], 10)
  assert abs(found - 0.1) < 4 * np.sqrt(0.09 / 2000)


def test_naming_ignores_the_order_and_the_scale_of_dimensions():
  train_f, train_labels = draw(seed=1)
  f, labels = draw(seed=2)
  before = naming_accuracy(train_f, train_labels, f, labels, 4)
  order = np.array([3, 0, 5, 1, 4, 2])
  scale = np.float32([1e-30, 1e-3, 1, 1e3, 1e15, 1e30])
  after = naming_accuracy(
    train_f[:, order] * scale, train_labels, f[:, order] * scale, labels, 4
  )
  np.testing.assert_allclose(after, before, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_energy_weighted_purity_ignores_the_order_of_dimensions_and_one_scale(scale):
  f, labels = draw()
  before = energy_weighted_purity(f, labels, 4, budget=BUDGET)
  turned = f[:, ::-1] * np.float32(scale)
  after = energy_weighted_purity(turned, labels, 4, budget=BUDGET)
  np.testing.assert_allclose(after, before, rtol=1e-5)


def test_the_class_numbers_do_not_matter():
  train_f, train_labels = draw(seed=1)
  f, labels = draw(seed=2)
  new = np.array([2, 0, 3, 1, -1])  # the last is -1's
  before = naming_accuracy(train_f, train_labels, f, labels, 4)
  after = naming_accuracy(train_f, new[train_labels], f, new[labels], 4)
  np.testing.assert_allclose(after, before, rtol=1e-6)


def test_rows_without_a_label_are_left_out_whatever_they_hold():
  f, labels = draw()
  known = labels >= 0
  dirty = np.where(known[:, None], f, np.nan)
  counts = np.array([1, 7])
  whole = (
    naming_accuracy(dirty, labels, dirty, labels, 4),
    energy_weighted_purity(dirty, labels, 4, budget=BUDGET),
    purity_at(dirty, labels, 4, counts),
  )
  f, labels = f[known], labels[known]
  part = (
    naming_accuracy(f, labels, f, labels, 4),
    energy_weighted_purity(f, labels, 4, budget=BUDGET),
    purity_at(f, labels, 4, counts),
  )
  for a, b in zip(whole, part, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)


def test_dead_and_constant_dimensions_name_nothing():
  train_f, train_labels = draw(seed=1)
  f, labels = draw(seed=2)
  before = naming_accuracy(train_f, train_labels, f, labels, 4)
  # The second is not the same number twice after a mean in float32.
  for value in (0.0, 0.1):
    more, more_test = (
      np.concatenate([x, np.full((len(x), 1), value, np.float32)], 1)
      for x in (train_f, f)
    )
    after = naming_accuracy(more, train_labels, more_test, labels, 4)
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_an_image_that_activates_nothing_is_wrong():
  train_f, labels = np.eye(2, dtype=np.float32), np.array([0, 1])
  test = np.array([[0, 0], [-1, -2]], np.float32)
  assert naming_accuracy(train_f, labels, test, labels, 2) == 0


def test_tied_dimensions_and_tied_classes_count_by_fractions():
  train_f = np.array([[1, 1], [0, 1], [1, 0], [0, 0]], np.float32)
  # Dimension 0 is both classes' alike, dimension 1 class 0's; equally wide.
  train_labels = np.array([0, 0, 1, 1])
  test = np.array([[1, 1], [1, 0]], np.float32)
  found = naming_accuracy(train_f, train_labels, test, np.array([0, 1]), 2)
  np.testing.assert_allclose(found, np.mean([(0.5 + 1) / 2, 0.5]), rtol=1e-6)


def test_a_constant_dimension_is_as_pure_as_the_labels():
  f = np.ones((8, 1), np.float32)
  labels = np.array([0, 0, 0, 0, 0, 0, 1, 1])
  found = energy_weighted_purity(f, labels, 2, budget=0.25)
  np.testing.assert_allclose(found, 0.75)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_gives_no_number(bad):
  f, labels = draw()
  labels = np.abs(labels)
  worse = f.copy()
  worse[3, 1] = bad
  naming = metrics.naming_accuracy, naming_accuracy
  purity = metrics.energy_weighted_purity, energy_weighted_purity
  for (checked, compiled), given, kwargs in (
    (naming, (worse, labels, f, labels, 4), {}),
    (naming, (f, labels, worse, labels, 4), {}),
    (purity, (worse, labels, 4), {"budget": BUDGET}),
  ):
    with pytest.raises(InputError, match="1 of .* rows of .*f hold NaN or infinity"):
      checked(*given, **kwargs)
    assert np.isnan(compiled(*given, **kwargs))


def test_without_labels_or_activation_there_is_no_number():
  f, labels = draw()
  none = np.full(len(labels), -1)
  assert np.isnan(naming_accuracy(f, none, f, labels, 4))
  assert np.isnan(naming_accuracy(f, labels, f, none, 4))
  zero = np.zeros_like(f)
  assert naming_accuracy(zero, labels, f, labels, 4) == 0
  assert np.isnan(energy_weighted_purity(zero, labels, 4, budget=BUDGET))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int32", "float64"])
def test_values_that_every_type_holds_give_the_same_numbers(dtype):
  rng = np.random.default_rng(0)
  f = np.maximum(rng.integers(-4, 5, (60, 7)), 0)
  labels = rng.integers(0, 4, 60)
  with jax.enable_x64(dtype == "float64"):
    x = jnp.asarray(f, dtype)
    found = [
      naming_accuracy(x, labels, x, labels, 4),
      energy_weighted_purity(x, labels, 4, budget=BUDGET),
    ]
  x = f.astype(np.float32)
  expected = [
    naming_accuracy(x, labels, x, labels, 4),
    energy_weighted_purity(x, labels, 4, budget=BUDGET),
  ]
  np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_under_jit_the_numbers_are_the_same():
  f, labels = draw()
  for compiled, plain, given, kwargs in (
    (naming_accuracy, metrics.naming_accuracy, (f, labels, f, labels, 4), {}),
    (
      energy_weighted_purity,
      metrics.energy_weighted_purity,
      (f, labels, 4),
      {"budget": BUDGET},
    ),
  ):
    np.testing.assert_allclose(
      compiled(*given, **kwargs), plain(*given, **kwargs), rtol=1e-6
    )


def test_purity_at_equals_purity_and_the_loop():
  f, labels = draw()
  known = int(np.sum(labels >= 0))
  counts = np.arange(1, known + 1)
  found = np.asarray(purity_at(f, labels, 4, counts))
  for m in (1, 3, 20, known):
    np.testing.assert_allclose(
      found[:, m - 1], metrics.purity(f, labels, 4, m / known), rtol=1e-6
    )
  f, labels = f[labels >= 0], labels[labels >= 0]
  for d in (0, 1, 3):
    positive = int(np.sum(f[:, d] > 0))
    order = np.argsort(-f[:, d])
    for m in range(1, positive + 1):
      most = collections.Counter(labels[order[:m]].tolist()).most_common(1)[0][1]
      np.testing.assert_allclose(found[d, m - 1], most / m, rtol=1e-6)


def test_consistency_at_matched_rates_equals_the_loop():
  f, labels = draw(n=200)
  labels = np.abs(labels)
  other = np.random.default_rng(9).normal(size=(200, 5)).astype(np.float32)
  own, cut = [], []
  for column in f.T:
    on = column > 1e-5
    if on.sum() < 10:
      continue
    own.append(np.bincount(labels[on]).max() / on.sum())
    tops = [np.argsort(-x)[: on.sum()] for x in other.T]
    cut.append(np.mean([np.bincount(labels[top]).max() / on.sum() for top in tops]))
  found = metrics.consistency_at_matched_rates(f, other, labels, 4)
  np.testing.assert_allclose(found, [np.mean(own), np.mean(cut)], rtol=1e-6)


def test_rotations_are_orthogonal_and_uniform_whatever_the_start():
  f = np.eye(3, dtype=np.float32)
  seen = []
  metrics.axis_gain(
    lambda x: seen.append(np.asarray(x[0])) or 0.0, f, jax.random.key(0), draws=400
  )
  rows = np.stack(seen[:400])
  np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
  # Of a uniform direction in 3 dimensions each coordinate is uniform in -1..1.
  assert np.all(np.abs(rows.mean(0)) < 4 / np.sqrt(3 * 400))
  np.testing.assert_allclose(rows.var(0), 1 / 3, atol=0.08)


def test_wrong_arguments_are_refused():
  f, labels = draw()
  with pytest.raises(InputError, match="6 dimensions and f has 5"):
    metrics.naming_accuracy(f, labels, f[:, :5], labels, 4)
  with pytest.raises(InputError, match="labels"):
    metrics.naming_accuracy(f, labels, f, labels, 2)
  with pytest.raises(InputError, match="budget"):
    metrics.energy_weighted_purity(f, labels, 4, budget=0)
  with pytest.raises(InputError, match="draws"):
    metrics.axis_gain(jnp.mean, f, jax.random.key(0), draws=0)


def test_a_count_beyond_32_bits_does_not_wrap_to_a_small_one():
  f = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
  labels = np.arange(8) % 2
  beyond, wrapped, rows = 9, 1, np.array([2**32 + 1, 8])
  found, expected, wrong = (
    np.asarray(metrics.purity_at(f, labels, 2, counts))
    for counts in (rows, np.array([beyond, 8]), np.array([wrapped, 8]))
  )
  np.testing.assert_array_equal(found, expected)
  assert not np.array_equal(found, wrong, equal_nan=True)
