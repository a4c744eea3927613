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
  alone = numbers and set(np.unique(np.concatenate(numbers)).tolist()) == {1}
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
  if labels.dtype.kind == "O":
    return _objects(labels, what)
  if labels.dtype.kind in "US":
    return _names(labels, what)
  if labels.dtype.kind == "f":
    missing = np.isnan(labels)
    known = np.where(missing, 0, labels)
    odd = np.flatnonzero(~np.isfinite(known) | (known != np.round(known)))
    if len(odd):
      raise InputError(
        f"{what} ({labels.dtype}) has {len(odd)} values that are no whole number, such "
        f"as {known[odd[0]]}; allowed: whole numbers or names of classes; NaN or -1 "
        "for unlabelled"
      )
    # A cast of values beyond int64 would wrap.
    whole = np.clip(known.astype(np.float64), -(2.0**62), 2.0**62).astype(np.int64)
    minus = whole == UNLABELLED
    return Labels(
      np.where(missing, UNLABELLED, whole), missing | minus, bool(minus.any())
    )
  if labels.dtype.kind not in "iub":
    raise InputError(
      f"{what} has the dtype {labels.dtype}; allowed: whole numbers or names of "
      "classes, [N] or [N, 1]; -1 for unlabelled"
    )
  if labels.dtype.kind == "u":
    labels = np.minimum(labels, np.asarray(2**62, np.uint64))
  values = labels.astype(np.int64)
  minus = values == UNLABELLED
  return Labels(values, minus, bool(minus.any()))


def factors(
  parts: Mapping[str, Any], place: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  """Like `numbered`, for another label level, which may also be a measured factor.

  Floats that are not whole numbers, such as the scales 0.5, 0.6 and 0.7, are numbered
  by value. Values that differ by less than a millionth of the range count as equal,
  because rounding can cause that. NaN means unlabelled.
  """
  arrays = {key: np.asarray(labels) for key, labels in parts.items()}
  if any(array.dtype.kind not in "f" for array in arrays.values()):
    return numbered(parts, place)
  flat = {key: array.reshape(-1).astype(np.float64) for key, array in arrays.items()}
  together = np.concatenate(list(flat.values()))
  together = together[~np.isnan(together)]
  if np.isinf(together).any() or (together == np.round(together)).all():
    return numbered(parts, place)
  for key, array in arrays.items():
    if array.ndim > 2 or array.size != len(array):
      raise InputError(f"{key} in {place} has the shape {array.shape}; allowed: [N]")
  together = np.unique(together)
  step = 1e-6 * (together[-1] - together[0])
  starts = together[np.diff(together, prepend=-np.inf) > step]
  most = max(1000, sum(map(len, flat.values())) // 2)
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
    return _numbered_names(read, known, place, keys)
  values = np.concatenate(
    [np.zeros(0, np.int64), *(found.values for found in read.values())]
  )
  check_coding(list(read.values()), f"{keys} in {place}")
  _check_numbers(values, len(values), place, keys)
  count = 1 + int(values.max(initial=UNLABELLED))
  present = set(np.unique(values).tolist())
  gaps = [str(k) for k in range(count) if k not in present]
  if gaps:
    logging.warning("%s: no image has the label %s of %s", place, _some(gaps), keys)
  boolean = known and all(np.asarray(parts[key]).dtype == bool for key in known)
  names = ("False", "True")[:count] if boolean else tuple(map(str, range(count)))
  numbers = {key: found.values.astype(np.int32) for key, found in read.items()}
  return numbers, names


def _numbered_names(
  read: dict[str, Labels], known: dict[str, Labels], place: str, keys: str
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
  texts = {key: found.values.tolist() for key, found in known.items()}
  names = classes.ordered({x for text in texts.values() for x in text} - {""})
  most = max(1000, sum(map(len, texts.values())) // 2)
  if len(names) > most:
    raise InputError(
      f"{place}: {len(names)} different names in {keys}, such as {names[0]!r}; allowed:"
      f" {most}. Are they names of images and not of classes?"
    )
  for name in names:
    if name.lower() in _SUSPECT:
      count = sum(text.count(name) for text in texts.values())
      logging.warning(
        "%s: %r is a class, of %d labels in %s; unlabelled is the empty name",
        *(place, name, count, keys),
      )
  number = {name: k for k, name in enumerate(names)} | {"": UNLABELLED}
  return {
    key: np.array([number[x] for x in texts[key]], np.int32)
    if key in texts
    else np.full(len(found.values), UNLABELLED, np.int32)
    for key, found in read.items()
  }, names


def _check_numbers(values: np.ndarray, examples: int, place: str, keys: str) -> None:
  if not len(values):
    return
  low, high = int(values.min()), int(values.max())
  if low < UNLABELLED or high >= 2**31:
    raise InputError(
      f"{keys} in {place} goes from {low} to {high}; allowed: 0 to K-1, or -1"
    )
  # Identifiers used as labels would make a classifier that fills the memory.
  if high + 1 > max(1000, examples):
    raise InputError(
      f"{place}: label {high} with {examples} examples in {keys}; allowed: 0 to K-1 for"
      " K classes"
    )


def _names(labels: np.ndarray, what: str) -> Labels:
  try:
    texts = labels if labels.dtype.kind == "U" else np.char.decode(labels, "utf-8")
  except UnicodeDecodeError as error:
    raise InputError(f"{what}: names that are not UTF-8: {error}") from error
  plain = [classes.same_form(str(text)) for text in texts]
  names = np.array([text if text.strip() else "" for text in plain], "U")
  return Labels(names, names == "")


def _objects(labels: np.ndarray, what: str) -> Labels:
  missing = np.array([is_missing(label) for label in labels], bool)
  rest = labels[~missing].tolist()
  kinds = {_type(label) for label in rest}
  if len(kinds) > 1 or kinds - {"names", "bytes", "numbers"}:
    raise InputError(
      f"{what} holds Python objects: {', '.join(sorted(kinds))}; allowed: all names, or"
      " all numbers, None or NaN for unlabelled"
    )
  if not kinds:
    return Labels(np.full(len(labels), UNLABELLED), missing)
  try:
    known = parse(np.array(rest), what)
  except OverflowError as error:
    raise InputError(f"{what}: {error}; allowed: 0 to K-1, or -1") from error
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
  is_number = isinstance(label, int | float | np.integer | np.floating | np.bool_)
  return "numbers" if is_number else type(label).__name__


def _shape_hint(labels: np.ndarray) -> str:
  allowed = "allowed: [N] or [N, 1], a class for each"
  numbers = labels.ndim == 2 and labels.dtype.kind in "iufb"
  if not numbers or not np.isin(labels, (0, 1)).all():
    return allowed
  if (labels.sum(1) == 1).all():
    return f"{allowed}; of one-hot codes save labels.argmax(axis=1)"
  return (
    f"{allowed}; of several classes an example (multi-hot) save one as labels, and each"
    " further column as labels_NAME"
  )


def _some(names: Sequence[str]) -> str:
  return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
