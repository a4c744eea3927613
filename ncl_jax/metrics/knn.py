"""Weighted nearest-neighbour classification: a probe that needs no training."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.metrics.rows import largest, map_rows, nan_unless, starts
from ncl_jax.numerics import at_least_float32, l2_normalize, on_any_mesh, safe_divide

Array = jax.typing.ArrayLike
DISTANCES = ("cosine", "euclidean")
BLOCK = 2048  # queries and bank rows of a tile that is held in memory


@on_any_mesh(rows="f")
def knn_predict(
  train_f: Array,
  train_labels: Array,
  f: Array,
  num_classes: int,
  k: int = 20,
  temperature: Array = 0.07,
  distance: str = "cosine",
) -> jax.Array:
  """Predicts the class with the largest vote of the k nearest training rows.

  The votes are those of `knn_scores`, scaled so that no temperature overflows.

  Args:
    train_f: [M, D] the bank; rows are normalised here if `distance` is "cosine".
    train_labels: [M] int; rows with -1 are not searched.
    f: [N, D] queries.
    k: number of neighbours, at most M.
    temperature: above 0; used only for "cosine".
    distance: "cosine" or "euclidean".

  Returns:
    [N] int32 labels, the smallest of tied ones; -1 if no bank row is labelled. Under
    `jax.jit`, where values cannot be checked, also -1 for a query with NaN or infinity,
    and for all queries if a labelled bank row has one.

  Raises:
    InputError: wrong shape, number, or distance, or NaN or infinity in a query or a
      labelled bank row.

  Source: Wu et al. 2018 (arXiv:1805.01978), Section 3.4, and the released code.

  >>> bank = jnp.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
  >>> knn_predict(bank, jnp.array([0, 0, 1]), jnp.array([[0.1, 2.0]]), 2, k=1).tolist()
  [1]
  """
  temperature = checks.positive("temperature", temperature)
  search = _Search(num_classes, k, distance, BLOCK)
  labels = _checked(train_f, train_labels, f, search)
  _check_finite(train_f, labels, f)
  votes = _votes(train_f, labels, f, temperature, search, relative=True)
  best = jnp.argmax(votes, axis=1).astype(jnp.int32)
  good = _finite_rows(train_f, labels, f)
  return jnp.where(good & (jnp.max(votes, axis=1) > 0), best, -1)


@on_any_mesh(rows="f")
def knn_scores(
  train_f: Array,
  train_labels: Array,
  f: Array,
  num_classes: int,
  k: int = 20,
  temperature: Array | None = 0.07,
) -> jax.Array:
  """Votes of the k nearest training rows for each class.

  `score_c` is the sum of w over the k nearest rows with label c, with `w = exp(cosine /
  temperature)` or `w = 1 / (Euclidean distance + 1e-5)`. If rows at equal distance
  compete for the last places (as with one-hot or all-zero features), each votes with
  the same fraction. This is the mean over all orders, so the order of the bank does not
  matter.

  Euclidean distances come from a matrix product. In float32, distances below 1e-3 of
  the rows' length are rounding errors.

  The other arguments are those of `knn_predict`.

  Args:
    temperature: above 0, for cosine similarity; below 0.0113, `exp` overflows float32.
      None: by Euclidean distance.

  Returns:
    [N, K] scores, at least 0, not normalised; NaN where `knn_predict` gives -1 for NaN
    or infinity.

  Raises:
    InputError: as `knn_predict`.

  Source: as `knn_predict`.

  >>> bank = jnp.array([[3.0, 4.0], [0.0, 0.0]])
  >>> knn_scores(bank, jnp.array([1, 0]), jnp.array([[0.0, 0.0]]), 2, k=2,
  ...            temperature=None).round(1).tolist()
  [[100000.0, 0.20000000298023224]]
  """
  distance = "euclidean" if temperature is None else "cosine"
  temperature = checks.positive(
    "temperature", 1 if temperature is None else temperature
  )
  search = _Search(num_classes, k, distance, BLOCK)
  labels = _checked(train_f, train_labels, f, search)
  _check_finite(train_f, labels, f)
  good = _finite_rows(train_f, labels, f)
  return nan_unless(good[:, None], _votes(train_f, labels, f, temperature, search))


@on_any_mesh()
def knn_predict_grid(
  train_f: Array,
  train_labels: Array,
  f: Array,
  num_classes: int,
  ks: Sequence[int],
  temperatures: Sequence[Array] | None,
) -> jax.Array:
  """`knn_predict` for every k and temperature, with a single search.

  The other arguments are those of `knn_predict`.

  Args:
    ks: numbers of neighbours, each at most M.
    temperatures: each above 0, for cosine similarity. None: by Euclidean distance.

  Returns:
    [len(ks), len(temperatures), N] int32 labels; [len(ks), 1, N] without temperatures.

  Raises:
    InputError: as `knn_predict`.

  >>> bank, f = jnp.eye(3)[:2], jnp.array([[0.1, 2.0, 0.0]])
  >>> knn_predict_grid(bank, jnp.array([0, 1]), f, 2, [1, 2], [0.07]).tolist()
  [[[1]], [[1]]]
  """
  distance = "euclidean" if temperatures is None else "cosine"
  temperatures = [1.0] if temperatures is None else temperatures
  if not (len(ks) and len(temperatures)):
    raise InputError(
      f"ks = {ks!r}, temperatures = {temperatures!r}: neither may be empty"
    )
  temperatures = [checks.positive("temperature", x) for x in temperatures]
  for k in ks:
    search = _Search(num_classes, k, distance, BLOCK)
    numbers = _checked(train_f, train_labels, f, search)
  _check_finite(train_f, numbers, f)
  search = search._replace(k=max(ks))
  settings = tuple(ks), jnp.asarray(temperatures)
  labels = _predictions(train_f, numbers, f, *settings, search)
  return jnp.where(_finite_rows(train_f, numbers, f)[None, None], labels, -1)


class _Search(NamedTuple):
  """How neighbours are searched; static under `jax.jit`."""

  num_classes: int
  k: int
  distance: str
  block_size: int


def _checked(train_f, train_labels, f, search: _Search):
  """The labels as int32, everything else as it must be."""
  checks.choice("distance", search.distance, DISTANCES)
  checks.whole("num_classes", search.num_classes, 1)
  checks.features("train_f", train_f)
  labels = checks.labels(
    "train_labels", train_labels, jnp.shape(train_f)[0], search.num_classes
  )
  checks.features("f", f)
  checks.same_width("f", f, "train_f", train_f)
  checks.whole("k", search.k, 1, jnp.shape(train_f)[0])
  return labels


def _check_finite(train_f, train_labels, f):
  checks.finite("train_f", train_f, train_labels >= 0)
  checks.finite("f", f)


def _finite_rows(train_f, train_labels, f):
  """[N] whether the query and all searched bank rows are finite."""
  bank = jnp.all(jnp.isfinite(train_f), axis=1) | (train_labels < 0)
  return jnp.all(jnp.isfinite(f), axis=1) & jnp.all(bank)


@functools.partial(jax.jit, static_argnames=("search", "relative"))
def _votes(train_f, train_labels, f, temperature, search: _Search, relative=False):
  """[N, K] votes; `relative`: divided by the nearest neighbour's, for cosine."""

  def vote(best):
    return _count(best, search.k, temperature, search.distance, relative)

  return _search(vote, train_f, train_labels, f, search)


