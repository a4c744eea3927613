"""studies/codes: the rivals are what they are called."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.neighbors import NearestNeighbors

from ncl_jax.encoder import nearest, recall
from studies.codes import run as codes

rivals = pytest.importorskip("studies.codes.rivals", reason="needs faiss")


def unit(rng, n, width):
  return np.float32(codes.unit(rng.normal(size=(n, width))))


def test_product_quantisation_finds_what_its_parts_keep():
  """A byte for each column loses nothing; one for three loses, of an odd width, too."""
  rng = np.random.default_rng(0)
  items, queries = unit(rng, 1000, 5), unit(rng, 50, 5)
  true = nearest(items, queries, 10)
  fine, coarse = (rivals.quantised(items, queries, 10, size) for size in (5, 2))
  assert (fine.size, coarse.size) == (5, 2)
  assert recall(fine.search(), true) > 0.95 > recall(coarse.search(), true) > 0.3


def test_distances_as_inner_products():
  rng = np.random.default_rng(1)
  items, queries = rng.normal(size=(200, 5)), rng.normal(size=(20, 5))
  search = NearestNeighbors(n_neighbors=7).fit(items)
  true = search.kneighbors(queries, return_distance=False)
  np.testing.assert_array_equal(nearest(*rivals.by_distance(items, queries), 7), true)


def test_values_in_a_byte():
  rows = np.array([[0.0, 1.0, 0.5], [0.001, 0.3, 0.0]])
  stored = codes.in_bytes(scipy.sparse.csr_matrix(rows))
  # What rounds to 0 takes no place.
  assert stored.nnz == 3
  assert np.abs(stored.toarray() - rows).max() <= 0.5 / 255 + 1e-12
  signed = rivals.in_bytes(rows - 0.3)
  assert np.abs(signed - rows + 0.3).max() <= 0.5 / 127 and len(np.unique(signed)) > 3


def test_binary_codes_are_signs_of_projections():
  rng = np.random.default_rng(3)
  items, queries = unit(rng, 300, 16), unit(rng, 20, 16)
  made = rivals.binary(items, queries, 10, 64)
  true = nearest(items, queries, 10)
  assert made.size == 64 and recall(made.search(), true) > 0.5
  np.testing.assert_array_equal(
    rivals.binary(items, items, 1, 8).search()[:, 0], range(300)
  )


def test_lists_trade_recall_for_visits():
  rng = np.random.default_rng(5)
  items, queries = unit(rng, 10_000, 8), unit(rng, 50, 8)
  true = nearest(items, queries, 10)
  few, all_ = rivals.listed(items, queries, 10, 8, (1, 256))
  assert (few.size, few.method, all_.method) == (
    8,
    "IVF-PQ, 1 lists",
    "IVF-PQ, 256 lists",
  )
  assert recall(few.search(), true) + 0.1 < recall(all_.search(), true) > 0.9


def test_rivals_are_of_the_bytes_that_they_are_compared_at():
  rng = np.random.default_rng(2)
  items, queries = unit(rng, 300, 30), unit(rng, 20, 30)
  rows = rivals.compressed(items, queries, 10, 24)
  assert [row.method for row in rows] == ["truncated", "PCA", "PQ", "binary"]
  assert {row.size for row in rows} == {24}
  assert all(row.search().shape == (20, 10) for row in rows)
  assert rivals.dense(items, queries, 10).size == 120


def test_queries_are_no_items():
  rows = np.float32(np.random.default_rng(4).normal(size=(50, 4)))
  items, queries, true = codes.parts(rows, slice(30), slice(-10, None))
  assert len(items) == 30 and true.shape == (10, codes.K)
  with pytest.raises(ValueError, match="too few"):
    codes.parts(rows, slice(30), slice(-21, None))
