"""Exact search by inner product, with dense rows and with sparse codes."""

from typing import Any

import numpy as np
import scipy.sparse

from ncl_jax import checks
from ncl_jax.errors import InputError

# Similarities in memory at a time.
_HELD = 2**24
# Dense queries at a time: few enough for a processor's cache.
_QUERIES = 64


def nearest(items: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
  """The k items [N, D] with the largest inner product, by exhaustive search.

  Returns:
    [M, k] int64 positions for queries [M, D], the best first.

  Raises:
    InputError: k is not in 1..N, or a row has NaN or infinity.

  >>> nearest(np.eye(3), np.array([[0.1, 2.0, 1.0]]), 2).tolist()
  [[1, 2]]
  """
  items, queries = _dense("items", items), _dense("queries", queries)
  checks.same_width("queries", queries, "items", items)
  checks.whole("k", k, 1, len(items))
  size = max(1, _HELD // len(items))
  blocks = range(0, len(queries), size)
  return np.concatenate([largest(queries[i : i + size] @ items.T, k) for i in blocks])


class InvertedIndex:
  """Lists for each dimension the items it is active in, so a search visits few items.

  A sparse query costs one product per item and dimension that are active in both, and a
  dense one a product per active dimension of any item.
  """

  def __init__(self, codes: scipy.sparse.sparray | scipy.sparse.spmatrix):
    """Builds the lists from sparse non-negative codes [N, D].

    Raises:
      InputError: a dense array, another shape or type, or an entry that is NaN or
        infinite.
    """
    if not scipy.sparse.issparse(codes):
      raise InputError("codes are dense: an inverted index takes scipy.sparse matrices")
    self._codes = _sparse("codes", codes)
    # Rows are dimensions, and each row is a list of items.
    self._lists = scipy.sparse.csr_array(self._codes.T)
    self.items = codes.shape[0]

  def nearest(self, queries: Any, k: int) -> np.ndarray:
    """The k items with the largest inner product, for sparse or dense queries [M, D].

    Returns:
      [M, k] int64 positions, the best first. For sparse queries, -1 fills up if fewer
      than k items share a dimension with the query; all others are equally near.

    Raises:
      InputError: another k, width or type, or an entry that is NaN or infinite.
    """
    checks.whole("k", k, 1, self.items)
    if isinstance(queries, np.ndarray):
      queries = _dense("queries", queries)
      checks.same_width("queries", queries, "codes", self._codes)
      blocks = range(0, len(queries), _QUERIES)
      parts = (np.ascontiguousarray(queries[i : i + _QUERIES].T) for i in blocks)
      return np.concatenate([largest((self._codes @ x).T, k) for x in parts])
    queries = _sparse("queries", queries)
    checks.same_width("queries", queries, "codes", self._codes)
    found = np.full((queries.shape[0], k), -1, np.int64)
    size = max(1, _HELD // self.items)
    for start in range(0, len(found), size):
      scores = queries[start : start + size] @ self._lists
      for row in range(scores.shape[0]):
        part = slice(scores.indptr[row], scores.indptr[row + 1])
        values, positions = scores.data[part], scores.indices[part]
        if len(values) > k:
          chosen = np.argpartition(-values, k - 1)[:k]
          values, positions = values[chosen], positions[chosen]
        order = np.lexsort((positions, -values))
        found[start + row, : len(order)] = positions[order]
    return found


def recall(found: np.ndarray, true: np.ndarray) -> float:
  """Mean share of the true neighbours [M, k] that were found [M, k]; -1 = none.

  Raises:
    InputError: different or empty shapes, or other than integers.

  >>> recall(np.array([[1, 2], [5, -1]]), np.array([[2, 3], [5, 6]]))
  0.5
  """
  found, true = checks.array("found", found), checks.array("true", true)
  whole = all(np.issubdtype(x.dtype, np.integer) for x in (found, true))
  if not whole or found.shape != true.shape or found.ndim != 2 or not found.size:
    raise InputError(
      f"found is {found.dtype}{list(found.shape)} and true {true.dtype}"
      f"{list(true.shape)}: both must be integers [M, k] of the same shape, not empty"
    )
  hits = [len(np.intersect1d(a, b)) for a, b in zip(found, true, strict=True)]
  return float(np.mean(hits) / true.shape[1])


def largest(scores: np.ndarray, k: int) -> np.ndarray:
  """Positions [M, k] of the k largest scores [M, N] of each row, the best first.

  Ties are in order of position. Which of several scores equal to the k-th are included
  is unspecified.
  """
  scores = np.ascontiguousarray(scores)
  chosen = np.argpartition(-scores, k - 1, axis=1)[:, :k]
  chosen.sort(axis=1)
  values = np.take_along_axis(scores, chosen, axis=1)
  order = np.argsort(-values, axis=1, kind="stable")
  return np.take_along_axis(chosen, order, axis=1)


def _dense(name: str, x: Any) -> np.ndarray:
  checks.features(name, x)
  checks.finite(name, x)
  return _wide(np.asarray(x))


def _sparse(name: str, x: Any) -> scipy.sparse.csr_array:
  if not scipy.sparse.issparse(x) or x.ndim != 2:
    raise InputError(
      f"{name} have shape {list(np.shape(x))}: they must be [N, D], sparse or an "
      "array; one row is scipy.sparse.csr_array(codes[[i]])"
    )
  checks.real(f"{name}.data", x.data)
  checks.finite(f"{name}.data", x.data)
  return scipy.sparse.csr_array(_wide(x))


def _wide(x: Any) -> Any:
  """As float32 or float64, so that products neither wrap nor round."""
  return x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
