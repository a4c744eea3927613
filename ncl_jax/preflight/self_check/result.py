"""A check's result, and how far apart two sets of numbers are."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

# Rounding in float32 is 1e-7 a number and adds up to some 1e-6 in a gradient; a wrong
# factor, a lost shard or products in bfloat16 are 1e-3 and more.
TOLERANCE = 1e-4
# Rounding in float64 adds up to 1e-12 there.
EXACT = 1e-9


@dataclasses.dataclass(frozen=True)
class Result:
  """What a check found."""

  name: str
  ok: bool | None  # None for something to know that is not a fault
  detail: str

  def __str__(self) -> str:
    word = {True: "PASS", False: "FAIL", None: "NOTE"}[self.ok]
    return f"{word}  {self.name:<11} {self.detail}"


def distance(a: Any, b: Any) -> float:
  """|a - b| / |b| over all numbers of two trees; not a number if any is."""
  left, right = (
    np.concatenate([np.ravel(x).astype(np.float64) for x in jax.tree.leaves(tree)])
    for tree in (a, b)
  )
  return float(np.linalg.norm(left - right) / np.linalg.norm(right))


def worst(*errors: float) -> float:
  """The largest, infinity if one is not a number: `max` would let that pass."""
  return max(math.inf if math.isnan(error) else error for error in errors)
