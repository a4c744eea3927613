"""Means over seeds and paired differences with t intervals: what may be claimed."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import scipy.stats

SEEDS_FOR_A_CLAIM = 5  # at 3 seeds the t quantile is 4.3: nearly any interval holds 0
LEVEL = 0.95
# Relative difference of two float32 results that is rounding alone: one image more or
# less of a million is still a difference.
ROUNDING = 8 * float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Summary:
  """Mean and sample standard deviation of the seeds that have a value."""

  mean: float  # NaN without a value
  deviation: float | None  # None with fewer than two
  count: int


@dataclasses.dataclass(frozen=True)
class Difference:
  """Mean of the differences seed by seed, with its 95 % interval."""

  mean: float  # NaN without a pair
  interval: tuple[float, float] | None  # None with fewer than two pairs
  pairs: int


def summarize(values: Sequence[float] | np.ndarray) -> Summary:
  """Mean and standard deviation (n - 1) over the seeds whose value is a number.

  >>> summarize([1.0, 3.0, float("nan")])
  Summary(mean=2.0, deviation=1.4142135623730951, count=2)
  """
  x = np.asarray(values, np.float64)
  x = x[np.isfinite(x)]
  mean = float(x.mean()) if x.size else math.nan
  return Summary(mean, float(x.std(ddof=1)) if x.size > 1 else None, int(x.size))


def paired_difference(values: Sequence[float], baseline: Sequence[float]) -> Difference:
  """Difference of two methods paired by seed: `mean(d) +- t(n-1) * sd(d) / sqrt(n)`.

  Args:
    values: one value a seed.
    baseline: the baseline's values, same seeds in the same order.

  Returns:
    Mean of `values - baseline` with its 95 % t interval; pairs with a NaN are left out.
    Two values that differ by no more than `ROUNDING` times the larger one have the
    difference 0.

  Raises:
    ValueError: not as many values as the baseline has.

  >>> paired_difference([2.0, 4.0], [1.0, 1.0]).mean
  2.0
  """
  a, b = np.asarray(values, np.float64), np.asarray(baseline, np.float64)
  if a.shape != b.shape:
    raise ValueError(f"{len(a)} values and {len(b)} of the baseline: not paired")
  d = a - b
  d[np.abs(d) <= ROUNDING * np.maximum(np.abs(a), np.abs(b))] = 0
  mean, deviation, n = dataclasses.astuple(summarize(d))
  if n < 2:
    return Difference(mean, None, n)
  half = float(scipy.stats.t.ppf((1 + LEVEL) / 2, n - 1) * deviation / np.sqrt(n))
  return Difference(mean, (mean - half, mean + half), n)


def claim(seeds: int) -> str:
  """What this number of seeds allows to be said, in one sentence.

  >>> claim(1)
  'One seed: no interval can be given, and nothing is claimed.'
  """
  if seeds == 1:
    return "One seed: no interval can be given, and nothing is claimed."
  if seeds < SEEDS_FOR_A_CLAIM:
    return (
      f"{seeds} seeds: fewer than {SEEDS_FOR_A_CLAIM}, so intervals are shown but"
      " nothing is claimed."
    )
  return (
    f"{seeds} seeds: a difference is claimed where its 95 % interval leaves out 0."
    " Each interval stands for one metric, without correction for their number."
  )


def verdict(difference: Difference, better: str, margin: float = 0.0) -> str:
  """What one difference shows: "", "equal", "undecided", "better", ...

  Args:
    better: "higher", "lower" or "" where neither is better.
    margin: a loss of this size or less counts as none.

  Returns:
    "" with fewer pairs than a claim needs; else "better" or "worse", or "higher" or
    "lower" where neither is better, "not worse" where the interval includes 0 but no
    loss beyond the margin (non-inferiority), or "undecided", or "equal" if no pair
    differs.

  >>> verdict(Difference(1.0, (0.5, 1.5), 5), better="lower")
  'worse'
  >>> verdict(Difference(0.0, (-0.3, 0.3), 5), better="higher", margin=0.5)
  'not worse'
  """
  if difference.interval is None or difference.pairs < SEEDS_FOR_A_CLAIM:
    return ""
  low, high = difference.interval
  if low == high == 0:
    return "equal"
  if low <= 0 <= high:
    loss = high if better == "lower" else -low
    return "not worse" if better and loss < margin else "undecided"
  direction = "higher" if low > 0 else "lower"
  if not better:
    return direction
  return "better" if direction == better else "worse"
