"""Checks arguments of numeric functions before anything is compiled.

In all functions, `name` is what the message calls the value.
"""

import difflib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ncl_jax.errors import InputError


def positive(name: str, value: Any) -> None:
  """Raises an InputError unless `value` is a finite number above 0, or traced."""
  if isinstance(value, jax.core.Tracer):
    return
  # A string is refused although `float` could read it: "0.2" is a misread flag.
  seen = np.asarray(value)
  number = seen.ndim == 0 and jnp.issubdtype(seen.dtype, jnp.number)
  if not (number and 0 < seen < np.inf):
    raise InputError(f"{name} = {value!r}: it must be a finite number above 0")


def whole(name: str, value: Any, low: int, high: int | None = None) -> None:
  """Raises an InputError unless `value` is an int in `low..high` (None = no bound)."""
  if (
    not isinstance(value, int | np.integer)
    or value < low
    or (high is not None and value > high)
  ):
    bound = "" if high is None else f" and at most {high}"
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


def labels(name: str, given: Any, rows: int, num_classes: int) -> jax.Array:
  """Returns class numbers as int32, from booleans or integers of any width.

  Args:
    name: of the labels, in messages.
    given: [rows] in 0..num_classes-1; -1 for no label. A traced array, or one spread
      over processes, cannot be checked; its labels out of range stay out of range.
    rows: number of labels.
    num_classes: number of classes.

  Raises:
    InputError: another shape or type, or a label out of range.
  """
  given = _integers(name, given, rows)
  if _is_seen(given):
    _check_range(name, given, f"0..{num_classes - 1}", num_classes)
  elif not _fits_int32(given.dtype):
    # Clipped before the cast, which could wrap a large label into the range.
    given = jnp.clip(given, max=jnp.asarray(num_classes, given.dtype))
    if jnp.issubdtype(given.dtype, jnp.signedinteger):
      given = jnp.clip(given, min=jnp.asarray(-2, given.dtype))
  return _int32(given)


def identities(*named: tuple[str, Any, int]) -> list[jax.Array]:
  """Returns labels as int32 that preserve equality; large ones are renumbered.

  Args:
    *named: (name, labels, rows) of each set, as in `labels`; ids of up to 64 bits.

  Returns:
    [rows] int32 for each set, equal if and only if the labels are equal, within and
    across sets; -1 for no label.

  Raises:
    InputError: another shape or type, or a label below -1.
  """
  sets = [_integers(*one) for one in named]
  for (name, _, _), given in zip(named, sets, strict=True):
    if _is_seen(given):
      _check_range(name, given, "0 and above")
  if all(_fits_int32(x.dtype) or (_is_seen(x) and _is_small(x)) for x in sets):
    return [jnp.maximum(_int32(x), -1) for x in sets]
  ends = [int(end) for end in np.cumsum([len(x) for x in sets])[:-1]]
  if all(map(_is_seen, sets)):
    everything = [np.asarray(x) for x in sets]
    none = np.concatenate([x < 0 for x in everything])
    # int64 and uint64 have no common integer type, but uint64 holds all except -1.
    ids = np.concatenate([np.maximum(x, 0).astype(np.uint64) for x in everything])
    numbers = np.where(none, -1, np.unique(ids, return_inverse=True)[1])
    return [jnp.asarray(x, jnp.int32) for x in np.split(numbers, ends)]
  kind = np.dtype(f"uint{8 * jnp.result_type(int).itemsize}")
  for (name, _, _), given in zip(named, sets, strict=True):
    if _is_seen(given) and np.asarray(given).max() > np.iinfo(kind).max:
      raise InputError(
        f"{name} go up to {np.asarray(given).max()}, beyond {kind.name}: together with "
        "traced labels they must be renumbered, "
        "numpy.unique(labels, return_inverse=True)[1]"
      )
  negative = jnp.concatenate([jnp.asarray(x < 0) for x in sets])
  joined = jnp.concatenate([jnp.maximum(x, 0).astype(kind) for x in sets])
  _, places = jnp.unique(joined, return_inverse=True, size=len(joined))
  return jnp.split(jnp.where(negative, -1, places.astype(jnp.int32)), ends)


def _integers(name: str, given: Any, rows: int) -> Any:
  """`given` as an array of integers: JAX arrays unchanged, others as numpy arrays."""
  if not isinstance(given, jax.Array):
    given = array(name, given)
    if given.dtype == object and given.ndim == 1:  # pandas' nullable integers
      exact = all(isinstance(x, int | np.integer | np.bool_) for x in given)
      given = np.asarray(given.tolist()) if exact else given
  if given.shape != (rows,):
    raise InputError(
      f"{name} have shape {list(given.shape)}: they must be [{rows}], one for each row"
    )
  if given.dtype == bool:
    return given.astype(np.int32)
  if not jnp.issubdtype(given.dtype, jnp.integer):
    raise InputError(
      f"{name} are {given.dtype}{list(given.shape)}: they must be integers, -1 for no "
      "label; numpy.unique(labels, return_inverse=True)[1] numbers any others"
    )
  return given


def _is_seen(given: Any) -> bool:
  """Whether this process can read the values."""
  return not isinstance(given, jax.core.Tracer) and getattr(
    given, "is_fully_addressable", True
  )


def _fits_int32(dtype: Any) -> bool:
  info = jnp.iinfo(dtype)
  return info.min >= -(2**31) and info.max < 2**31


def _is_small(given: Any) -> bool:
  return len(given) == 0 or np.asarray(given).max() < 2**31


def _int32(given: Any) -> jax.Array:
  if isinstance(given, jax.Array):
    return given.astype(jnp.int32)  # stays on its device
  return jnp.asarray(given.astype(np.int32))


def _check_range(name: str, given: Any, allowed: str, end: int | None = None) -> None:
  # With numpy, because under `jax.jit` even a constant array's `min` is traced.
  seen = np.asarray(given)
  if not seen.size:
    return
  low, high = int(seen.min()), int(seen.max())
  # -1 is allowed even if there are no classes.
  if low < -1 or (end is not None and high >= max(end, 0)):
    raise InputError(
      f"{name} run from {low} to {high}: they must be in {allowed}, or -1 for no label"
    )


def pixels(name: str, images: Any) -> None:
  """Raises an InputError unless `images` are uint8; floats in 0..1 would look black."""
  dtype = images.dtype if hasattr(images, "dtype") else np.asarray(images).dtype
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
  if not (_is_seen(f) and _is_seen(where)):
    return
  good = np.isfinite(np.asarray(f))
  if not good.all():
    rows = ~good.reshape(len(good), -1).all(1)
    if where is not None:
      rows &= np.asarray(where, bool)
    rows = np.flatnonzero(rows)
    if not rows.size:
      return
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
  """Raises an InputError unless `where` has one entry for each of `n` rows."""
  if np.shape(where) != (n,):
    raise InputError(f"where has shape {list(np.shape(where))}: it must be [{n}]")
