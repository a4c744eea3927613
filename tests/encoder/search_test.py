"""Search: against scikit-learn's."""

import numpy as np
import pytest
import scipy.sparse
from sklearn.neighbors import NearestNeighbors

from ncl_jax.encoder import InvertedIndex, nearest, recall
from ncl_jax.errors import InputError


def test_searches_find_what_scikit_learn_finds():
  rng = np.random.default_rng(4)
  codes = np.maximum(rng.normal(size=(400, 12)) - 0.8, 0)
  codes = codes[codes.any(1)]
  items, queries = codes[50:], codes[:50]
  search = NearestNeighbors(n_neighbors=5, metric="cosine").fit(items)
  distances, expected = search.kneighbors(queries)
  items, queries = (x / np.linalg.norm(x, axis=1)[:, None] for x in (items, queries))
  index = InvertedIndex(scipy.sparse.csr_matrix(items))
  sparse = index.nearest(scipy.sparse.csr_matrix(queries), 5)
  for found in (nearest(items, queries, 5), sparse, index.nearest(queries, 5)):
    # Equals may come in another order: similarities are what must agree.
    padded = np.concatenate([items, np.zeros((1, 12))])
    s = np.einsum("md,mkd->mk", queries, padded[found])
    np.testing.assert_allclose(s, 1 - distances, atol=1e-12)
  assert recall(expected, expected) == 1
  with pytest.raises(InputError, match="scipy.sparse"):
    InvertedIndex(items)
  with pytest.raises(InputError, match="k = 351"):
    nearest(items[:350], queries, 351)


def test_an_inverted_index_does_not_invent_neighbours():
  items = scipy.sparse.csr_matrix(np.eye(4)[[0, 0, 1]])
  query = scipy.sparse.csr_matrix(np.eye(4)[[0, 3]])
  assert InvertedIndex(items).nearest(query, 3).tolist() == [[0, 1, -1], [-1, -1, -1]]
