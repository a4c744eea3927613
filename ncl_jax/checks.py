"""Arguments of numeric functions, checked before anything is compiled."""

import difflib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax.errors import InputError


def positive(name: str, value: Any) -> None:
  """Raises unless `value` is a finite number above 0; a traced one passes unseen.

  Args:
    name: what the message calls the value.
    value: the number.

  Raises:
    InputError: not a number, not finite, or not above 0.
  """
  if isinstance(value, jax.core.Tracer):
    return
  # A string is refused although `float` would read it: "0.2" is a flag gone wrong.
  seen = np.asarray(value)
  number = seen.ndim == 0 and jnp.issubdtype(seen.dtype, jnp.number)
  if not (number and 0 < seen < np.inf):
    raise InputError(f"{name} = {value!r}: it must be a finite number above 0")


def whole(name: str, value: Any, low: int, high: int | None = None) -> None:
  """Raises unless `value` is an int in `low..high`.

  Args:
    name: what the message calls the value.
    value: the number.
    low: smallest value allowed.
    high: largest value allowed; None = no bound.

  Raises:
    InputError: not an int, or out of range.
  """
  if (
    not isinstance(value, int | np.integer)
    or value < low
    or (high is not None and value > high)
  ):
    bound = "" if high is None else f" and at most {high}"
    raise InputError(f"{name} = {value!r}: it must be an int, at least {low}{bound}")


def choice(name: str, value: Any, allowed: Sequence[str]) -> None:
  """Raises unless `value` is one of `allowed`.

  Args:
    name: what the message calls the value.
    value: the value seen.
    allowed: the values allowed.

  Raises:
    InputError: another value.
  """
  if value not in allowed:
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise InputError(
      f"{name} = {value!r}: it must be one of {', '.join(allowed)}{hint}"
    )


def features(
  name: str, f: Any, labels: Any = None, num_classes: int | None = None
) -> None:
  """Raises unless `f` is [N, D] and `labels`, where given, [N] integers in range.

  Args:
    name: what the message calls the features.
    f: the features.
    labels: the labels, or None; the values of traced ones pass unseen.
    num_classes: labels must lie below it; None = no bound.

  Raises:
    InputError: another shape, no row, or other labels.
  """
  shape = np.shape(f)
  if len(shape) != 2 or 0 in shape:
    raise InputError(f"{name} has shape {list(shape)}: it must be [N, D], not empty")
  if labels is None:
    return
  dtype = jnp.result_type(labels)
  if np.shape(labels) != shape[:1] or not np.issubdtype(dtype, np.integer):
    raise InputError(
      f"labels of {name} are {dtype}{list(np.shape(labels))}: they must be integers "
      f"[{shape[0]}], one a row"
    )
  if num_classes is None or isinstance(labels, jax.core.Tracer):
    return
  if not getattr(labels, "is_fully_addressable", True):
    return  # spread over processes: no one process can look at them
  # Through numpy: under `jax.jit` even a constant array's `min` would be traced.
  low, high = np.asarray(labels).min(), np.asarray(labels).max()
  if low < -1 or high >= num_classes:
    raise InputError(
      f"labels of {name} run from {low} to {high}: they must lie in "
      f"0..{num_classes - 1}, or be -1 for unlabelled"
    )


def same_width(name: str, f: Any, other_name: str, other: Any) -> None:
  """Raises unless two feature matrices have the same number of dimensions.

  Args:
    name: what the message calls the first.
    f: [N, D] features.
    other_name: what the message calls the second.
    other: [M, D] features.

  Raises:
    InputError: different widths.
  """
  if np.shape(f)[1] != np.shape(other)[1]:
    raise InputError(
      f"{name} has {np.shape(f)[1]} dimensions and {other_name} has "
      f"{np.shape(other)[1]}: they must have the same"
    )


def mask(where: Any, n: int) -> None:
  """Raises unless `where` has one entry for each of `n` rows.

  Args:
    where: the row mask.
    n: number of rows.

  Raises:
    InputError: another shape.
  """
  if np.shape(where) != (n,):
    raise InputError(f"where has shape {list(np.shape(where))}: it must be [{n}]")
