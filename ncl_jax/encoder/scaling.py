"""Embeddings centred and divided by one number: their geometry stays."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ncl_jax.errors import InputError

# Rows that are worked on at a time. Codes are always made of as many, so that a row's
# code does not depend on the rows that come with it, and one program is enough.
BLOCK = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
  """What was seen in the training data; float64.

  Attributes:
    mean: [E] of each column.
    deviation: [E] of each column; exactly 0 where it was constant.
    scale: [] root mean square of the deviations that are not 0.
  """

  mean: np.ndarray
  deviation: np.ndarray
  scale: np.ndarray

  def __call__(self, x: np.ndarray) -> np.ndarray:
    """[N, E] -> centred and scaled [N, E] float32, 0 in columns that were constant."""
    factor = (self.deviation > 0) / self.scale
    # The difference in float64: a large common offset costs no digits. What float32
    # cannot hold becomes infinite, and is refused as a code.
    with np.errstate(over="ignore"):
      return np.concatenate(
        [np.asarray((rows - self.mean) * factor, np.float32) for rows in some(x)]
      )

  def unit(self) -> np.ndarray:
    """[E] float32, the deviations of what `__call__` gives."""
    return np.asarray(self.deviation / self.scale, np.float32)


def measured(parts: Sequence[np.ndarray]) -> Scaling:
  """The scaling of some matrices together.

  Args:
    parts: [N, E] each, of the same shape.

  Raises:
    InputError: if every column is constant, or numbers are beyond arithmetic.
  """
  low = np.min([part.min(0) for part in parts], axis=0)
  high = np.max([part.max(0) for part in parts], axis=0)
  if (high == low).all():
    raise InputError(
      f"all {len(low)} column(s) of X are constant: no row differs from another"
    )
  mean = np.mean([part.mean(0, dtype=np.float64) for part in parts], axis=0)
  square = np.zeros(len(low))
  with np.errstate(over="ignore", under="ignore"):
    for part in parts:
      for rows in some(part):
        square += np.sum((rows - mean) ** 2, axis=0)
  # The mean of equals is rounded: their deviation would be small, not 0.
  square *= (high > low) / (len(parts) * len(parts[0]))
  if not (np.isfinite(square).all() and square.any()):
    raise InputError(
      f"X has values from {low.min():g} to {high.max():g}: their squares are no float64"
    )
  return Scaling(mean, np.sqrt(square), np.sqrt(square[square > 0].mean()))


def some(x: np.ndarray) -> Iterator[np.ndarray]:
  """The rows, `BLOCK` at a time."""
  yield from (x[start : start + BLOCK] for start in range(0, len(x), BLOCK))
