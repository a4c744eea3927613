"""Converts pixels of any type and bit depth to bytes, for files and arrays alike.

Booleans become 0 and 255. Floats must lie in 0..1. 8-bit integers are unchanged. Wider
integers get the smallest depth of 8, 10, 12, 14 or 16 bits that holds the data set's
largest value, and the largest number of that depth becomes 255. (Cameras and scanners
store 12 bits in 16.)
"""

from collections.abc import Iterable

import numpy as np
from absl import logging

from ncl_jax.errors import InputError

BITS = (8, 10, 12, 14, 16)
ALLOWED = "booleans, floats in 0..1, and integers in 0..65535"


def white(values: Iterable[np.ndarray], what: str) -> int:
  """The value that becomes 255, from all arrays of wide integers; others are ignored.

  `values` are pixels of a data set, or of a sample, that `check` accepts. The result is
  2^bits - 1; more than 8 bits are reported in the log, where `what` names the pixels.
  """
  high, dtype = 0, ""
  for pixels in values:
    if pixels.dtype.kind in "iu" and pixels.dtype.itemsize > 1:
      high, dtype = max(high, int(pixels.max())), str(pixels.dtype)
  bits = next(b for b in BITS if high < 2**b)
  if dtype and bits > 8:
    logging.warning(
      "%s: %s up to %d, taken as %d bits: %d becomes 255, white",
      *(what, dtype, high, bits, 2**bits - 1),
    )
  return 2**bits - 1


def check(pixels: np.ndarray, what: str) -> None:
  """Raises an InputError for pixels of an unsupported type or range."""
  kind = pixels.dtype.kind
  if kind == "b" or pixels.dtype == np.uint8 or not pixels.size:
    return
  if kind not in "iuf":
    raise InputError(f"{what} has the dtype {pixels.dtype}; allowed: {ALLOWED}")
  bad = np.count_nonzero(~np.isfinite(pixels)) if kind == "f" else 0
  if bad:
    raise InputError(
      f"{what} has {bad} values that are NaN or infinite; allowed: floats in 0..1"
    )
  low, high = pixels.min(), pixels.max()
  if low < 0 or high > (1 if kind == "f" else 65535):
    hint = "; divide them by 255" if kind == "f" and low >= 0 and high <= 255 else ""
    if low < 0:
      hint = f"; subtract the smallest value of the whole set, here {low}, and rescale"
    raise InputError(
      f"{what} is {pixels.dtype} from {low} to {high}; allowed: {ALLOWED}{hint}"
    )


def to_bytes(pixels: np.ndarray, white: int) -> np.ndarray:
  """Pixels as uint8 of the same shape, rounded.

  `white` is the value of wide integers that becomes 255, as do larger ones.

  >>> to_bytes(np.array([0, 2048, 4095], np.uint16), 4095).tolist()
  [0, 128, 255]
  """
  kind = pixels.dtype.kind
  if pixels.dtype == np.uint8:
    return pixels
  if kind in "bf":
    pixels = pixels if pixels.dtype.itemsize > 2 else pixels.astype(np.float32)
    return np.round(pixels * 255).astype(np.uint8)
  top = white if pixels.dtype.itemsize > 1 else 255
  table = np.round(np.minimum(np.arange(2**16), top) * (255 / top)).astype(np.uint8)
  return table[pixels]
