"""What others see of a run: a profile of its steps, its metrics in other programs."""

import json
import sys
import types

import jax
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.runtime import jsonl
from ncl_jax.runtime.profiler import Profile
from ncl_jax.training import loop, tracker_export


@pytest.mark.parametrize("steps", ["5", "0:3", "4:2", "a:b", "1:2:3"])
def test_steps_that_cannot_be_recorded(tmp_path, steps):
  with pytest.raises(InputError, match="allowed is FIRST:LAST"):
    Profile(steps, tmp_path)


@pytest.mark.parametrize(
  ("steps", "per_call", "recorded"),
  [
    ("", 1, []),
    ("3:4", 1, [3, 4]),
    ("3:4", 2, [3, 4]),
    ("4:5", 2, [3, 4, 5, 6]),
    ("1:1", 4, [1, 2, 3, 4]),
    ("8:99", 4, [5, 6, 7, 8]),
  ],
)
def test_the_calls_with_these_steps_are_recorded(
  tmp_path, monkeypatch, steps, per_call, recorded
):
  running, seen = [], []
  monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: running.append(1))
  monkeypatch.setattr(jax.profiler, "stop_trace", running.clear)
  profile = Profile(steps, tmp_path)
  for done in range(0, 8, per_call):
    profile.before(done, per_call)
    seen += list(range(done + 1, done + per_call + 1)) if running else []
    profile.after(done + per_call, jax.numpy.zeros(()))
  profile.close()
  assert seen == recorded and not running


def test_training_leaves_a_profile(tmp_path):
  config = tiny.config()
  config.train.epochs = 1
  loop.train(config, tmp_path / "run", tiny.source(), profile="2:3")
  files = {p.name.split(".", 1)[-1] for p in (tmp_path / "run").rglob("profile/**/*.*")}
  assert "xplane.pb" in files
  with pytest.raises(InputError, match="FIRST:LAST"):
    loop.train(config, tmp_path / "other", tiny.source(), profile="2")
  assert not (tmp_path / "other").exists()


@pytest.fixture
def run(tmp_path):
  """A directory as training leaves it, of two epochs."""
  config = tiny.config()
  config.train.epochs = 2
  (tmp_path / "config.json").write_text(config_lib.to_json(config))
  rows = [
    {"step": 2, "epoch": 2 / 3, "loss": 3.0, "note": "text"},
    {"step": 3, "epoch": 1.0, "loss": None},
  ]
  jsonl.write(tmp_path / "metrics.jsonl", rows)
  return tmp_path


class Recorder:
  def __init__(self):
    self.rows, self.closed, self.flushed = [], False, 0

  def write(self, step, values):
    self.rows.append((step, values))

  def flush(self):
    self.flushed = len(self.rows)

  def close(self):
    self.closed = True


def test_numbers_are_copied_and_each_once(run, monkeypatch):
  sink = Recorder()
  monkeypatch.setitem(tracker_export.SINKS, "tensorboard", lambda *_: sink)

  def later(seconds):
    # Killed and gone on: an old step again, then the last.
    rows = [{"step": 3, "epoch": 1.0}, {"step": 6, "epoch": 2.0, "loss": 1.0}]
    for row in rows:
      jsonl.append(run / "metrics.jsonl", row)

  monkeypatch.setattr(tracker_export.time, "sleep", later)
  assert tracker_export.export(run, "tensorboard", follow=True) == 3
  assert sink.rows == [
    (2, {"epoch": 2 / 3, "loss": 3.0}),
    (3, {"epoch": 1.0}),
    (6, {"epoch": 2.0, "loss": 1.0}),
  ]
  assert sink.closed


def test_weights_and_biases_is_told_the_settings(run, monkeypatch):
  told = {}
  logged = types.SimpleNamespace(
    log=lambda values, step: told.setdefault("rows", []).append((step, values)),
    finish=lambda: told.setdefault("finished", True),
  )
  module = types.SimpleNamespace(init=lambda **kwargs: told.update(kwargs) or logged)
  monkeypatch.setitem(sys.modules, "wandb", module)
  assert tracker_export.export(run, "wandb") == 2
  stored = json.loads((run / "config.json").read_text())
  assert told["name"] == run.name and told["config"]["seed"] == stored["seed"]
  assert told["finished"] and [step for step, _ in told["rows"]] == [2, 3]
  first = told["id"]
  tracker_export.export(run, "wandb")
  assert told["id"] == first and told["resume"] == "allow"
  assert [step for step, _ in told["rows"]] == [2, 3]


@pytest.mark.parametrize("target", tracker_export.TARGETS)
def test_started_again_it_copies_each_step_once_to_the_same_run(
  run, monkeypatch, target
):
  opened = []

  class Killed(Recorder):
    def write(self, step, values):
      super().write(step, values)
      if step == 3 and len(opened) == 2:
        raise KeyboardInterrupt

  def make(path, config, step, identity):
    opened.append((Killed(), step, identity))
    return opened[-1][0]

  monkeypatch.setitem(tracker_export.SINKS, target, make)
  rows = jsonl.read(run / "metrics.jsonl")
  jsonl.write(run / "metrics.jsonl", rows[:1])
  tracker_export.export(run, target)
  jsonl.write(run / "metrics.jsonl", rows)
  with pytest.raises(KeyboardInterrupt):
    tracker_export.export(run, target)
  tracker_export.export(run, target)
  assert tracker_export.export(run, target) == 0
  # What a kill left without a flush is written again, after `step`.
  flushed = [[step for step, _ in sink.rows[: sink.flushed]] for sink, _, _ in opened]
  assert flushed == [[2], [], [3], []]
  assert [step for _, step, _ in opened] == [0, 2, 2, 3]
  assert len({identity for _, _, identity in opened}) == 1
  (run / f"{target}.copied.json").unlink()
  assert tracker_export.export(run, target) == 2 and opened[-1][1] == 0
  (run / f"{target}.copied.json").write_text("{")
  with pytest.raises(InputError, match="is damaged: remove it to copy everything anew"):
    tracker_export.export(run, target)


def test_what_a_kill_left_in_tensorboards_files_is_purged(run, monkeypatch):
  told = []
  writer_of = types.SimpleNamespace(
    add_scalar=lambda *_: None, flush=lambda: None, close=lambda: None
  )
  module = types.SimpleNamespace(
    SummaryWriter=lambda folder, purge_step: told.append(purge_step) or writer_of
  )
  monkeypatch.setitem(sys.modules, "tensorboardX", module)
  tracker_export.export(run, "tensorboard")
  jsonl.append(run / "metrics.jsonl", {"step": 6, "epoch": 2.0, "loss": 1.0})
  tracker_export.export(run, "tensorboard")
  assert told == [None, 4]


def test_tensorboard_files_are_read_back(run):
  pytest.importorskip("tensorboardX")
  tracker_export.export(run, "tensorboard")
  (file,) = (run / "tensorboard").glob("events.out.*")
  assert b"loss" in file.read_bytes()


@pytest.mark.parametrize("target", ["tensorboardX", "wandb"])
def test_what_is_not_installed_is_named(run, monkeypatch, target):
  monkeypatch.setitem(sys.modules, target, None)
  extra = target.removesuffix("X")
  with pytest.raises(InputError, match=rf"pip install '\.\[{extra}\]'"):
    tracker_export.export(run, extra)
  with pytest.raises(InputError, match="one of tensorboard, wandb"):
    tracker_export.export(run, "paper")
