"""Factor metrics against loops from their definitions, perfect codes, noise, turns."""

import math

import numpy as np
import pytest
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import mutual_info_score

from ncl_jax.errors import InputError
from ncl_jax.metrics import factors as lib
from ncl_jax.metrics.factors import predictors

COUNT, VALUES = 4, 6
# Each dimension the sum or difference of all factors alike.
HADAMARD = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2


def grid():
  """Every combination once, in random order, so that factors are independent."""
  every = np.indices((VALUES,) * COUNT).reshape(COUNT, -1).T
  return np.random.default_rng(0).permutation(every)


def draw(n, count=3, seed=0):
  return np.random.default_rng(seed).integers(0, VALUES, (n, count))


def perfect(v):
  """One factor a dimension, in other units and order, and a dimension that is dead."""
  f = np.concatenate([-2.0 * v[:, ::-1] + 7, np.full((len(v), 1), 3.0)], axis=1)
  return f.astype(np.float32)


def turned(v):
  width = v.shape[1]
  return (v - v.mean(0)) @ HADAMARD[:width, :width]


def noise(v, width=8, seed=2):
  return np.random.default_rng(seed).normal(size=(len(v), width))


@pytest.fixture(scope="module")
def table():
  """Scores of each kind of features, made once."""
  v = grid()
  kinds = {"perfect": perfect, "turned": turned, "noise": noise}
  return {kind: lib.scores(make(v), v) for kind, make in kinds.items()}


NAMES = (
  "mig",
  "sap",
  "modularity",
  "explicitness",
  "dci_disentanglement",
  "dci_completeness",
  "dci_informativeness",
  "factor_vae",
)
HIGHEST = {"sap": 1 - 1 / VALUES}
# What guessing gives where it is not 0: the share of a value, and of a factor.
CHANCE = {"dci_informativeness": 1 / VALUES, "factor_vae": 1 / COUNT}
# Read from all dimensions together by what is itself free to turn.
TURN_FREE = ("explicitness",)


