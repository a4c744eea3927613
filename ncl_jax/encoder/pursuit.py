"""Codes for search with dense queries: matching pursuit on the decoder's directions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.validation import check_is_fitted, validate_data

from ncl_jax.encoder import coding, given
from ncl_jax.encoder.scaling import some
from ncl_jax.errors import InputError

# Added to the diagonal of the normal equations: chosen directions may be parallel.
_RIDGE = 1e-4
# Numbers of the normal equations in memory at a time.
_HELD = 2**24


def pursue(x: np.ndarray, directions: np.ndarray, active: int) -> np.ndarray:
  """Non-negative weights of a few directions whose sum is close to each row.

  Matching pursuit: `active` times, the unused direction of largest inner product with
  the residual is subtracted from it. Least squares, with a penalty of 1e-4 on squared
  weights, then gives those of the chosen directions, and negative ones become 0.

  Args:
    x: [N, E].
    directions: [D, E] of unit length.
    active: largest number of directions for a row, in 1..D.

  Returns:
    [N, D] weights.

  Source: Mallat and Zhang 1993, Matching pursuits with time-frequency dictionaries.

  >>> pursue(np.array([[3.0, -1.0, 2.0]]), np.eye(3), 1).round(2).tolist()
  [[3.0, 0.0, 0.0]]
  """
  gram = directions @ directions.T
  products = x @ directions.T
  rows, residual = np.arange(len(x)), products.copy()
  chosen = np.empty((len(x), active), np.int64)
  for step in range(active):
    best = residual.argmax(1)
    weight = np.maximum(residual[rows, best], 0)
    residual -= weight[:, None] * gram[best]
    residual[rows, best] = -np.inf
    chosen[:, step] = best
  right = np.take_along_axis(products, chosen, 1)
  weights = np.zeros_like(products)
  size = max(1, _HELD // active**2)
  for start in range(0, len(x), size):
    part = slice(start, start + size)
    of = chosen[part]
    left = gram[of[:, :, None], of[:, None, :]] + _RIDGE * np.eye(active)
    solved = np.linalg.solve(left, right[part, :, None])[:, :, 0]
    np.put_along_axis(weights[part], of, np.maximum(solved, 0).astype(x.dtype), 1)
  return weights


class Pursuit:
  """The methods of `NonNegativeEncoder` for search with dense queries.

  An item is stored as a sparse code, and a query is compared with the embedding that
  the code decodes to. This finds more neighbours than comparing two codes.
  """

  def encode_items(self: Any, X: Any) -> scipy.sparse.csr_array:
    """Codes of items to store: pursuit on the decoder, of unit length when decoded.

    Args:
      X: [N, E] embeddings.

    Returns:
      [N, D] float32, with at most `n_active` entries in a row; a row equal to the mean
      of the training data is all zero.

    Raises:
      InputError: the encoder has no decoder.
      ValueError: NaN, another width, not numbers, or beyond float32.
    """
    directions = self._directions("encode_items")
    active = min(given.active(self.n_active), len(directions)) or len(directions)
    X = validate_data(self, X, dtype=given.FLOATS, reset=False)

    def codes() -> Iterator[np.ndarray]:
      for block in some(X):
        z = pursue(coding.finite(self.scaling_(block)), directions, active)
        # In float64, whose squares do not overflow.
        length = np.linalg.norm(np.float64(z) @ directions, axis=1, keepdims=True)
        z = z / np.where(length > 0, length, 1)
        yield coding.finite(z.astype(np.float32))

    return coding.stacked(codes())

  def encode_queries(self: Any, X: Any) -> np.ndarray:
    """Codes of queries: inner products with the decoder's directions.

    Their inner product with a code of `encode_items` is that of the query with the
    decoded item, so `InvertedIndex` finds the items of largest cosine.

    Args:
      X: [M, E] embeddings.

    Returns:
      [M, D] float32.

    Raises:
      ValueError: as `encode_items`.
    """
    directions = self._directions("encode_queries")
    X = validate_data(self, X, dtype=given.FLOATS, reset=False)
    x = coding.finite(self.scaling_(X))
    return coding.finite(x @ directions.T)

  def _directions(self: Any, method: str) -> np.ndarray:
    """[D, E] the decoder's rows at unit length, in the units of scaled embeddings."""
    check_is_fitted(self)
    if self.objective == "contrastive":
      raise InputError(
        f"objective = 'contrastive' trains no decoder: {method} needs 'csr' or "
        "'reconstruction'"
      )
    decoder = coding.decoder(self.params_)
    length = np.linalg.norm(decoder, axis=1, keepdims=True)
    return decoder / np.where(length > 0, length, 1)
