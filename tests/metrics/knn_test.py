"""kNN against the released code, scikit-learn, and all orders of the tied."""

import itertools

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from ncl_jax import metrics
from ncl_jax.errors import InputError
from ncl_jax.metrics import knn

GOLDEN = golden_numbers.load("knn")


def draw(m=50, n=12, d=4, classes=3, seed=0):
  rng = np.random.default_rng(seed)
  bank, f = rng.normal(size=(m, d)), rng.normal(size=(n, d))
  return bank.astype(np.float32), rng.integers(0, classes, m), f.astype(np.float32)


# Votes by Euclidean distance have none.
TEMPERATURE = {"cosine": 0.07, "euclidean": None}


@pytest.mark.parametrize(
  "case, dtype, rtol",
  [
    ("a", "float32", 2e-5),
    ("a", "float64", 1e-5),
    ("b", "float32", 2e-5),
    pytest.param("b", "float64", 1e-5, marks=pytest.mark.slow),
  ],
)
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_golden(case, distance, dtype, rtol, monkeypatch):
  # Tiles of 64 rows: the search runs over several, the last overlapping.
  monkeypatch.setattr(knn, "BLOCK", 64)
  target = GOLDEN[f"{case}_{distance}_class_scores"]
  labels = GOLDEN[f"{case}_train_targets"]
  with jax.enable_x64(dtype == "float64"):
    bank, f = (
      jnp.asarray(GOLDEN[f"{case}_{part}_features"], dtype)
      for part in ("train", "test")
    )
    arguments = (bank, labels, f, target.shape[1], 20)
    scores = np.asarray(metrics.knn_scores(*arguments, TEMPERATURE[distance]))
    predicted = np.asarray(metrics.knn_predict(*arguments, distance=distance))
  np.testing.assert_allclose(scores, target, rtol=rtol)
  predictions = GOLDEN[f"{case}_{distance}_predictions"]
  np.testing.assert_array_equal(predicted, predictions[:, 0])
  order = np.argsort(-scores, axis=1, stable=True)
  voted = np.take_along_axis(target, predictions, axis=1) > 0
  np.testing.assert_array_equal(order[voted], predictions[voted])
  right = predicted == GOLDEN[f"{case}_test_targets"]
  np.testing.assert_allclose(100 * right.mean(), GOLDEN[f"{case}_{distance}_top1"])


@pytest.mark.parametrize("k", [1, 5, 50])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_equals_scikit_learn(distance, k, monkeypatch):
  monkeypatch.setattr(knn, "BLOCK", 16)
  bank, labels, f = draw()
  weights = {
    "cosine": lambda d: np.exp((1 - d) / 0.1),
    "euclidean": lambda d: 1 / (d + 1e-5),
  }
  oracle = KNeighborsClassifier(k, metric=distance, weights=weights[distance])
  share = oracle.fit(bank, labels).predict_proba(f)
  scores = metrics.knn_scores(
    bank, labels, f, 3, k, {"cosine": 0.1, "euclidean": None}[distance]
  )
  scores = scores / jnp.sum(scores, axis=1, keepdims=True)
  np.testing.assert_allclose(scores, share, rtol=1e-4, atol=1e-6)


def over_all_orders(bank, labels, query, k):
  """Mean votes over every order of the bank; rows have length 1 or 0."""
  votes = []
  similarity = bank @ query
  for order in itertools.permutations(range(len(bank))):
    near = sorted(order, key=lambda n: -similarity[n])[:k]
    vote = np.zeros(3)
    for n in near:
      vote[labels[n]] += np.exp(similarity[n] / 0.5)
    votes.append(vote)
  return np.mean(votes, axis=0)


@pytest.mark.parametrize("block_size", [1, 4])
@pytest.mark.parametrize("k", [1, 2, 4, 6])
def test_ties_are_averaged_over_all_orders(k, block_size, monkeypatch):
  monkeypatch.setattr(knn, "BLOCK", block_size)
  bank = np.array([[1, 0], [0, 1], [1, 0], [1, 0], [0, 0], [0, 1]], np.float32)
  labels = np.array([0, 1, 2, 2, 0, 1])
  f = np.array([[1, 0], [0, 1], [0, 0]], np.float32)
  scores = metrics.knn_scores(bank, labels, f, 3, k, 0.5)
  expected = [over_all_orders(bank, labels, query, k) for query in f]
  np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_empty_query_gets_the_majority_whatever_the_order():
  """Rows sorted by class: the first 20 would all vote for class 0."""
  bank = np.eye(3, dtype=np.float32)[np.repeat([0, 1, 2], [30, 50, 20])]
  labels = np.repeat([0, 1, 2], [30, 50, 20])
  scores = metrics.knn_scores(bank, labels, np.zeros((1, 3), np.float32), 3)
  np.testing.assert_allclose(scores, [[6, 10, 4]], rtol=1e-6)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_block_size_and_order_of_the_bank_change_nothing(distance, monkeypatch):
  bank, labels, f = draw()
  bank, f = np.maximum(bank, 0), np.maximum(f, 0)

  def scores(order):
    return metrics.knn_scores(
      bank[order], labels[order], f, 3, 7, TEMPERATURE[distance]
    )

  expected = scores(np.arange(50))
  monkeypatch.setattr(knn, "BLOCK", 7)
  order = np.random.default_rng(1).permutation(50)
  np.testing.assert_allclose(scores(order), expected, rtol=1e-4)


