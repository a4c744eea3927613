"""Exact search by inner product, with dense rows and with sparse codes."""

from typing import Any

import numpy as np
import scipy.sparse

from ncl_jax import checks
from ncl_jax.errors import InputError

# Similarities that are held at a time.
_HELD = 2**24


def nearest(items: np.ndarray, queries: np.ndarray, k: int) -> np.ndarray:
  """The k items of largest inner product, by looking at each.

  Args:
    items: [N, D].
    queries: [M, D].
    k: how many, at most N.

  Returns:
    [M, k] int64 positions, the best first.

  Raises:
    InputError: another k, or a row with NaN or infinity.

  >>> nearest(np.eye(3), np.array([[0.1, 2.0, 1.0]]), 2).tolist()
  [[1, 2]]
  """
  checks.features("items", items)
  checks.features("queries", queries)
  items, queries = (_wide(x) for x in (items, queries))
  checks.same_width("queries", queries, "items", items)
  checks.whole("k", k, 1, len(items))
  checks.finite("items", items)
  checks.finite("queries", queries)
  size = max(1, _HELD // len(items))
  blocks = range(0, len(queries), size)
  return np.concatenate([largest(queries[i : i + size] @ items.T, k) for i in blocks])


class InvertedIndex:
  """For each dimension the items that it is active in: a search looks at few items.

  A query costs as many products as there are active entries, over all items, in the
  dimensions that it uses.
  """

  def __init__(self, codes: scipy.sparse.sparray | scipy.sparse.spmatrix):
    """Builds the lists.

    Args:
      codes: [N, D] sparse, non-negative.

    Raises:
      InputError: a dense array, another shape, or an entry that is NaN or infinite.
    """
    if not scipy.sparse.issparse(codes):
      raise InputError("codes are dense: an inverted index takes scipy.sparse matrices")
    # Rows are the dimensions: each row is a list of items.
    if codes.ndim != 2:
      raise InputError(f"codes have shape {list(codes.shape)}: they must be [N, D]")
    self._lists = scipy.sparse.csr_array(_wide(codes).T)
    checks.finite("the lists of codes", self._lists.data)
    self.items = codes.shape[0]

  def nearest(self, queries: scipy.sparse.spmatrix, k: int) -> np.ndarray:
    """The k items of largest inner product.

    Args:
      queries: [M, D] sparse, non-negative.
      k: how many, at most N.

    Returns:
      [M, k] int64 positions, the best first; -1 where fewer items share a dimension
      with the query: of the others none is nearer than another.

    Raises:
      InputError: another k or width, or an entry that is NaN or infinite.
    """
    checks.whole("k", k, 1, self.items)
    if not scipy.sparse.issparse(queries) or queries.ndim != 2:
      raise InputError(
        f"queries have shape {list(np.shape(queries))}: they must be sparse "
        "[M, D]; one row is scipy.sparse.csr_array(codes[[i]])"
      )
    checks.same_width("queries", queries, "codes", self._lists.T)
    queries = scipy.sparse.csr_array(_wide(queries))
    checks.finite("the entries of queries", queries.data)
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
  """Mean share of the true neighbours that were found.

  Args:
    found: [M, k] positions; -1 = none.
    true: [M, k] positions.

  >>> recall(np.array([[1, 2], [5, -1]]), np.array([[2, 3], [5, 6]]))
  0.5
  """
  if found.shape != true.shape:
    raise InputError(f"found {found.shape} and true {true.shape}: the same shape")
  hits = [len(np.intersect1d(a, b)) for a, b in zip(found, true, strict=True)]
  return float(np.mean(hits) / true.shape[1])


def largest(scores: np.ndarray, k: int) -> np.ndarray:
  """Positions of the k largest of each row, the best first, of equals the first.

  Args:
    scores: [M, N].
    k: how many, at most N.

  Returns:
    [M, k] int64. Which of those that equal the k-th are taken is left open.
  """
  chosen = np.argpartition(-scores, k - 1, axis=1)[:, :k]
  chosen.sort(axis=1)
  values = np.take_along_axis(scores, chosen, axis=1)
  order = np.argsort(-values, axis=1, kind="stable")
  return np.take_along_axis(chosen, order, axis=1)


def _wide(x: Any) -> Any:
  """At least float32: products of small integers would wrap, those of float16 round."""
  if not scipy.sparse.issparse(x):
    x = np.asarray(x)
  return x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)
