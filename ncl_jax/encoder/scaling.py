"""Centres embeddings and divides them by one number, which preserves their geometry."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ncl_jax.errors import InputError

# Rows that are processed at a time. Codes are always computed in blocks of this size,
# so that a row's code does not depend on the other rows, and one program suffices.
BLOCK = 256


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
  """Statistics of the training data, in float64.

  Attributes:
    mean: [E] of each column.
    deviation: [E] of each column; exactly 0 for constant columns.
    scale: [] root mean square of the non-zero deviations.
  """

  mean: np.ndarray
  deviation: np.ndarray
  scale: np.ndarray

  def __call__(self, x: np.ndarray) -> np.ndarray:
    """[N, E] -> centred and scaled [N, E] float32; constant columns become 0."""
    factor = (self.deviation > 0) / self.scale
    # The difference in float64, so that a large common offset costs no precision.
    # Values beyond float32 become infinite, and their codes are refused.
    with np.errstate(over="ignore"):
      return np.concatenate(
        [np.asarray((rows - self.mean) * factor, np.float32) for rows in some(x)]
      )

  def unit(self) -> np.ndarray:
    """[E] float32, the deviations of scaled columns."""
    return np.asarray(self.deviation / self.scale, np.float32)


def measured(parts: Sequence[np.ndarray]) -> Scaling:
  """The joint scaling of matrices [N, E] of the same shape.

  Raises:
    InputError: if every column is constant, or squares exceed float64.
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
  # Rounding of the mean would give constant columns a small deviation.
  square *= (high > low) / (len(parts) * len(parts[0]))
  if not (np.isfinite(square).all() and square.any()):
    raise InputError(
      f"X has values from {low.min():g} to {high.max():g}: their squares exceed float64"
    )
  return Scaling(mean, np.sqrt(square), np.sqrt(square[square > 0].mean()))


def some(x: np.ndarray) -> Iterator[np.ndarray]:
  """The rows, `BLOCK` at a time."""
  yield from (x[start : start + BLOCK] for start in range(0, len(x), BLOCK))