@pytest.mark.parametrize("name", NAMES)
def test_a_perfect_code_has_the_highest_score(table, name):
  # Two are learnt on one half and scored on the other.
  tolerance = {"explicitness": 2e-3, "sap": 0.04}.get(name, 1e-9)
  assert table["perfect"][name] == pytest.approx(HIGHEST.get(name, 1), abs=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_at_chance(table, name):
  # Modularity compares noise with noise, of the dimensions one by one.
  tolerance = 0.4 if name == "modularity" else 0.07
  assert abs(table["noise"][name] - CHANCE.get(name, 0)) < tolerance


@pytest.mark.parametrize("name", [n for n in NAMES if n not in TURN_FREE])
def test_a_perfect_code_that_is_turned_scores_less(table, name):
  loss = table["perfect"][name] - table["turned"][name]
  assert loss > (0.05 if name == "dci_informativeness" else 0.2)


def test_a_linear_classifier_does_not_mind_the_turn(table):
  assert table["turned"]["explicitness"] == pytest.approx(1, abs=0.01)


def test_the_order_of_dimensions_is_free():
  v = draw(600)
  f = turned(v) + 0.3 * noise(v, 3)
  order = [2, 0, 1]
  one, other = lib.scores(f, v), lib.scores(f[:, order], v)
  for name in NAMES:
    # A forest draws its candidates by position.
    tolerance = 0.05 if name.startswith("dci") else 1e-4
    assert other[name] == pytest.approx(one[name], abs=tolerance), name


@pytest.mark.parametrize("score", [lib.mig, lib.modularity, lib.sap, lib.factor_vae])
def test_units_and_dead_dimensions_are_free(score):
  v = draw(500)
  f = turned(v)
  dead = np.full((len(f), 2), 4.0)
  changed = np.concatenate([dead, 4 * f], axis=1)
  assert score(changed, v) == pytest.approx(score(f, v), abs=1e-12)


def slow_mig(f, v, bins):
  """Plain loops over samples, bins and values."""
  gaps = []
  for k in range(v.shape[1]):
    found = []
    for d in range(f.shape[1]):
      low, high = f[:, d].min(), f[:, d].max()
      joint = {}
      for x, value in zip(f[:, d], v[:, k], strict=True):
        b = min(int((x - low) / (high - low) * bins), bins - 1)
        joint[b, value] = joint.get((b, value), 0) + 1 / len(f)
      of_bin, of_value = {}, {}
      for (b, value), p in joint.items():
        of_bin[b] = of_bin.get(b, 0) + p
        of_value[value] = of_value.get(value, 0) + p
      found.append(
        sum(p * math.log(p / of_bin[b] / of_value[x]) for (b, x), p in joint.items())
      )
    entropy = -sum(p * math.log(p) for p in of_value.values())
    found.sort()
    gaps.append((found[-1] - found[-2]) / entropy)
  return sum(gaps) / len(gaps)


@pytest.mark.parametrize("bins", [4, 20])
def test_mig_is_the_slow_one(bins):
  v = draw(300)
  f = turned(v) + 0.5 * noise(v, 3)
  assert lib.mig(f, v, bins) == pytest.approx(slow_mig(f, v, bins), abs=1e-12)


def test_information_is_that_of_scikit_learn():
  v = draw(300)
  f = noise(v, 4) + v[:, :1]
  found = lib.mutual_information(f, v, 10)
  for d in range(4):
    edges = np.linspace(f[:, d].min(), f[:, d].max(), 11)[1:-1]
    code = np.digitize(f[:, d], edges)
    for k in range(3):
      assert found[d, k] == pytest.approx(mutual_info_score(code, v[:, k]), abs=1e-12)


def test_modularity_is_the_slow_one():
  v = draw(300)
  f = turned(v) + 0.5 * noise(v, 3)
  information = lib.mutual_information(f, v)
  each = []
  for row in information:
    best = max(row)
    rest = sum(x**2 for x in row) - best**2
    each.append(1 - rest / (best**2 * (len(row) - 1)))
  assert lib.modularity(f, v) == pytest.approx(np.mean(each), abs=1e-12)


def slow_dci(r):
  """Entropies by loops, from the definition."""
  d, l = r.shape

  def one_minus_entropy(parts):
    total = sum(parts)
    shares = [x / total for x in parts if x > 0]
    return 1 + sum(p * math.log(p, len(parts)) for p in shares)

  weights = [sum(row) / r.sum() for row in r]
  disentanglement = sum(
    w * one_minus_entropy(row) for w, row in zip(weights, r, strict=True) if w > 0
  )
  completeness = sum(one_minus_entropy(r[:, k]) for k in range(l)) / l
  return disentanglement, completeness


def test_dci_is_the_slow_one():
  v = draw(400)
  f = np.concatenate([turned(v) + 0.3 * noise(v, 3), np.zeros((400, 1))], axis=1)
  found, accuracy = lib.importances(f, v, seed=3)
  order = np.random.default_rng(3).permutation(400)
  train, test = order[:200], order[200:]
  for k in range(3):
    forest = RandomForestClassifier(predictors.TREES, max_features=None, random_state=3)
    forest.fit(f[train], v[train, k])
    # The importance of a forest, from the nodes of its trees.
    total = np.zeros(4)
    for tree in (e.tree_ for e in forest.estimators_):
      part = np.zeros(4)
      weight = tree.weighted_n_node_samples
      for node in range(tree.node_count):
        left, right = tree.children_left[node], tree.children_right[node]
        if left >= 0:
          part[tree.feature[node]] += (
            weight[node] * tree.impurity[node]
            - weight[left] * tree.impurity[left]
            - weight[right] * tree.impurity[right]
          )
      total += part / part.sum()
    np.testing.assert_allclose(found[:, k], total / total.sum(), atol=1e-9)
    hits = forest.predict(f[test]) == v[test, k]
    assert accuracy[k] == pytest.approx(hits.mean())
  np.testing.assert_allclose(lib.dci(found), slow_dci(found), atol=1e-9)


def test_dci_of_known_tables():
  assert lib.dci(np.ones((4, 3))) == pytest.approx((0, 0), abs=1e-12)
  assert lib.dci(np.eye(3)) == (1, 1)
  # Two dimensions share a factor: each is pure, the factor is not complete.
  split = np.array([[1.0, 0], [0, 0.5], [0, 0.5]])
  expected = (1 + 1 - math.log(2) / math.log(3)) / 2
  assert lib.dci(split) == pytest.approx((1, expected))


def test_sap_of_a_dimension_that_tells_two_of_four_values():
  v = np.tile(np.arange(4), 50)[:, None]
  f = np.concatenate([(v >= 2), np.zeros_like(v)], axis=1).astype(float)
  # Of each half two values are told apart from the others: half of four is right, and
  # the dead dimension guesses one of four.
  assert lib.sap(f, v) == pytest.approx(0.5 - 0.25)


def test_factor_vae_needs_stillness_not_information():
  v = draw(3000, 2)
  rng = np.random.default_rng(5)
  # The sign is noise: it tells of the factor and does not stay still when it is held.
  sign = rng.choice([-1, 1], (3000, 2))
  assert lib.factor_vae(perfect(v), v) == 1
  assert lib.factor_vae((v + 1) * sign, v) < 0.9


@pytest.mark.parametrize(
  ("f", "v", "says"),
  [
    (np.ones(3), np.ones((3, 1), int), r"must be \[N, D\]"),
    (np.ones((3, 2)), np.ones((3, 1)), "must be integers from 0"),
    (np.ones((3, 2)), np.ones((2, 1), int), "one row a row of f"),
    (np.ones((3, 2)), -np.ones((3, 1), int), "from 0"),
    (np.full((3, 2), np.nan), np.ones((3, 1), int), "NaN or infinity"),
  ],
)
def test_refuses(f, v, says):
  with pytest.raises(InputError, match=says):
    lib.mig(f, v)


def test_refuses_what_has_no_meaning():
  with pytest.raises(InputError, match="1 factor"):
    lib.modularity(np.eye(3), np.ones((3, 1), int))
  with pytest.raises(InputError, match="bins = 1"):
    lib.mig(np.eye(3), np.ones((3, 2), int), bins=1)
  with pytest.raises(InputError, match="importance has an entry"):
    lib.dci(-np.eye(2))


def test_nothing_to_judge_is_nan():
  constant = np.ones((20, 2), int)
  assert math.isnan(lib.mig(np.eye(20), constant))
  assert math.isnan(lib.factor_vae(np.ones((20, 2)), constant))
  assert math.isnan(lib.modularity(np.ones((20, 2)), draw(20)))
