"""What all scores do with their samples: checks, halves, means."""

import numpy as np

from ncl_jax import checks
from ncl_jax.errors import InputError


def checked(f: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """f as float64, and factors as int64 with consecutive values from 0."""
  checks.features("f", f)
  factors = np.asarray(checks.array("factors", factors))
  if (
    factors.ndim != 2
    or not factors.shape[1]
    or len(factors) != len(f)
    or not (factors.dtype == bool or np.issubdtype(factors.dtype, np.integer))
    or factors.min() < 0
  ):
    raise InputError(
      f"factors are {factors.dtype}{list(factors.shape)}: they must be integers from "
      f"0, [{len(f)}, L], one row a row of f"
    )
  f = np.asarray(f, np.float64)
  checks.finite("f", f)
  # Values are categories. Renumber them, because tables are as long as the largest.
  values = [np.unique(column, return_inverse=True)[1] for column in factors.T]
  return f, np.stack(values, 1).astype(np.int64)


def halves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Rows that a score is fitted to, and those that it is computed on, at random."""
  if n < 2:
    raise InputError(
      f"f has {n} row: one half learns and the other scores, so 2 or more"
    )
  order = np.random.default_rng(seed).permutation(n)
  return order[: n // 2], order[n // 2 :]


def mean(x: np.ndarray) -> float:
  """The mean; NaN of nothing."""
  return float(x.mean()) if x.size else float("nan")
