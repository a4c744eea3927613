"""Checkpoints by the clock: when, and alike on all processes."""

import itertools

import jax
import pytest
from jax.experimental import multihost_utils

from ncl_jax.training import save_times


def saves(calls, lengths, minutes):
  """After which calls it is due, if the calls take so many seconds."""
  now = itertools.accumulate(itertools.chain([0.0], lengths))
  clock = [next(now)]
  times = save_times.SaveTimes(minutes, lambda: clock[0])
  found = []
  for call in range(1, calls + 1):
    clock[0] = next(now)
    if times.due({}):
      found.append(call)
      times.saved()
  return found


def test_alone_the_clock_decides():
  assert saves(200, itertools.repeat(1.0), minutes=1) == [60, 120, 180]
  assert saves(200, itertools.repeat(1.0), minutes=0) == []
  assert saves(3, itertools.repeat(90.0), minutes=1) == [1, 2, 3]


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_processes_save_alike_and_seldom_ask(monkeypatch, factor):
  told = []

  def tell(value):
    told.append(value)
    return value

  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", tell)
  # Steps that become slower after the first ones.
  lengths = [0.1] * 100 + [0.1 * factor] * 10_000
  first = saves(3000, iter(lengths), minutes=1)
  assert len(told) < 16 * len(first)
  at = [0.0, *itertools.accumulate(lengths)]
  gaps = [at[b] - at[a] for a, b in itertools.pairwise([0, *first])]
  assert all(60 <= gap < 62 for gap in gaps), gaps
  assert at[3000] - at[first[-1]] < 62
  # Another process, whose clock stands still, does what the first one says.
  monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda _: told.pop(0))
  assert saves(3000, itertools.repeat(0.0), minutes=1) == first and not told