@functools.partial(jax.jit, static_argnames=("ks", "search"))
def _predictions(train_f, train_labels, f, ks, temperatures, search: _Search):
  """[len(ks), len(temperatures), N] labels; votes are counted block by block."""

  def vote(best):
    def at(setting):
      k, temperature = setting
      votes = _count(best, k, temperature, search.distance, relative=True)
      label = jnp.argmax(votes, axis=1).astype(jnp.int32)
      return jnp.where(jnp.max(votes, axis=1) > 0, label, -1)

    settings = (
      jnp.repeat(jnp.asarray(ks), len(temperatures)),
      jnp.tile(temperatures, len(ks)),
    )
    return jax.lax.map(at, settings).T

  labels = _search(vote, train_f, train_labels, f, search)
  return labels.T.reshape(len(ks), len(temperatures), -1)


def _search(vote, train_f, train_labels, f, search: _Search):
  """`vote(best)` for every block of queries, concatenated; `best` as in `_merge`."""
  num_classes, k, distance, block_size = search
  n, m = f.shape[0], train_f.shape[0]
  double = jnp.float64 in (train_f.dtype, f.dtype)
  dtype = jnp.float64 if double else jnp.float32
  prepare = l2_normalize if distance == "cosine" else at_least_float32
  bank = prepare(train_f).astype(dtype)
  rows, columns = min(block_size, n), min(block_size, m)
  tiles = jnp.asarray(starts(m, columns))
  unseen = jnp.arange(len(tiles)) * columns  # first row not in an earlier tile

  def block(start):
    query = prepare(jax.lax.dynamic_slice_in_dim(f, start, rows)).astype(dtype)

    def step(best, tile):
      first, fresh = tile
      part = jax.lax.dynamic_slice_in_dim(bank, first, columns)
      labels = jax.lax.dynamic_slice_in_dim(train_labels, first, columns)
      near = _nearness(query, part, distance)
      searched = (labels >= 0) & (first + jnp.arange(columns) >= fresh)
      return _merge(best, jnp.where(searched[None], near, -jnp.inf), labels), None

    nothing = (
      jnp.full((rows, k), -jnp.inf, dtype),
      jnp.full((rows, k), -1, train_labels.dtype),
      jnp.zeros((rows, num_classes), dtype),
    )
    best, _ = jax.lax.scan(step, nothing, (tiles, unseen))
    return vote(best)

  return map_rows(block, n, rows)


