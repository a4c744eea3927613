"""Dense, truncated, PCA, product-quantised and binary codes, and their searches."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import faiss
import numpy as np
from sklearn.decomposition import PCA

from ncl_jax.encoder import nearest

LISTS = 256  # of IVF-PQ
BITS = 8  # of a part of product quantisation: 256 centroids


@dataclasses.dataclass(frozen=True)
class Rival:
  """A way to store items.

  Attributes:
    method: its name.
    size: bytes of an item; what all items share is not counted.
    search: returns the positions [M, k] of the neighbours that it finds.
  """

  method: str
  size: int
  search: Callable[[], np.ndarray]


def dense(items: np.ndarray, queries: np.ndarray, k: int) -> Rival:
  """The embeddings themselves, float32."""
  return Rival("dense", 4 * items.shape[1], lambda: nearest(items, queries, k))


def compressed(
  items: np.ndarray, queries: np.ndarray, k: int, size: int
) -> list[Rival]:
  """Truncation, PCA, product quantisation and binary codes of `size` bytes an item.

  Args:
    items: [N, E] rows of unit length, centred.
    queries: [M, E], the same.
    k: neighbours of a query.
    size: at most E.
  """
  columns = np.argsort(-items.var(0), kind="stable")[:size]
  pca = PCA(size, svd_solver="covariance_eigh").fit(items)
  pairs = {
    "truncated": (items[:, columns], queries[:, columns]),
    "PCA": (pca.transform(items), pca.transform(queries)),
  }
  made = []
  for method, (stored, asked) in pairs.items():
    a, b = by_distance(in_bytes(stored), asked)
    made.append(Rival(method, size, lambda a=a, b=b: nearest(a, b, k)))
  return [*made, quantised(items, queries, k, size), binary(items, queries, k, size)]


def in_bytes(rows: np.ndarray) -> np.ndarray:
  """The rows as they are after each column was rounded to a signed byte."""
  step = np.maximum(np.abs(rows).max(0), 1e-12) / 127
  return np.rint(rows / step) * step


def by_distance(
  items: np.ndarray, queries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Rows whose inner products are in the order of Euclidean distances, falling."""
  square = -0.5 * np.sum(items**2, axis=1, keepdims=True)
  ones = np.ones((len(queries), 1))
  return (
    np.float32(np.concatenate([items, square], 1)),
    np.float32(np.concatenate([queries, ones], 1)),
  )


def quantised(items: np.ndarray, queries: np.ndarray, k: int, size: int) -> Rival:
  """Product quantisation by faiss: `size` parts, a byte each, float32 queries."""
  wide = -len(items[0]) % size  # empty columns, so that parts are equally wide
  items, queries = (np.pad(x, ((0, 0), (0, wide))) for x in (items, queries))
  index = faiss.IndexPQ(items.shape[1], size, BITS)
  index.train(items)
  index.add(items)
  return Rival("PQ", size, lambda: index.search(queries, k)[1])


def rotated(items: np.ndarray, queries: np.ndarray, k: int, size: int) -> Rival:
  """Product quantisation after a learnt rotation (OPQ), by faiss."""
  wide = -len(items[0]) % size
  items, queries = (np.pad(x, ((0, 0), (0, wide))) for x in (items, queries))
  index = faiss.index_factory(items.shape[1], f"OPQ{size},PQ{size}")
  index.train(items)
  index.add(items)
  return Rival("OPQ", size, lambda: index.search(queries, k)[1])


def listed(
  items: np.ndarray, queries: np.ndarray, k: int, size: int, probes: Sequence[int]
) -> list[Rival]:
  """IVF-PQ by faiss: 256 lists of items, of which a query visits some.

  An item's number, which the lists also store, is not counted.
  """
  wide = -len(items[0]) % size
  items, queries = (np.pad(x, ((0, 0), (0, wide))) for x in (items, queries))
  index = faiss.index_factory(items.shape[1], f"IVF{LISTS},PQ{size}")
  index.train(items)
  index.add(items)

  def search(probe: int) -> np.ndarray:
    index.nprobe = probe
    return index.search(queries, k)[1]

  return [
    Rival(f"IVF-PQ, {probe} lists", size, functools.partial(search, probe))
    for probe in probes
  ]


def binary(items: np.ndarray, queries: np.ndarray, k: int, size: int) -> Rival:
  """Signs of `8 size` random projections by faiss, compared by Hamming distance."""
  index = faiss.IndexLSH(items.shape[1], 8 * size, True, False)
  index.train(items)
  index.add(items)
  return Rival("binary", size, lambda: index.search(queries, k)[1])
