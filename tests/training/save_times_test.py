"""Checkpoints by the clock: process 0's clock decides for all processes."""

import time
import types

import jax
import pytest
import tiny
from jax.experimental import multihost_utils

from ncl_jax.training import loop


def is_due(minutes=30, done=7, writes=True):
  """After a minute of this process's clock; epochs have 10 steps."""
  config = tiny.config()
  config.train.checkpoint_every_minutes = minutes
  run = types.SimpleNamespace(
    config=config,
    done=done,
    total=40,
    per_epoch=10,
    saved_at=time.monotonic() - 60,
    recorder=types.SimpleNamespace(writes=lambda step: writes),
  )
  return loop._Run._save_is_due(run, {})


@pytest.mark.parametrize(
  ("case", "due"),
  [
    ({}, False),
    ({"minutes": 0.5}, True),
    ({"minutes": 0.5, "writes": False}, False),  # not at a logged step
    ({"minutes": 0}, False),  # never by the clock
    ({"minutes": 0, "done": 40}, True),  # the end
  ],
)
def test_one_process(case, due):
  assert is_due(**case) is due


@pytest.mark.parametrize(("of_process_0", "due"), [(31.0, True), (29.0, False)])
def test_process_0_decides(of_process_0, due, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 2)
  monkeypatch.setattr(
    multihost_utils, "broadcast_one_to_all", lambda minutes: of_process_0
  )
  assert is_due(minutes=30) is due
  monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", None)
  assert is_due(minutes=0) is False  # nobody is asked
