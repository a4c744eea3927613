"""Stores texts as images, one byte per pixel, so that they are handled like images."""

import math
from collections.abc import Iterable

import numpy as np

from ncl_jax.data import classes
from ncl_jax.errors import InputError


def checked(texts: np.ndarray, what: str) -> np.ndarray:
  """Checks texts of dtype U, or S in UTF-8, and returns them as str [N].

  `what` names them in messages.
  """
  if texts.ndim != 1 or texts.dtype.kind not in "US":
    raise InputError(
      f"{what} has the shape {texts.shape} and the dtype {texts.dtype}; allowed: texts "
      '[N], saved as numpy.array(texts, dtype="U")'
    )
  texts = classes.as_text(texts, what)
  empty = np.flatnonzero(np.char.strip(texts) == "")
  if len(empty):
    raise InputError(
      f"{what}: {len(empty)} texts are empty, the first at {empty[0]}; allowed: a text "
      "for each"
    )
  return texts


def as_pictures(texts: Iterable[str]) -> np.ndarray:
  """Square grey images whose pixels, row by row, are the UTF-8 bytes of a text.

  Returns:
    uint8 [N, S, S, 1], padded with 0; S is as large as the longest text needs.

  Raises:
    InputError: if a text has a zero byte.

  >>> as_pictures(["abc", "d"])[..., 0].tolist()
  [[[97, 98], [99, 0]], [[100, 0], [0, 0]]]
  """
  rows = [text.encode("utf-8") for text in texts]
  side = math.isqrt(max([1, *map(len, rows)]) - 1) + 1
  pictures = np.zeros((len(rows), side * side), np.uint8)
  for picture, row in zip(pictures, rows, strict=True):
    if 0 in row:
      raise InputError(f"a text with a zero byte, which ends a text: {row!r}")
    picture[: len(row)] = np.frombuffer(row, np.uint8)
  return pictures.reshape(-1, side, side, 1)


def from_pictures(pictures: np.ndarray) -> list[str]:
  """The texts of `as_pictures`.

  >>> from_pictures(as_pictures(["é", "abc"]))
  ['é', 'abc']
  """
  rows = pictures.reshape(len(pictures), -1)
  return [row.tobytes().rstrip(b"\0").decode("utf-8") for row in rows]