def test_unlabelled_rows_are_not_searched(monkeypatch):
  bank, labels, f = draw()
  hidden = np.where(np.arange(50) % 3 > 0, labels, -1)
  kept = hidden >= 0
  expected = metrics.knn_scores(bank[kept], labels[kept], f, 3, 5)
  monkeypatch.setattr(knn, "BLOCK", 8)
  for result in (
    metrics.knn_scores(bank, hidden, f, 3, 5),
    jax.jit(lambda b, y, f: metrics.knn_scores(b, y, f, 3, 5))(bank, hidden, f),
  ):
    np.testing.assert_allclose(result, expected, rtol=1e-5)
  few = np.where(np.arange(50) < 3, labels, -1)
  np.testing.assert_allclose(
    metrics.knn_scores(bank, few, f, 3, 5, temperature=None),
    metrics.knn_scores(bank[:3], labels[:3], f, 3, 3, temperature=None),
    rtol=1e-5,
  )
  nobody = np.full(50, -1)
  assert np.all(metrics.knn_scores(bank, nobody, f, 3) == 0)
  assert metrics.knn_predict(bank, nobody, f, 3).tolist() == [-1] * 12


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("kind", ["dense", "tied"])
def test_grid_is_one_prediction_after_the_other(kind, distance, monkeypatch):
  bank, labels, f = draw()
  if kind == "tied":  # few values, so that ties straddle every k; and all-zero rows
    bank, f = np.round(np.maximum(bank, 0)), np.round(np.maximum(f, 0))
    labels = np.where(np.arange(50) % 7 > 0, labels, -1)
  ks, temperatures = [3, 20], [0.05, 1.0] if distance == "cosine" else None
  with monkeypatch.context() as patch:
    patch.setattr(knn, "BLOCK", 16)
    grid = metrics.knn_predict_grid(bank, labels, f, 3, ks, temperatures)
  for i, k in enumerate(ks):
    for j, temperature in enumerate(temperatures or [0.07]):
      expected = metrics.knn_predict(bank, labels, f, 3, k, temperature, distance)
      np.testing.assert_array_equal(grid[i, j], expected)


def test_classes_that_nobody_has_get_no_votes():
  """Labels 0, 2 and 4 of six: a gap is a class without votes, not an error."""
  bank, labels, f = draw()
  gaps = metrics.knn_scores(bank, 2 * labels, f, 6, 5)
  np.testing.assert_array_equal(gaps[:, 1::2], 0)
  np.testing.assert_array_equal(gaps[:, ::2], metrics.knn_scores(bank, labels, f, 3, 5))


@pytest.mark.parametrize("change", [{"ks": []}, {"temperatures": []}, {"ks": [51]}])
def test_grid_refuses(change):
  bank, labels, f = draw()
  arguments = {"ks": [1], "temperatures": [0.1]} | change
  with pytest.raises(InputError, match="may be empty|k = 51"):
    metrics.knn_predict_grid(bank, labels, f, 3, **arguments)


@pytest.mark.parametrize("temperature", [0.01, 0.001, 1e-5])
def test_prediction_survives_low_temperatures(temperature):
  """In the limit the nearest row alone decides."""
  bank, labels, f = draw()
  nearest = metrics.knn_predict(bank, labels, f, 3, k=1)
  cold = metrics.knn_predict(bank, labels, f, 3, temperature=temperature)
  if temperature < 0.001:
    np.testing.assert_array_equal(cold, nearest)
  with jax.enable_x64(True):
    exact = metrics.knn_predict(
      bank.astype(np.float64), labels, f.astype(np.float64), 3, temperature=temperature
    )
  np.testing.assert_array_equal(cold, exact)


def test_bfloat16_is_raised_first():
  bank, labels, f = draw()
  low = [jnp.asarray(x, jnp.bfloat16) for x in (bank, f)]
  high = [x.astype(jnp.float32) for x in low]
  np.testing.assert_array_equal(
    metrics.knn_scores(low[0], labels, low[1], 3),
    metrics.knn_scores(high[0], labels, high[1], 3),
  )


@pytest.mark.parametrize(
  "change, message",
  [
    ({"k": 51}, "k = 51: it must be an int, at least 1 and at most 50"),
    ({"temperature": 0.0}, "temperature = 0.0"),
    ({"temperature": "0.07"}, "temperature = '0.07'"),
    ({"distance": "l2"}, "distance = 'l2': it must be one of cosine, euclidean"),
    ({"num_classes": 2}, "train_labels run from 0 to 2"),
    ({"f": np.ones((2, 5))}, "f has 5 dimensions and train_f has 4"),
  ],
)
def test_refuses(change, message):
  bank, labels, f = draw()
  arguments = {"train_f": bank, "train_labels": labels, "f": f, "num_classes": 3}
  with pytest.raises(InputError, match=message):
    metrics.knn_predict(**(arguments | change))
  if "distance" not in change:
    with pytest.raises(InputError, match=message):
      metrics.knn_scores(**(arguments | change))


def test_memory_is_bounded(monkeypatch):
  """Tiles of 32 x 32 over 4,096 x 4,096 rows of 4 dimensions."""
  f = jax.ShapeDtypeStruct((4096, 4), jnp.float32)
  labels = jax.ShapeDtypeStruct((4096,), jnp.int32)
  monkeypatch.setattr(knn, "BLOCK", 32)
  program = jax.jit(lambda b, y, f: metrics.knn_scores(b, y, f, 10))
  compiled = program.lower(f, labels, f).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 4096 * 4096 * 4 / 20
