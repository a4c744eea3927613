"""A process whose step takes far longer than usual ends itself."""

import faulthandler
import time

import jax
import pytest

from ncl_jax.runtime import distributed


@pytest.fixture
def limits(monkeypatch):
  """The limits set for the next step; one of 20 s counts as usual here."""
  found, clock = [], iter(range(0, 10**6, 20))
  monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
  monkeypatch.setattr(
    faulthandler, "dump_traceback_later", lambda s, file, exit: found.append((s, exit))
  )
  monkeypatch.setattr(
    faulthandler, "cancel_dump_traceback_later", lambda: found.append(None)
  )
  return found


def test_a_step_may_take_the_seconds_asked_for_or_a_hundred_usual_ones(
  limits, monkeypatch
):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  with distributed.hang_watch() as beat:
    for _ in range(3):
      beat()
  assert limits == [(600, True), (2000, True), (2000, True), None]


def test_a_process_alone_is_not_watched(limits):
  with distributed.hang_watch() as beat:
    beat()
  assert limits == []