def _nearness(query, part, distance):
  """[B, T] similarity, or minus the squared distance: larger is nearer."""
  product = jnp.matmul(query, part.T, precision="highest")
  if distance == "cosine":
    return product
  squares = jnp.sum(query**2, axis=1)[:, None] + jnp.sum(part**2, axis=1)[None]
  return jnp.minimum(2 * product - squares, 0)


def _merge(best, near, labels):
  """Updates the k nearest with one tile.

  `best` holds values and labels of the k nearest so far, and for each class the number
  of rows that tie with the k-th but got no place.
  """
  top, top_labels, crowded = best
  k, num_classes = top.shape[1], crowded.shape[1]
  values = jnp.concatenate([top, near], axis=1)
  pool = jnp.concatenate(
    [top_labels, jnp.broadcast_to(labels[None], near.shape)], axis=1
  )
  new, index = largest(values, k)
  new_labels = jnp.take_along_axis(pool, index, axis=1)
  cut = new[:, -1:]

  def left_out():
    tile_classes = jax.nn.one_hot(labels, num_classes, dtype=near.dtype)
    in_tile = jnp.matmul((near == cut).astype(near.dtype), tile_classes)
    was = _classes(top_labels, (top == cut).astype(near.dtype), num_classes)
    now = _classes(new_labels, (new == cut).astype(near.dtype), num_classes)
    return in_tile + was - now

  # Ties at the last place are rare in dense features; count classes only if there are.
  excess = jnp.sum(values == cut, axis=1) > jnp.sum(new == cut, axis=1)
  any_excess = jnp.any(excess & (cut[:, 0] > -jnp.inf))
  more = jax.lax.cond(any_excess, left_out, lambda: jnp.zeros_like(crowded))
  return new, new_labels, jnp.where(top[:, -1:] == cut, crowded, 0) + more


def _count(best, k, temperature, distance, relative):
  """[B, K] votes of the k nearest; rows tied for the last places share them."""
  top, labels, crowded = best
  inside = jnp.arange(top.shape[1])[None] < k  # `best` may hold more than k
  found = top > -jnp.inf
  if distance == "euclidean":
    weight = 1 / (jnp.sqrt(-top) + 1e-5)
  else:
    shift = jnp.where(found[:, :1], top[:, :1], 0) if relative else 0
    weight = jnp.exp((top - shift) / temperature)
  cut, at_cut = (jnp.take(x, k - 1, axis=1)[:, None] for x in (top, weight))
  tied = found & (top == cut)
  num_classes = crowded.shape[1]
  rivals = _classes(labels, tied.astype(top.dtype), num_classes)
  rivals = rivals + jnp.where(tied[:, -1:], crowded, 0)
  places = jnp.sum(tied & inside, axis=1, keepdims=True, dtype=top.dtype) * at_cut
  shared = safe_divide(places * rivals, jnp.sum(rivals, axis=1, keepdims=True))
  sure = jnp.where(inside & ~tied, weight, 0)
  return _classes(labels, sure, num_classes) + shared


def _classes(labels, weight, num_classes):
  """[B, K] sum of the weights [B, k] by class."""
  classes = jnp.arange(num_classes)[None]

  # One neighbour at a time: [B, k, K] would take gigabytes for many classes.
  def add(votes, neighbour):
    label, w = neighbour
    return votes + jnp.where(label[:, None] == classes, w[:, None], 0), None

  votes = jnp.zeros((labels.shape[0], num_classes), weight.dtype)
  return jax.lax.scan(add, votes, (labels.T, weight.T))[0]
