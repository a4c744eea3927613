"""Retrieval against the released code, scikit-learn and all orders of the tied."""

import importlib
import itertools

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from ncl_jax import metrics
from ncl_jax.errors import InputError

# By its name: `metrics.retrieval` is the function.
MODULE = importlib.import_module("ncl_jax.metrics.retrieval")
GOLDEN = golden_numbers.load("metrics")


def draw(n=30, d=4, classes=3, seed=0):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(n, d)).astype(np.float32), rng.integers(0, classes, n)


def unit(f):
  norms = np.linalg.norm(f, axis=1, keepdims=True)
  return np.divide(f, norms, out=np.zeros_like(f), where=norms > 0)


def over_all_orders(f, labels, query, k):
  """Mean P@k and AP@k of one query over every order of the other rows."""
  others = [n for n in range(len(f)) if n != query]
  similarity = unit(f) @ unit(f)[query]
  relevant = sum(labels[n] == labels[query] for n in others)
  scores = []
  for order in itertools.permutations(others):
    near = sorted(order, key=lambda n: -similarity[n])[:k]
    hits = [labels[n] == labels[query] for n in near]
    precisions = [sum(hits[: i + 1]) / (i + 1) for i in range(k)]
    average = sum(p for p, hit in zip(precisions, hits, strict=True) if hit)
    scores.append((sum(hits) / k, average / min(relevant, k)))
  return np.mean(scores, axis=0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("variant", ["nonneg", "signed"])
def test_golden(variant, dtype):
  """The released loop ranks by Euclidean distance of normalised, then cut rows.

  `2 q.g - |g|^2` ranks alike; it is a cosine once g gets two more entries, `|g|^2` and
  what makes its length 2. The row itself is then first of 11, and always a hit.
  """
  labels = GOLDEN["ret_labels"]
  order = GOLDEN[f"{variant}__retrieval__order"]
  f = unit(GOLDEN[f"ret_features_{variant}"].astype(np.float64))[:, order]
  results = []
  for k in GOLDEN[f"{variant}__retrieval__k"][1:]:
    g = f[:, :k]
    square = np.sum(g**2, axis=1, keepdims=True)
    rest = np.sqrt(4 - square - square**2)
    with jax.enable_x64(dtype == "float64"):
      precision, _ = metrics.retrieval(
        jnp.asarray(np.hstack([2 * g, -np.ones_like(square), 0 * square]), dtype),
        labels,
        k=11,
        gallery=jnp.asarray(np.hstack([g, square, rest]), dtype),
        gallery_labels=labels,
      )
    results.append((11 * np.asarray(precision, np.float64).mean() - 1) / 10)
  expected = GOLDEN[f"{variant}__retrieval__precision_at_10"][1:]
  # Exact: one neighbour more or less in 200 x 10 would be 5e-4.
  np.testing.assert_allclose(results, expected, atol=1e-6)


@pytest.mark.parametrize("variant", ["nonneg", "signed"])
def test_the_released_loop_begins_at_no_dimension(variant):
  """Every distance is then 0, and the order of the samples decides."""
  labels = GOLDEN["ret_labels"]
  assert GOLDEN[f"{variant}__retrieval__k"][0] == 0
  theirs = GOLDEN[f"{variant}__retrieval__precision_at_10"][0]
  first = np.arange(1, 11)
  hits = [np.sum((labels[first] == y) & (first != n)) for n, y in enumerate(labels)]
  np.testing.assert_allclose(theirs, np.mean(hits) / 10, rtol=1e-6)
  with pytest.raises(InputError, match=r"shape \[200, 0\]"):
    metrics.retrieval(np.zeros((200, 0)), labels)
  # Rows without any difference score the share of their class, in any order.
  counts = np.bincount(labels)
  ours, _ = metrics.retrieval(np.zeros((200, 1)), labels)
  np.testing.assert_allclose(ours, (counts[labels] - 1) / 199, rtol=1e-5)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize(
  "f",
  [
    [[1, 0], [2, 0], [0, 1], [0, 3], [1, 1], [0, 0]],  # duplicates and an all-zero row
    [[0, 0]] * 6,
    [[1, 0]] * 6,
    [[1, 0], [6, 1], [4, 3], [1, 1], [2, 5], [-1, 2]],  # no ties
  ],
)
def test_ties_are_averaged_over_all_orders(f, k):
  f = np.asarray(f, np.float32)
  labels = np.array([0, 1, 1, 0, 0, 1])
  precision, average = metrics.retrieval(f, labels, k=k)
  expected = [over_all_orders(f, labels, query, k) for query in range(6)]
  np.testing.assert_allclose(precision, [p for p, _ in expected], rtol=1e-5)
  np.testing.assert_allclose(average, [a for _, a in expected], rtol=1e-5)


def test_average_precision_is_that_of_scikit_learn():
  f, labels = draw()
  _, average = metrics.retrieval(f, labels, k=29)
  for query in range(30):
    others = np.arange(30) != query
    expected = average_precision_score(
      labels[others] == labels[query], (unit(f) @ unit(f)[query])[others]
    )
    np.testing.assert_allclose(average[query], expected, rtol=1e-5)


def test_empty_features_score_the_share_of_the_class():
  """The order of the rows, here sorted by class, must not help."""
  labels = np.repeat([0, 1], [12, 8])
  precision, average = metrics.retrieval(np.zeros((20, 3), np.float32), labels, k=5)
  prior = np.repeat([11 / 19, 7 / 19], [12, 8])
  np.testing.assert_allclose(precision, prior, rtol=1e-6)
  assert np.all(average < prior + 0.1)


def test_the_query_is_excluded_by_index_and_its_duplicate_is_not():
  f, labels = draw(n=10)
  f[1], labels[1] = f[0], labels[0]
  alone, _ = metrics.retrieval(f, labels, k=1)
  assert alone[0] == alone[1] == 1
  labels[1] = 5
  alone, average = metrics.retrieval(f, labels, k=1)
  assert alone[0] == alone[1] == 0
  assert np.isnan(average[1])  # its class has no other row
  with_itself, _ = metrics.retrieval(f, labels, 1, f, labels)
  np.testing.assert_allclose(with_itself, [0.5, 0.5] + [1] * 8)


def test_length_of_rows_is_free():
  f, labels = draw()
  scale = np.random.default_rng(1).uniform(0.1, 10, (30, 1)).astype(np.float32)
  for one, other in zip(
    metrics.retrieval(f, labels), metrics.retrieval(f * scale, labels), strict=True
  ):
    np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("block_size", [1, 7, 1000])
def test_block_size_changes_nothing(block_size, monkeypatch):
  f, labels = draw()
  expected = metrics.retrieval(f, labels, k=5)
  monkeypatch.setattr(MODULE, "SIMILARITIES", block_size * 30)
  result = metrics.retrieval(f, labels, k=5)
  np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_mask_and_missing_labels_equal_the_subset():
  f, labels = draw()
  keep = np.arange(30) % 4 > 0
  expected = metrics.retrieval(f[keep], labels[keep], k=5)
  padded = np.where(keep[:, None], f, np.nan)
  hidden = np.where(keep, labels, -1)
  for result in (
    metrics.retrieval(padded, labels, 5, where=keep),
    metrics.retrieval(f, hidden, 5),
    jax.jit(lambda f, y, w: metrics.retrieval(f, y, 5, where=w))(f, labels, keep),
  ):
    assert np.all(np.isnan(np.asarray(result)[:, ~keep]))
    np.testing.assert_allclose(np.asarray(result)[:, keep], expected, rtol=1e-6)
  in_gallery = metrics.retrieval(f, labels, 5, f, hidden)
  subset = metrics.retrieval(f, labels, 5, f[keep], labels[keep])
  np.testing.assert_allclose(in_gallery, subset, rtol=1e-6)


def test_order_of_rows_is_free():
  f, labels = draw()
  f = np.maximum(f, 0)
  order = np.random.default_rng(1).permutation(30)
  expected = np.asarray(metrics.retrieval(f, labels, 5))[:, order]
  result = metrics.retrieval(f[order], labels[order], 5)
  np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_a_masked_gallery_with_too_few_rows_has_misses():
  f = np.ones((4, 2), np.float32)
  precision, average = metrics.retrieval(f, np.array([0, 0, -1, -1]), k=2)
  np.testing.assert_array_equal(precision, [0.5, 0.5, np.nan, np.nan])
  np.testing.assert_array_equal(average, [1, 1, np.nan, np.nan])


@pytest.mark.parametrize(
  "change, message",
  [
    ({"k": 30}, "k = 30: it must be an int, at least 1 and at most 29"),
    ({"k": 0}, "k = 0"),
    ({"k": 2.5}, "k = 2.5"),
    ({"gallery": np.ones((3, 4))}, "must be given together"),
    (
      {"gallery": np.ones((3, 5)), "gallery_labels": np.zeros(3, int), "k": 1},
      "f has 4 dimensions and gallery has 5",
    ),
    ({"where": np.ones(3, bool)}, "where has shape"),
  ],
)
def test_refuses(change, message):
  f, labels = draw()
  with pytest.raises(InputError, match=message):
    metrics.retrieval(f, labels, **change)


def test_memory_is_bounded(monkeypatch):
  """A block of 8 queries on 4,096 rows of 4 dimensions: far below 4,096 x 4,096."""
  f = jax.ShapeDtypeStruct((4096, 4), jnp.float32)
  labels = jax.ShapeDtypeStruct((4096,), jnp.int32)
  monkeypatch.setattr(MODULE, "SIMILARITIES", 8 * 4096)
  program = jax.jit(lambda f, y: metrics.retrieval(f, y))
  compiled = program.lower(f, labels).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 4096 * 4096 * 4 / 20
  # Nor is a row sorted as a whole for its ten largest.
  assert " sort(" not in compiled.as_text() and "TopK" in compiled.as_text()
