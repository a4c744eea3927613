"""Class names: Unicode normal form, natural sort order, and lists in messages."""

import re
import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from ncl_jax.errors import InputError


def same_form(name: str) -> str:
  """A name in Unicode's composed form: macOS stores é as two characters, Linux as one.

  >>> same_form("e\\u0301") == "\\u00e9"
  True
  """
  return unicodedata.normalize("NFC", name)


def as_text(names: np.ndarray, what: str) -> np.ndarray:
  """Names or texts of dtype U, or S in UTF-8, as str; InputError for other bytes."""
  try:
    return names if names.dtype.kind == "U" else np.char.decode(names, "utf-8")
  except UnicodeDecodeError as error:
    raise InputError(f"{what} is not UTF-8: {error}") from error


def ordered(names: Iterable[str]) -> tuple[str, ...]:
  """The names in natural sort order: numbers in them are compared as numbers.

  >>> ordered(["10", "b", "2", "1", "n2", "n10"])
  ('1', '2', '10', 'b', 'n2', 'n10')
  """
  return tuple(sorted(set(names), key=_key))


def listed(names: Sequence[str], most: int = 8) -> str:
  """The first names, for a message."""
  return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _key(name: str) -> tuple[list[str | int], str]:
  # Text and numbers alternate, so only equal types are compared. The name itself breaks
  # the tie between 1 and 01.
  parts = re.split(r"([0-9]+)", name)
  return [int(part) if i % 2 else part for i, part in enumerate(parts)], name
