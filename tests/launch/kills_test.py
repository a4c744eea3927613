"""A run that is killed by SIGKILL, during saves too, ends like one that never was."""

import sys

import pytest

from benchmarks import kills


def test_killed_three_times_the_run_ends_in_the_same_state(tmp_path, monkeypatch):
  done = kills.main(tmp_path, kills=3, epochs=12, seed=0)
  assert all(kill.step >= 1 for kill in done)
  assert any(kill.during_save for kill in done)
  # The comparison itself sees what it should.
  metrics = tmp_path / "killed" / "metrics.jsonl"
  lines = metrics.read_text().splitlines(keepends=True)
  metrics.write_text("".join([*lines, lines[-1]]))
  assert kills.differences(tmp_path / "peace", tmp_path / "killed") == [
    "metrics.jsonl",
    "metrics.jsonl: steps missing or twice",
  ]
  monkeypatch.setattr(kills, "command", lambda *_: [sys.executable, "-c", "exit('x')"])
  with pytest.raises(RuntimeError, match="ended before it was killed: x"):
    kills.kill_once(tmp_path / "killed", 12, in_save=True, steps=1)
