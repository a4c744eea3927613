"""Texts in the place of images: a byte a pixel, so that all else is as for images."""

import math
from collections.abc import Iterable

import numpy as np

from ncl_jax.errors import InputError


def as_pictures(texts: Iterable[str], side: int = 0) -> np.ndarray:
  """Square grey pictures whose pixels, row by row, are the UTF-8 bytes of a text.

  Args:
    texts: N texts.
    side: S of the pictures; 0: as the longest text needs.

  Returns:
    uint8 [N, S, S, 1], 0 after the end.

  Raises:
    InputError: if a text is longer than S x S bytes, or has a zero byte.

  >>> as_pictures(["abc", "d"])[..., 0].tolist()
  [[[97, 98], [99, 0]], [[100, 0], [0, 0]]]
  """
  rows = [text.encode("utf-8") for text in texts]
  longest = max(map(len, rows), default=0)
  side = side or max(1, math.isqrt(max(longest, 1) - 1) + 1)
  if longest > side * side:
    raise InputError(
      f"a text of {longest} bytes for pictures of {side} pixels; allowed: {side * side}"
    )
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
