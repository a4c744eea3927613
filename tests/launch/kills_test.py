"""A run that is killed by SIGKILL, during a save too, ends like one that never was."""

import sys

import pytest

from benchmarks import kills


def test_killed_in_a_save_and_between_saves_the_run_ends_in_the_same_state(
  tmp_path, monkeypatch
):
  monkeypatch.setitem(kills.SETTINGS, "data.train_examples", 64)
  monkeypatch.setitem(kills.SETTINGS, "train.batch_size", 8)
  monkeypatch.setitem(kills.SETTINGS, "data.image_size", 8)
  # With this seed each kill comes more than an epoch after the start, so that every
  # start but the first goes on from a checkpoint.
  in_save, between = kills.main(tmp_path, kills=2, epochs=12, seed=146)
  assert in_save.step >= kills.STEPS_PER_EPOCH and in_save.during_save
  assert between.step > in_save.step
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
