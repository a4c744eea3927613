"""Checks arguments of numeric functions before anything is compiled.

In all functions, `name` is what the message calls the value.
"""

import difflib
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ncl_jax.errors import InputError


def number(
  name: str,
  value: Any,
  low: float = -math.inf,
  high: float = math.inf,
  *,
  above: float = -math.inf,
  below: float = math.inf,
) -> Any:
  """Returns a finite number as Python's; a traced one passes unseen.

  A Python number takes the type of the array that it meets. One of numpy or jax would
  widen the array, or fail under strict promotion.

  Raises:
    InputError: not a real number, not finite, or out of range.
  """
  if isinstance(value, jax.core.Tracer):
    return value
  # A string is refused although `float` could read it: "0.2" is a misread flag.
  seen = array(name, value)
  real_number = any(jnp.issubdtype(seen.dtype, x) for x in (jnp.integer, jnp.floating))
  found = float(seen) if real_number and seen.ndim == 0 else math.nan
  if not (math.isfinite(found) and low <= found <= high and above < found < below):
    bounds = {"above": above, "at least": low, "at most": high, "below": below}
    stated = [
      f"{word} {bound}" for word, bound in bounds.items() if math.isfinite(bound)
    ]
    raise InputError(
      f"{name} = {value!r}: it must be a finite number{', ' * bool(stated)}"
      f"{' and '.join(stated)}"
    )
  return found


def positive(name: str, value: Any) -> Any:
  """Returns a finite number above 0, as `number` does."""
  return number(name, value, above=0)


def whole(name: str, value: Any, low: int, high: float = math.inf) -> None:
  """Raises an InputError unless `value` is an int in `low..high`."""
  if not isinstance(value, int | np.integer) or not low <= value <= high:
    bound = f" and at most {high}" if high < math.inf else ""
    raise InputError(f"{name} = {value!r}: it must be an int, at least {low}{bound}")


def choice(name: str, value: Any, allowed: Sequence[str]) -> None:
  """Raises an InputError unless `value` is one of `allowed`."""
  if value not in allowed:
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(
      f"{name} = {value!r}: it must be one of {', '.join(allowed)}{hint}"
    )


def array(name: str, given: Any) -> Any:
  """Returns arrays unchanged and converts nested lists to numpy arrays.

  Raises:
    InputError: lists of different lengths, or an array of scipy.sparse.
  """
  if isinstance(given, np.ndarray | jax.Array):
    return given
  if scipy.sparse.issparse(given):
    raise InputError(f"{name} is sparse: pass {name}.toarray()")
  try:
    return np.asarray(given)
  except ValueError as error:
    raise InputError(f"{name} is not an array: {error}") from error


def real(name: str, given: Any) -> tuple[int, ...]:
  """Returns the shape of an array, or nested lists, of real numbers.

  Raises:
    InputError: text, complex numbers, objects, or as for `array`.
  """
  x = array(name, given)
  if not any(
    jnp.issubdtype(x.dtype, kind) for kind in (bool, jnp.integer, jnp.floating)
  ):
    raise InputError(f"{name} is of {x.dtype}: it must hold real numbers")
  return x.shape


def features(name: str, f: Any) -> None:
  """Raises an InputError unless `f` is [N, D] and not empty."""
  shape = real(name, f)
  if len(shape) != 2 or 0 in shape:
    raise InputError(f"{name} has shape {list(shape)}: it must be [N, D], not empty")


def pixels(name: str, images: Any) -> None:
  """Raises an InputError unless `images` are uint8; floats in 0..1 would look black."""
  dtype = array(name, images).dtype
  if dtype != np.uint8:
    raise InputError(
      f"{name} is {dtype}: it must be uint8, 0 to 255; floats in 0..1 become that by "
      "numpy.round(255 * images).astype(numpy.uint8)"
    )


def finite(name: str, f: Any, where: Any = None) -> None:
  """Raises an InputError if a row of `f` [N, ..] that counts holds NaN or infinity.

  `where` [N] marks the rows that count; None = all. Traced arrays, and arrays spread
  over processes, are not checked.
  """
  if not (is_seen(f) and is_seen(where)):
    return
  good = np.isfinite(np.asarray(f))
  if good.all():
    return
  bad = ~good.reshape(len(good), -1).all(1)
  rows = np.flatnonzero(bad if where is None else bad & np.asarray(where, bool))
  if rows.size:
    raise InputError(
      f"{len(rows)} of {len(good)} rows of {name} hold NaN or infinity, first row "
      f"{rows[0]}: allowed are finite numbers. Remove the rows, or find out where they "
      "come from"
    )


def same_width(name: str, f: Any, other_name: str, other: Any) -> None:
  """Raises an InputError unless [N, D] and [M, D] features have the same width."""
  if np.shape(f)[1] != np.shape(other)[1]:
    raise InputError(
      f"{name} has {np.shape(f)[1]} dimensions and {other_name} has "
      f"{np.shape(other)[1]}: they must have the same"
    )


def mask(where: Any, n: int) -> None:
  """Raises an InputError unless `where` has an entry for each of n rows: true or false.

  Numbers other than 0 and 1, such as the positions of rows, are refused.
  """
  shape = real("where", where)
  if shape != (n,):
    raise InputError(f"where has shape {list(shape)}: it must be [{n}]")
  if is_seen(where) and not np.isin(np.asarray(where), (0, 1)).all():
    raise InputError("where holds numbers other than 0 and 1: it says which rows count")


def is_seen(given: Any) -> bool:
  """Whether this process can read the values."""
  return not isinstance(given, jax.core.Tracer) and getattr(
    given, "is_fully_addressable", True
  )
