"""Pursuit and search with dense queries: against loops and closed forms."""

import numpy as np
import pytest

from ncl_jax.encoder import InvertedIndex, NonNegativeEncoder, nearest, pursuit, recall
from ncl_jax.encoder.pursuit import pursue
from ncl_jax.errors import InputError


def rows(random, n, width):
  x = random.normal(size=(n, width))
  return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_pursuit_is_its_definition():
  random = np.random.default_rng(0)
  x, directions = 3 * rows(random, 40, 6), rows(random, 15, 6)
  found = pursue(x, directions, 4)
  for one, weights in zip(x, found, strict=True):
    residual, chosen = one.copy(), []
    for _ in range(4):
      free = [d for d in range(15) if d not in chosen]
      best = max(free, key=lambda d: directions[d] @ residual)
      residual -= max(directions[best] @ residual, 0) * directions[best]
      chosen.append(best)
    a = directions[chosen]
    solved = np.linalg.solve(a @ a.T + 1e-4 * np.eye(4), a @ one)
    expected = np.zeros(15)
    expected[chosen] = np.maximum(solved, 0)
    np.testing.assert_allclose(weights, expected, atol=1e-9)


def test_rows_are_solved_a_few_at_a_time(monkeypatch):
  """All dimensions active: one row's equations are as many numbers as [D, D]."""
  random = np.random.default_rng(3)
  x, directions = rows(random, 11, 6), rows(random, 5, 6)
  whole = pursue(x, directions, 5)
  sizes, solve = [], np.linalg.solve
  monkeypatch.setattr(pursuit, "_HELD", 4 * 25)
  monkeypatch.setattr(
    np.linalg, "solve", lambda a, b: sizes.append(a.size) or solve(a, b)
  )
  np.testing.assert_array_equal(pursue(x, directions, 5), whole)
  assert sizes == [100, 100, 75]


def test_orthogonal_directions_give_the_largest_products():
  x = np.random.default_rng(1).normal(size=(20, 8))
  found = pursue(x, np.eye(8), 3)
  kept = np.sort(x, axis=1)[:, -3:-2]
  expected = np.where(x >= kept, np.maximum(x, 0), 0)
  np.testing.assert_allclose(found, expected, rtol=1e-3)


@pytest.fixture(scope="module")
def searched():
  """A fitted encoder, items and queries near a few directions."""
  random = np.random.default_rng(2)
  axes = random.normal(size=(24, 12))
  weights = random.exponential(size=(900, 24)) * (random.random((900, 24)) < 0.15)
  x = weights @ axes + 0.05 * random.normal(size=(900, 12)) + 5
  made = NonNegativeEncoder(32, n_active=4, epochs=15, batch_size=64, random_state=0)
  return made.fit(x[:800]), x[:800], x[800:]


def test_inner_products_are_those_with_the_decoded_items(searched):
  made, items, queries = searched
  stored, asked = made.encode_items(items), made.encode_queries(queries)
  assert np.diff(stored.indptr).max() <= 4 and stored.data.min() > 0
  raw = made.params_["kernel"].T
  directions = raw / np.linalg.norm(raw, axis=1, keepdims=True)
  decoded = stored @ directions
  np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), 1, rtol=1e-5)
  scaled = (queries - made.scaling_.mean) / made.scaling_.scale
  np.testing.assert_allclose(asked @ stored.T, scaled @ decoded.T, atol=1e-4)


def test_it_finds_more_neighbours_than_two_codes(searched):
  made, items, queries = searched
  centred = (rows_ - items.mean(0) for rows_ in (items, queries))
  a, b = (np.float32(c / np.linalg.norm(c, axis=1, keepdims=True)) for c in centred)
  true = nearest(a, b, 10)
  dense = InvertedIndex(made.encode_items(items)).nearest(
    made.encode_queries(queries), 10
  )
  made.set_params(sparse_output=True)
  codes = InvertedIndex(made.transform(items)).nearest(made.transform(queries), 10)
  assert recall(dense, true) > recall(codes, true) + 0.05


def test_the_mean_is_an_empty_code(searched):
  made, _, _ = searched
  assert made.encode_items(made.scaling_.mean[None]).nnz == 0


def test_rows_far_out_have_codes_or_are_refused(searched):
  made, items, queries = searched
  mean = made.scaling_.mean
  usual = np.float64(items[:1]) - mean
  codes = [made.encode_items(mean + 10.0**power * usual) for power in (3, 30)]
  assert codes[0].nnz
  np.testing.assert_allclose(codes[1].toarray(), codes[0].toarray(), atol=1e-4)
  for call in (made.encode_items, made.encode_queries):
    with pytest.raises(InputError, match="1 of 2 codes hold NaN or infinity"):
      call(np.concatenate([usual, 1e60 * usual]))


def test_wrong_calls_are_named(searched):
  made, items, queries = searched
  with pytest.raises(InputError, match="31 dimensions"):
    InvertedIndex(made.encode_items(items)).nearest(
      made.encode_queries(queries)[:, 1:], 3
    )
  other = NonNegativeEncoder(8, objective="contrastive", epochs=0).fit(items[:20])
  for call in (other.encode_items, other.encode_queries, other.inverse_transform):
    with pytest.raises(InputError, match="trains no decoder"):
      call(items)
