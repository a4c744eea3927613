"""studies/codes: the rivals are what they are called."""

import numpy as np
import scipy.sparse
from sklearn.neighbors import NearestNeighbors

from ncl_jax.encoder import nearest, recall
from studies.codes import run as codes


def test_product_quantisation_loses_nothing_where_there_is_nothing_to_lose(monkeypatch):
  """Items made of 16 values a part, as many as there are centroids: the true order."""
  monkeypatch.setattr(codes, "CENTROIDS", 16)
  rng = np.random.default_rng(0)
  parts = [rng.normal(size=(16, 3))[rng.integers(0, 16, 600)] for _ in range(2)]
  items = np.float32(np.unique(np.concatenate(parts, axis=1), axis=0))
  queries = np.float32(rng.normal(size=(20, 6)))
  search = NearestNeighbors(n_neighbors=10).fit(items)
  true = search.kneighbors(queries, return_distance=False)
  made = codes.quantised(items, queries, true, 2)
  assert len(items) > 150 and made["recall"] == 1 and made["bytes"] == 2


def test_distances_as_inner_products():
  rng = np.random.default_rng(1)
  items, queries = rng.normal(size=(200, 5)), rng.normal(size=(20, 5))
  search = NearestNeighbors(n_neighbors=7).fit(items)
  true = search.kneighbors(queries, return_distance=False)
  np.testing.assert_array_equal(nearest(*codes.by_distance(items, queries), 7), true)


def test_values_in_a_byte():
  rows = np.array([[0.0, 1.0, 0.5], [0.001, 0.3, 0.0]])
  stored = codes.in_bytes(scipy.sparse.csr_matrix(rows))
  # What rounds to 0 takes no place.
  assert stored.nnz == 3
  assert np.abs(stored.toarray() - rows).max() <= 0.5 / 255 + 1e-12


def test_equal_bytes():
  rng = np.random.default_rng(2)
  items, queries = (codes.unit(rng.normal(size=(n, 30))) for n in (300, 20))
  true = nearest(items, queries, codes.K)
  rows = codes.compressed(np.float32(items), np.float32(queries), true, 24)
  assert [row["method"] for row in rows] == ["truncated", "PCA", "PQ"]
  assert {row["bytes"] for row in rows} == {24}
  for row in rows:
    assert row["recall"] == recall(row["search"](), true)
