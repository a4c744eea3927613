"""Rows of a feature matrix: masks, largest entries, and loops over blocks."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax import checks
from ncl_jax.numerics import at_least_float32, undefined_is_nan


def counted(
  f: jax.typing.ArrayLike, where: jax.typing.ArrayLike | None, name: str = "f"
) -> tuple[jax.Array, jax.Array]:
  """Sets the rows that do not count to 0.

  Args:
    f: [N, D] features.
    where: [N] rows to count; None = all.
    name: of the features in messages.

  Returns:
    `(f [N, D], where [N])`: at least float32; bool.

  Raises:
    InputError: wrong shape, or NaN or infinity in a row that counts.
  """
  checks.features(name, f)
  f = at_least_float32(f)
  if where is not None:
    checks.mask(where, f.shape[0])
  checks.finite(name, f, where)
  if where is None:
    return f, jnp.ones(f.shape[0], bool)
  where = jnp.asarray(where, bool)
  # A `where`, not a product, because padding may hold NaN.
  return jnp.where(where[:, None], f, 0), where


def labelled(
  f: jax.typing.ArrayLike,
  labels: jax.typing.ArrayLike,
  num_classes: int,
  where: jax.typing.ArrayLike | None = None,
  prefix: str = "",
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Like `counted` for labelled rows only, with the labels as one-hot vectors.

  Args:
    labels: [N] integers in -1..num_classes-1; rows with -1 do not count.
    prefix: put before "f" and "labels" in messages.

  Returns:
    `(f [N, D], where [N], onehot [N, K])`; onehot is 0 in rows with -1.

  Raises:
    InputError: wrong shape, labels or number of classes, or NaN or infinity in a row
      that counts.
  """
  checks.whole("num_classes", num_classes, 1)
  checks.features(f"{prefix}f", f)
  numbers = checks.labels(f"{prefix}labels", labels, jnp.shape(f)[0], num_classes)
  known = numbers >= 0
  if where is not None:
    checks.mask(where, len(numbers))
    known &= jnp.asarray(where, bool)
  f, valid = counted(f, known, f"{prefix}f")
  return f, valid, jax.nn.one_hot(numbers, num_classes, dtype=f.dtype)


def nan_unless(good: jax.Array, result: jax.Array) -> jax.Array:
  """The result where `good`, else NaN; `JAX_DEBUG_NANS` allows these.

  Comparisons and ranks treat NaN and infinity as ordinary numbers. `checks.finite`
  refuses them where values can be checked; in a traced computation this marks the
  result.
  """
  with undefined_is_nan():
    return jnp.where(good, result, jnp.nan)


def largest(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
  """The k largest entries of each row and their indices, in descending order.

  This is `jax.lax.top_k` behind a barrier. Otherwise XLA rewrites a slice of its
  result, such as the k-th value, as a slice of the sorted row: twenty times slower on
  CPU.

  >>> largest(jnp.array([[3.0, 1.0, 2.0]]), 2)[1].tolist()
  [[0, 2]]
  """
  values, indices = jax.lax.top_k(x, k)
  # One barrier for both crashes XLA if the rows are split over devices.
  return jax.lax.optimization_barrier(values), jax.lax.optimization_barrier(indices)


def starts(n: int, size: int) -> np.ndarray:
  """First rows of blocks of `size` <= `n` rows that cover `n`; the last may overlap.

  >>> starts(10, 4).tolist()
  [0, 4, 6]
  """
  return np.minimum(np.arange(0, n, size), n - size).astype(np.int32)


def map_rows(function: Callable[[jax.Array], Any], n: int, size: int) -> Any:
  """Runs `function` block by block and concatenates the results to [n, ..].

  Args:
    function: takes the first row of a block and returns a tree of arrays [size, ..],
      one entry per row.
    size: rows in a block, at most `n`.

  >>> map_rows(lambda start: start + jnp.arange(4), 10, 4).tolist()
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
  """
  first = starts(n, size)
  fresh = n - size * (len(first) - 1)  # rows that only the last block has

  def join(x):
    full = x[:-1].reshape(n - fresh, *x.shape[2:])
    return jnp.concatenate([full, x[-1, size - fresh :]])

  return jax.tree.map(join, jax.lax.map(function, jnp.asarray(first)))
