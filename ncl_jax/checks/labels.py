"""Labels of any integer type, checked and cast to int32."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax.checks.arguments import array, is_seen
from ncl_jax.errors import InputError


def labels(name: str, given: Any, rows: int, num_classes: int) -> jax.Array:
  """Returns class numbers as int32, from booleans or integers of any width.

  Args:
    given: [rows] in 0..num_classes-1; -1 for no label. A traced array, or one spread
      over processes, cannot be checked; its labels out of range stay out of range.

  Raises:
    InputError: another shape or type, or a label out of range.
  """
  given = _integers(name, given, rows)
  if is_seen(given):
    _check_range(name, given, f"0..{num_classes - 1}", num_classes)
  elif not _fits_int32(given):
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
    if is_seen(given):
      _check_range(name, given, "0 and above")
  if all(_fits_int32(x) for x in sets):
    return [jnp.maximum(_int32(x), -1) for x in sets]
  # int64 and uint64 have no common integer type, but uint64 holds all except -1.
  kind, xp, size = np.dtype(np.uint64), cast(Any, np), {}
  if not all(map(is_seen, sets)):
    kind = np.dtype(f"uint{8 * jnp.result_type(int).itemsize}")
    xp, size = jnp, {"size": sum(map(len, sets))}
    for (name, _, _), given in zip(named, sets, strict=True):
      if is_seen(given) and np.asarray(given).max() > np.iinfo(kind).max:
        raise InputError(
          f"{name} go up to {np.asarray(given).max()}, beyond {kind.name}: together "
          "with traced labels they must be renumbered, "
          "numpy.unique(labels, return_inverse=True)[1]"
        )
  sets = [np.asarray(x) if is_seen(x) else x for x in sets]
  ids = xp.concatenate([x.clip(0).astype(kind) for x in sets])
  negative = xp.concatenate([x < 0 for x in sets])
  places = xp.unique(ids, return_inverse=True, **size)[1]
  numbers = jnp.asarray(xp.where(negative, -1, places), jnp.int32)
  return jnp.split(numbers, [int(end) for end in np.cumsum([*map(len, sets)])[:-1]])


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


def _fits_int32(given: Any) -> bool:
  info = jnp.iinfo(given.dtype)
  if info.min >= -(2**31) and info.max < 2**31:
    return True
  return is_seen(given) and bool((np.asarray(given) < 2**31).all())


def _int32(given: Any) -> jax.Array:
  # A JAX array stays on its device.
  made = given.astype(np.int32)
  return made if isinstance(made, jax.Array) else jnp.asarray(made)


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
