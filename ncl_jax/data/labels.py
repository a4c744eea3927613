"""Reads labels as users write them, for all sources and the encoder.

Labels are whole numbers of any type (also as floats), booleans, or names. -1, NaN,
None, pandas' NA and the empty name mean unlabelled.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from ncl_jax.data import classes
from ncl_jax.data.source import UNLABELLED
from ncl_jax.errors import InputError

# Names that `str` gives to missing values; they may also be real class names.
_SUSPECT = frozenset(("nan", "none", "<na>", "null", "-1"))


@dataclasses.dataclass(frozen=True)
class Labels:
  """Labels of one array, before classes are numbered.

  Attributes:
    values: int64 [N], or names str [N].
    missing: bool [N], True for unlabelled.
    minus: whether any is written as -1.
  """

  values: np.ndarray
  missing: np.ndarray
  minus: bool = False

  @property
  def named(self) -> bool:
    """Whether they are names."""
    return self.values.dtype.kind == "U"


def check_coding(read: Sequence[Labels], what: str) -> None:
  """Raises an InputError for two classes written as -1 and 1.

  -1 would be read as unlabelled, which would leave a single class.
  """
  numbers = [found.values[~found.missing] for found in read if not found.named]
  alone = numbers and set(np.concatenate(numbers).tolist()) == {1}
  if alone and any(found.minus for found in read):
    raise InputError(
      f"{what} is -1 and 1 alone, and -1 means unlabelled; allowed: for two classes 0 "
      "and 1, for one class and unlabelled 0 and -1"
    )


def parse(labels: Any, what: str) -> Labels:
  """Reads labels of any type.

  Args:
    labels: [N] or [N, 1]: integers, whole floats, booleans, str, bytes in UTF-8, or
      Python objects of one of these types.
    what: their name in messages.

  Raises:
    InputError: for another shape, such as one-hot codes, or other values.
  """
  labels = np.asarray(labels)
  if labels.ndim == 2 and labels.shape[1] == 1:
    labels = labels[:, 0]
  if labels.ndim != 1:
    raise InputError(f"{what} has the shape {labels.shape}; {_shape_hint(labels)}")
  kind = labels.dtype.kind
  if kind == "O":
    return _objects(labels, what)
  if kind in "US":
    return _names(labels, what)
  missing = np.zeros(len(labels), bool)
  if kind == "f":
    missing = np.isnan(labels)
    labels = np.where(missing, UNLABELLED, labels)
    odd = labels[~np.isfinite(labels) | (labels != np.round(labels))]
    if len(odd):
      raise InputError(
        f"{what} ({labels.dtype}) has {len(odd)} values that are no whole number, such "
        f"as {odd[0]}; allowed: whole numbers or names of classes; NaN or -1 for "
        "unlabelled"
      )
    # A cast of values beyond int64 would wrap.
    labels = np.clip(labels.astype(np.float64), -(2.0**62), 2.0**62)
  elif kind == "u":
    labels = np.minimum(labels, np.asarray(2**62, np.uint64))
  elif kind not in "ib":
    raise InputError(
      f"{what} has the dtype {labels.dtype}; allowed: whole numbers or names of "
      "classes, [N] or [N, 1]; -1 for unlabelled"
    )
  values = labels.astype(np.int64)
  minus = (values == UNLABELLED) & ~missing
  return Labels(values, missing | minus, bool(minus.any()))


def factors(
  parts: Mapping[str, Any], place: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Like `numbered`, for another label level, which may also be a measured factor.

  Floats that are not whole numbers, such as the scales 0.5, 0.6 and 0.7, are numbered
  by value. Values that differ by less than a millionth of the range count as equal,
  because rounding can cause that. NaN means unlabelled.
  """
  arrays = {key: np.asarray(labels) for key, labels in parts.items()}
  if any(array.dtype.kind != "f" for array in arrays.values()):
    return numbered(parts, place)
  flat = {key: array.reshape(-1).astype(np.float64) for key, array in arrays.items()}
  every = np.concatenate(list(flat.values()))
  known = np.unique(every[~np.isnan(every)])
  if np.isinf(known).any() or (known == np.round(known)).all():
    return numbered(parts, place)
  for key, array in arrays.items():
    if array.ndim > 2 or array.size != len(array):
      raise InputError(f"{key} in {place} has the shape {array.shape}; allowed: [N]")
  starts = known[np.diff(known, prepend=-np.inf) > 1e-6 * (known[-1] - known[0])]
  most = max(1000, len(every) // 2)
  if len(starts) > most:
    raise InputError(
      f"{place}: {len(starts)} different values in {', '.join(parts)}; allowed: "
      f"{most}, each a value of a factor. Divide a continuous one into bins"
    )
  numbers = {}
  for key, values in flat.items():
    found = np.searchsorted(starts, np.nan_to_num(values), side="right") - 1
    numbers[key] = np.where(np.isnan(values), UNLABELLED, found).astype(np.int32)
  return numbers, tuple(f"{value:.6g}" for value in starts)


def numbered(
  parts: Mapping[str, Any], place: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Numbers the classes of a data set, consistently across its parts.

  Names are numbered in natural sort order (1, 2, 10). Numbers 0 to K-1 are unchanged;
  unused ones are reported.

  Args:
    parts: name of an array -> labels, for `parse`.
    place: the file or folder, for messages.

  Returns:
    Name of the array -> int32 [N], -1 for unlabelled; and the names of the K classes,
    which are their numbers if they have no names.

  Raises:
    InputError: if some parts have names and others numbers, if there are too many
      classes for the number of labels, or if all labels are -1 or 1.
  """
  read = {key: parse(labels, f"{key} in {place}") for key, labels in parts.items()}
  known = {key: found for key, found in read.items() if not found.missing.all()}
  keys = ", ".join(parts)
  named = [key for key, found in known.items() if found.named]
  plain = [key for key in known if key not in named]
  if named and plain:
    raise InputError(
      f"{place}: {named[0]} holds names and {plain[0]} "
      f"{np.asarray(parts[plain[0]]).dtype}; allowed: names in both, or numbers in both"
    )
  if named:
    every = [str(name) for key in named for name in read[key].values]
    names = classes.ordered(set(every) - {""})
    most = max(1000, len(every) // 2)
    if len(names) > most:
      raise InputError(
        f"{place}: {len(names)} different names in {keys}, such as {names[0]!r}; "
        f"allowed: {most}. Are they names of images and not of classes?"
      )
    for name in names:
      if name.lower() in _SUSPECT:
        logging.warning(
          "%s: %r is a class, of %d labels in %s; unlabelled is the empty name",
          *(place, name, every.count(name), keys),
        )
    number = {name: k for k, name in enumerate(names)}
    return {
      key: np.array([number.get(x, UNLABELLED) for x in found.values], np.int32)
      for key, found in read.items()
    }, names
  check_coding(list(read.values()), f"{keys} in {place}")
  none = np.zeros(0, np.int64)
  values = np.concatenate([none, *(found.values for found in read.values())])
  low, high = values.min(initial=2**31), int(values.max(initial=UNLABELLED))
  if low < UNLABELLED or high >= 2**31:
    raise InputError(
      f"{keys} in {place} goes from {low} to {high}; allowed: 0 to K-1, or -1"
    )
  # Identifiers used as labels would make a classifier that fills the memory.
  if high + 1 > max(1000, len(values)):
    raise InputError(
      f"{place}: label {high} with {len(values)} examples in {keys}; allowed: 0 to K-1 "
      "for K classes"
    )
  count = high + 1
  gaps = np.setdiff1d(np.arange(count), values)
  if len(gaps):
    some = classes.listed([str(gap) for gap in gaps])
    logging.warning("%s: no image has the label %s of %s", place, some, keys)
  boolean = known and all(np.asarray(parts[key]).dtype == bool for key in known)
  names = ("False", "True")[:count] if boolean else tuple(map(str, range(count)))
  return {key: found.values.astype(np.int32) for key, found in read.items()}, names


def _names(labels: np.ndarray, what: str) -> Labels:
  plain = [classes.same_form(str(text)) for text in classes.as_text(labels, what)]
  names = np.array([text if text.strip() else "" for text in plain], "U")
  missing = names == ""
  return Labels(np.full(len(names), UNLABELLED) if missing.all() else names, missing)


def _objects(labels: np.ndarray, what: str) -> Labels:
  missing = np.array([is_missing(label) for label in labels], bool)
  rest = labels[~missing].tolist()
  kinds = {_type(label) for label in rest}
  if len(kinds) > 1 or kinds - {"names", "bytes", "numbers"}:
    raise InputError(
      f"{what} holds Python objects: {', '.join(sorted(kinds))}; allowed: all names, or"
      " all numbers, None or NaN for unlabelled"
    )
  known = parse(np.array(rest), what)
  values = np.full(len(labels), "" if known.named else UNLABELLED, known.values.dtype)
  values[~missing] = known.values
  missing[~missing] = known.missing
  return Labels(values, missing, known.minus)


def is_missing(label: Any) -> bool:
  """Whether an object stands for no value: None, NaN or pandas' NA."""
  # pandas' NA is recognised by its type's name, so pandas need not be installed.
  if label is None or type(label).__name__ in ("NAType", "NaTType"):
    return True
  return isinstance(label, float | np.floating) and bool(np.isnan(label))


def _type(label: Any) -> str:
  if isinstance(label, str):
    return "names"
  if isinstance(label, bytes):
    return "bytes"
  if isinstance(label, int) and abs(label) >= 2**63:
    return "numbers beyond 64 bits"
  is_number = isinstance(label, int | float | np.integer | np.floating | np.bool_)
  return "numbers" if is_number else type(label).__name__


def _shape_hint(labels: np.ndarray) -> str:
  allowed = "allowed: [N] or [N, 1], a class for each"
  numbers = labels.ndim == 2 and labels.dtype.kind in "iufb"
  if numbers and np.isin(labels, (0, 1)).all() and (labels.sum(1) == 1).all():
    return f"{allowed}; of one-hot codes save labels.argmax(axis=1)"
  return allowed
