"""Metrics of two towers: recall of pairs, and zero-shot accuracy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from ncl_jax import checks
from ncl_jax.errors import InputError

_BLOCK = 1024  # queries at a time


def pair_recall(
  queries: ArrayLike, gallery: ArrayLike, groups: ArrayLike, ks: Sequence[int]
) -> dict[int, float]:
  """Share of queries that find a partner among the k most similar rows.

  Rows of the same group are partners of each other, for example images with the same
  caption; finding one of them is enough. Sparse features have many tied similarities.
  The result is the mean over all orders of tied rows, so an all-zero query is exactly
  at chance. (Equal non-zero rows may differ by rounding, which breaks the tie.)

  Args:
    queries: [N, D] features; scale them to unit length for cosine similarity.
    gallery: [N, D] features of the other tower, in the same order.
    groups: [N] integers of any width; only equality matters, and each -1 is a group of
      its own.
    ks: numbers of neighbours, each at least 1; more than N counts as N.

  Returns:
    k -> recall@k in 0..1.

  Raises:
    InputError: other shapes, a wrong k, or NaN or infinity.

  >>> pair_recall([[1.0, 0.0], [0.0, 0.0]], np.eye(2), [0, 1], ks=(1,))
  {1: 0.75}
  """
  queries, gallery = _wide("queries", queries), _wide("gallery", gallery)
  n = len(queries)
  if queries.ndim != 2 or queries.shape != gallery.shape or not queries.size:
    raise InputError(
      f"queries {list(queries.shape)} and gallery {list(gallery.shape)}: they must be "
      "[N, D], of the same shape and not empty"
    )
  numbers = np.asarray(checks.identities(("groups", groups, n))[0])
  of = np.where(numbers < 0, -1 - np.arange(n), numbers)
  for name, values in (("queries", queries), ("gallery", gallery)):
    checks.finite(name, values)
  for k in ks:
    checks.whole("k", k, 1)
  found = dict.fromkeys(ks, 0.0)
  for start in range(0, n, _BLOCK):
    rows = slice(start, start + _BLOCK)
    s = queries[rows] @ gallery.T
    right = of[rows][:, None] == of[None]
    best = np.where(right, s, -np.inf).max(1, keepdims=True)
    above = (s > best).sum(1)
    wrong = ((s == best) & ~right).sum(1)
    tied = wrong + ((s == best) & right).sum(1)
    for k in ks:
      # The probability that no remaining place goes to a partner.
      missed = np.ones(len(s))
      for place in range(min(k, n)):
        left = np.maximum(wrong - place, 0) / np.maximum(tied - place, 1)
        missed *= np.where(place < k - above, left, 1.0)
      found[k] += float(np.sum(1 - missed))
  return {k: total / n for k, total in found.items()}


def zero_shot(f: ArrayLike, classes: ArrayLike, labels: ArrayLike) -> float:
  """Zero-shot accuracy: predicts the class whose name has the most similar features.

  Tied classes are equally likely predictions.

  Args:
    f: [N, D] features of images, of unit length.
    classes: [K, D] features of the names of the classes.
    labels: [N] integers of any width in -1..K-1; rows with -1 are ignored.

  Returns:
    In 0..1; NaN if no image has a label.

  Raises:
    InputError: other shapes, a label beyond the classes, or NaN or infinity.

  >>> zero_shot([[1.0, 0.0], [0.0, 0.0]], np.eye(2), [0, 1])
  0.75
  """
  f, classes = _wide("f", f), _wide("classes", classes)
  if not (f.ndim == classes.ndim == 2 and f.shape[1] == classes.shape[1] > 0):
    raise InputError(
      f"f {list(f.shape)} and classes {list(classes.shape)}: they must be [N, D] and "
      "[K, D]"
    )
  checks.finite("f", f)
  checks.finite("classes", classes)
  of = np.asarray(checks.labels("labels", labels, len(f), len(classes)))
  known = np.flatnonzero(of >= 0)
  if not len(known):
    return float("nan")
  s = f[known] @ classes.T
  first = s == s.max(1, keepdims=True)
  hit = first[np.arange(len(known)), of[known]]
  return float(np.mean(hit / first.sum(1)))


def _wide(name: str, x: ArrayLike) -> np.ndarray:
  """As float32, or float64 for wider types, so that products neither wrap nor round."""
  checks.real(name, x)
  seen = np.asarray(x)
  exact = np.can_cast(seen.dtype, np.float32) or seen.dtype.itemsize <= 2
  return np.asarray(seen, np.float32 if exact else np.float64)
