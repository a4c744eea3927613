"""Following a run: every checkpoint once, to the end, whatever goes wrong between."""

import dataclasses
import shutil

import jax
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax.errors import Failed, InputError, Stopped
from ncl_jax.evaluators import execute, knn, registry, retrieval, watch
from ncl_jax.evaluators.run import Run
from ncl_jax.runtime import checkpoint, jsonl

PER_EPOCH, EPOCHS = 3, 4


@pytest.fixture
def run(tmp_path):
  """A work directory in which a training has begun."""
  config = tiny.config()
  config.train.epochs = EPOCHS
  (tmp_path / "config.json").write_text(config_lib.to_json(config))
  return tmp_path


def save(run, step):
  """What a training leaves of a step: a row, and a complete checkpoint."""
  jsonl.append(run / "metrics.jsonl", {"step": step, "epoch": step / PER_EPOCH})
  folder = run / "checkpoints" / str(step)
  (folder / "model").mkdir(parents=True)
  (folder / "_CHECKPOINT_METADATA").touch()


def delete(run, step):
  shutil.rmtree(run / "checkpoints" / str(step))


def goes_on(run, monkeypatch, *acts):
  """While the watch waits, training does its next act."""
  left = list(acts)

  def sleep(seconds):
    assert left, "the watch waits although nothing can come"
    left.pop(0)()

  monkeypatch.setattr(watch.time, "sleep", sleep)
  return left


def test_each_checkpoint_once_until_the_training_is_complete(run, monkeypatch):
  save(run, 3)
  left = goes_on(
    run,
    monkeypatch,
    lambda: None,
    lambda: (run / "checkpoints" / "6.orbax-checkpoint-tmp").mkdir(),
    lambda: save(run, 6),
    lambda: (delete(run, 3), save(run, 9)),
    lambda: save(run, 12),
  )
  seen = []
  watch.each(run, seen.append)
  assert seen == [3, 6, 9, 12] and not left


def test_a_run_that_is_complete_is_evaluated_and_left(run, monkeypatch):
  goes_on(run, monkeypatch)
  save(run, 9)
  save(run, 12)
  seen = []
  watch.each(run, seen.append)
  assert seen == [9, 12]


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path, monkeypatch):
  config = tiny.config()
  place = tmp_path / "later"

  def begin():
    place.mkdir()
    (place / "config.json").write_text(config_lib.to_json(config))

  goes_on(place, monkeypatch, begin, lambda: save(place, 12))
  seen = []
  watch.each(place, seen.append)
  assert seen == [12]


def test_a_network_that_was_never_trained_here_is_complete(run, monkeypatch):
  goes_on(run, monkeypatch)
  path = tiny.npz(run / "tiny.npz")
  config = config_lib.from_json((run / "config.json").read_text())
  config.data.source = f"arrays:{path}"
  (run / "config.json").write_text(config_lib.to_json(config))
  save(run, 12)
  (run / "metrics.jsonl").unlink()
  assert watch.is_complete(run)
  delete(run, 12)
  save(run, 2)
  (run / "metrics.jsonl").unlink()
  assert not watch.is_complete(run)


def test_a_failure_stops_nothing_else_and_is_told_at_the_end(run, monkeypatch):
  for step in (3, 6, 9, 12):
    save(run, step)
  goes_on(run, monkeypatch)
  seen = []

  def evaluate(step):
    seen.append(step)
    if step == 3:
      delete(run, 3)
      raise InputError("the checkpoint is damaged")
    if step == 6:
      delete(run, 9)
      raise ZeroDivisionError("one evaluator fails")

  with pytest.raises(Failed, match="step 6: one evaluator fails$"):
    watch.each(run, evaluate)
  # 9 was deleted before its turn came; that 3 was deleted is no failure.
  assert seen == [3, 6, 12]


def test_being_asked_to_stop_is_no_failure(run):
  save(run, 3)

  def evaluate(step):
    raise Stopped("stopped by SIGTERM", 143)

  with pytest.raises(Stopped):
    watch.each(run, evaluate)


def test_several_processes_are_refused(run, monkeypatch):
  monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
  with pytest.raises(InputError, match="one process"):
    watch.each(run, print)


def test_steps_are_those_of_complete_checkpoints(run):
  assert checkpoint.steps(run) == []
  for step in (12, 3):
    save(run, step)
  (run / "checkpoints" / "20").mkdir()
  assert checkpoint.steps(run) == [3, 12]


def test_all_programs_on_one_checkpoint_and_one_that_fails(monkeypatch, tmp_path):
  opened = Run(
    config=tiny.config(),
    variables={},
    step=7,
    source=tiny.source(),
    mesh=None,
    path=tmp_path,
  )
  monkeypatch.setattr(execute, "open_run", lambda *unused: opened)
  settings = {"settings": {}, "h": {"accuracy": 0.5}}
  monkeypatch.setattr(retrieval.evaluate, "function", lambda *unused: settings)

  def fails(*unused):
    raise RuntimeError("out of memory")

  monkeypatch.setattr(knn.evaluate, "function", fails)
  with pytest.raises(Failed, match="knn: out of memory$"):
    execute.run_all(["knn", "retrieval"], tmp_path)
  (row,) = jsonl.read(tmp_path / "eval" / "retrieval.jsonl")
  assert row["step"] == 7 and row["h"]["accuracy"] == 0.5
  assert set(execute.run_all(["retrieval"], tmp_path)) == {"retrieval"}
  with pytest.raises(InputError, match="did you mean 'knn'"):
    execute.run_all(["kn"], tmp_path)


def test_the_evaluators_that_data_allow():
  config = tiny.config()
  labelled, unlabelled = tiny.source(), tiny.source(labelled=False)
  single = [name for name in registry.single() if name != "pairs"]
  assert list(registry.applicable(config, labelled)) == single
  assert registry.applicable(config, unlabelled) == ("feature_stats", "sepin")
  texts = dataclasses.replace(labelled, texts=True)
  of_texts = ("feature_stats", "knn", "linear_probe", "retrieval", "selection")
  assert registry.applicable(config, texts) == of_texts
  config.loss.name = "clip"
  assert registry.applicable(config, labelled) == registry.single()
  of_pairs = ("feature_stats", "pairs", "sepin")
  assert registry.applicable(config, unlabelled) == of_pairs
  assert set(registry.registered()) - set(registry.single()) == {"axes"}
