"""Retrieval: the share of a query's nearest neighbours that have its class."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.metrics.rows import largest, map_rows, nan_unless
from ncl_jax.numerics import l2_normalize, on_any_mesh, undefined_is_nan

Array = jax.typing.ArrayLike
SIMILARITIES = 2**23  # that are held in memory, for a block of queries


@on_any_mesh(rows="f")
def retrieval(
  f: Array,
  labels: Array,
  k: int = 10,
  gallery: Array | None = None,
  gallery_labels: Array | None = None,
  *,
  where: Array | None = None,
) -> tuple[jax.Array, jax.Array]:
  """Precision and average precision among the k nearest rows by cosine similarity.

  `P@k = (1/k) sum_{i<=k} rel_i` and `AP@k = (1/min(R, k)) sum_{i<=k} rel_i P@i`, where
  rel_i = 1 if the i-th neighbour has the query's class and R = number of rows of that
  class in the gallery. (The released code calls its mean P@10 "mAP".)

  Sparse features have many tied similarities. Both values are exact means over all
  orders of the tied rows, so the order of the rows does not matter. An all-zero query
  has similarity 0 with every row and scores the share of its class in the gallery.

  Args:
    f: [N, D] queries; rows are normalised here.
    labels: [N] integers of any width, only equality matters; a query with -1 scores
      NaN.
    k: number of neighbours, at most the number of candidates.
    gallery: [M, D] rows to search; None = the queries themselves, each without itself
      (found by index, so that a duplicate image stays).
    gallery_labels: [M] int; rows with -1 are not searched.
    where: [N] queries to count; others score NaN and, without a gallery, are not
      searched. None = all.

  Returns:
    `(precision_at_k [N], average_precision_at_k [N])`, in 0..1. The second is NaN
    where R = 0. Places that a masked gallery leaves empty count as misses. Under
    `jax.jit`, where values cannot be seen, both are NaN for a query with NaN or
    infinity, and for all queries if a searched row holds one.

  Raises:
    InputError: wrong shape or k; one of gallery and its labels alone; NaN
      or infinity in a query or a searched row.

  Source: AP@k as in Weyand et al. 2020 (arXiv:2004.01804), Eq. 1; ties as in McSherry &
  Najork 2008, Computing information retrieval performance measures efficiently in the
  presence of tied scores.

  >>> f = jnp.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
  >>> precision, _ = retrieval(f, jnp.array([0, 0, 1, 1]), k=2)
  >>> precision.tolist()
  [0.5, 0.5, 0.5, 0.5]
  """
  checks.features("f", f)
  if (gallery is None) != (gallery_labels is None):
    raise InputError("gallery and gallery_labels must be given together or not at all")
  n = jnp.shape(f)[0]
  f = jnp.asarray(f)
  named: list[tuple[str, Any, int]] = [("labels", labels, n)]
  bank = f
  if gallery is not None:
    checks.features("gallery", gallery)
    bank = jnp.asarray(gallery)
    named += [("gallery_labels", gallery_labels, len(bank))]
  numbers = checks.identities(*named)
  labels, bank_labels = numbers[0], numbers[-1]
  valid = labels >= 0
  if where is not None:
    checks.mask(where, n)
    valid = valid & jnp.asarray(where, bool)
  searched = valid if gallery is None else bank_labels >= 0
  checks.finite("f", f, valid)
  if gallery is not None:
    checks.finite("gallery", bank, searched)
  checks.same_width("f", f, "gallery", bank)
  m = bank.shape[0]
  checks.whole("k", k, 1, m - (gallery is None))
  size = min(max(1, SIMILARITIES // m), n)
  with undefined_is_nan():
    precision, average = _retrieval(
      f, labels, bank, bank_labels, searched, k, gallery is None, size
    )
  good = valid & jnp.all(jnp.isfinite(f), axis=1)
  good &= jnp.all(jnp.isfinite(bank).all(axis=1) | ~searched)
  return nan_unless(good, precision), nan_unless(good, average)


@functools.partial(jax.jit, static_argnames=("k", "without_self", "size"))
def _retrieval(f, labels, bank, bank_labels, searched, k, without_self, size):
  n, m = f.shape[0], bank.shape[0]
  bank = l2_normalize(bank)
  columns = jnp.arange(m)[None]

  def block(start):
    query = l2_normalize(jax.lax.dynamic_slice_in_dim(f, start, size))
    query_labels = jax.lax.dynamic_slice_in_dim(labels, start, size)[:, None]
    s = jnp.matmul(query, bank.T, precision="highest")
    rows = start + jnp.arange(size)[:, None]
    keep = searched[None] & ~(without_self & (rows == columns))
    s = jnp.where(keep, s, -jnp.inf)
    relevant = (bank_labels[None] == query_labels) & keep
    top, index = largest(s, k)
    hit = (bank_labels[index] == query_labels) & (top > -jnp.inf)
    cut = top[:, -1:]  # rows tied at this value may lie beyond the k-th place
    tied = s == cut
    return _expected(
      top,
      hit,
      jnp.sum(tied, axis=1, keepdims=True),
      jnp.sum(tied & relevant, axis=1, keepdims=True),
      jnp.sum(relevant, axis=1),
    )

  return map_rows(block, n, size)


def _expected(top, hit, tied, tied_hits, relevant):
  """Precision and average precision [B], averaged over the orders of tied neighbours.

  Args:
    top: [B, k] similarities, in descending order.
    hit: [B, k] whether the neighbour is relevant.
    tied: [B, 1] number of candidates as similar as the last of `top`.
    tied_hits: [B, 1] how many of them are relevant.
    relevant: [B] number of relevant candidates.
  """
  k = top.shape[1]
  place = jnp.arange(k)[None]
  change = top[:, 1:] != top[:, :-1]
  begin = jnp.pad(jnp.where(change, place[:, 1:], 0), ((0, 0), (1, 0)))
  begin = jax.lax.cummax(begin, axis=1)
  end = jnp.pad(jnp.where(change, place[:, 1:], k), ((0, 0), (0, 1)), constant_values=k)
  end = jax.lax.cummin(end, axis=1, reverse=True)
  hits = jnp.pad(jnp.cumsum(hit, axis=1), ((0, 0), (1, 0)))
  before = jnp.take_along_axis(hits, begin, axis=1)
  # Size and hits of each place's group of tied rows.
  last = top == top[:, -1:]
  size = jnp.where(last, tied, end - begin)
  inside = jnp.where(last, tied_hits, jnp.take_along_axis(hits, end, axis=1) - before)
  share = jnp.where(top > -jnp.inf, inside / size, 0).astype(top.dtype)
  # Expected hits of the group in earlier places, given a hit in this place.
  earlier = (place - begin) * (inside - 1) / jnp.maximum(size - 1, 1)
  places = before.astype(earlier.dtype) + earlier + 1
  gain = share * (places / (place + 1).astype(places.dtype)).astype(share.dtype)
  precision = jnp.sum(share, axis=1) / k
  return precision, jnp.sum(gain, axis=1) / jnp.minimum(relevant, k).astype(gain.dtype)
