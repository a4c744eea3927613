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


def test_numbers_are_copied_and_each_once(run, monkeypatch):
  rows, closed = [], []

  def later(seconds):
    # Killed and gone on: an old step again, then the last.
    more = [{"step": 3, "epoch": 1.0}, {"step": 6, "epoch": 2.0, "loss": 1.0}]
    for row in more:
      jsonl.append(run / "metrics.jsonl", row)

  monkeypatch.setattr(
    tracker_export,
    "_tensorboard",
    lambda path: (lambda *row: rows.append(row), lambda: closed.append(path)),
  )
  monkeypatch.setattr(tracker_export.time, "sleep", later)
  assert tracker_export.export(run, "tensorboard", follow=True) == 3
  assert rows == [
    (2, {"epoch": 2 / 3, "loss": 3.0}),
    (3, {"epoch": 1.0}),
    (6, {"epoch": 2.0, "loss": 1.0}),
  ]
  assert closed == [run]


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
  assert [step for step, _ in told["rows"]] == [2, 3] * 2


def test_tensorboard_shows_the_last_copy_alone(run, monkeypatch):
  told = []
  writer = types.SimpleNamespace(
    add_scalar=lambda *row: told.append(row), close=lambda: None
  )
  module = types.SimpleNamespace(
    SummaryWriter=lambda folder, purge_step, **_: told.append(purge_step) or writer
  )
  monkeypatch.setitem(sys.modules, "tensorboardX", module)
  for _ in range(2):
    tracker_export.export(run, "tensorboard")
  # Everything from step 0 on is hidden, then written again.
  rows = [0, ("epoch", 2 / 3, 2), ("loss", 3.0, 2), ("epoch", 1.0, 3)]
  assert told == rows * 2


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
