"""When the next checkpoint is due by the clock, at the same step on all processes."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


class SaveTimes:
  """Asks the clock of process 0 whether `minutes` have passed since the last save.

  A single process reads the clock after every call. Several would then wait for each
  other, so process 0 says after how many further calls to read it: at most as many as
  since the save. A save is late if steps become slower meanwhile.

  Args:
    minutes: between two saves; 0 for never.
  """

  def __init__(
    self, minutes: float, clock: Callable[[], float] = time.monotonic
  ) -> None:
    self._seconds, self._clock = 60 * minutes, clock
    self.saved()

  def saved(self) -> None:
    """Begins to count anew, after a save for whatever reason."""
    self._begun = self._clock()
    self._calls, self._next = 0, 1

  def due(self, running: Any) -> bool:
    """Whether to save now; every process must ask equally often.

    Args:
      running: tree of arrays that are being computed; waited for before processes
        exchange anything, as programs of simulated devices can lock each other.
    """
    self._calls += 1
    if not self._seconds or self._calls < self._next:
      return False
    several = jax.process_count() > 1
    if several:
      jax.block_until_ready(running)
    passed = self._clock() - self._begun
    ahead = 0
    if passed < self._seconds:
      ahead = 1
      if several:
        left = int(self._calls * (self._seconds - passed) / max(passed, 1e-9))
        ahead = max(1, min(self._calls, left))
    if several:
      ahead = int(multihost_utils.broadcast_one_to_all(np.int32(ahead)))
    self._next = self._calls + ahead
    return ahead == 0
