"""A grid of trainings: which trials there are, what is kept, what a failure stops."""

import numpy as np
import PIL.Image
import pytest
import tiny
from programs import call

from ncl_jax import config as config_lib
from ncl_jax.errors import Failed, InputError
from ncl_jax.evaluators import execute, knn
from ncl_jax.evaluators.run import open_run
from ncl_jax.experiments import sweep
from ncl_jax.report import sweep as sweep_lib
from ncl_jax.runtime import checkpoint, jsonl, sharding
from ncl_jax.training import state as state_lib
from ncl_jax.training import workdir as workdir_lib


def recipe(method):
  return tiny.config(method or "ncl")


def names(config, text):
  return [trial.name for trial in sweep.trials(config, sweep.parse_grid(text), recipe)]


def test_all_combinations_the_last_field_fastest():
  assert names(tiny.config(), "loss.transform=relu,identity;seed=0,1") == [
    "loss.transform=relu,seed=0",
    "loss.transform=relu,seed=1",
    "loss.transform=identity,seed=0",
    "loss.transform=identity,seed=1",
  ]
  made = sweep.trials(
    tiny.config(), sweep.parse_grid("loss.learn_temperature=true;model.width=3"), recipe
  )
  assert made[0].config.loss.learn_temperature is True
  assert made[0].config.model.width == 3


def test_a_method_is_its_recipe_with_the_command_lines_changes():
  config = tiny.config()
  config.train.epochs, config.loss.transform = 7, "softplus"
  grid = sweep.parse_grid("method=cl,byol_ncl,vicreg")
  cl, byol, vicreg = (trial.config for trial in sweep.trials(config, grid, recipe))
  assert [c.train.epochs for c in (cl, byol, vicreg)] == [7, 7, 7]
  assert [c.loss.transform for c in (cl, byol, vicreg)] == [
    "identity",
    "softplus",
    "identity",
  ]
  assert byol.model.projector_batch_norm and not cl.model.projector_batch_norm
  assert config_lib.differences(byol, recipe("byol_ncl")) == [
    "loss.transform: 'softplus' there, 'rep_relu' here",
    "train.epochs: 7 there, 4 here",
  ]


@pytest.mark.parametrize(
  ("text", "says"),
  [
    ("", "FIELD=VALUE"),
    ("seed", "FIELD=VALUE"),
    ("seed=0,,1", "FIELD=VALUE"),
    ("seed=0;seed=1", "repeats"),
    ("seed=0,0", "repeats"),
    ("loss.temprature=1", "did you mean loss.temperature"),
    ("loss.temperature=warm", "must be float"),
    ("loss.temperature=0", "greater than 0"),
    ("loss.transform=rleu", "did you mean 'relu'"),
    ("augment.mean=0.1", "several values"),
    ("method=simclr", "must be one of cl, ncl"),
    ("method=cl,ncl;loss.transform=relu", "a transform and method=cl"),
  ],
)
def test_a_grid_that_cannot_be(text, says, tmp_path):
  with pytest.raises(InputError, match=says):
    sweep.sweep(tiny.config(), tmp_path / "sweep", text, recipe=recipe)
  assert not (tmp_path / "sweep").exists()


def test_no_recipe_no_methods():
  with pytest.raises(InputError, match="needs a config file"):
    sweep.trials(tiny.config(), {"method": ["cl"]})


class Trainings:
  """In training's place: untrained networks, as a finished run leaves them."""

  def __init__(self, source):
    self.calls, self.source, self.fail = [], source, ()

  def __call__(self, config, path, source):
    self.calls.append(path.name)
    if path.name in self.fail:
      raise FloatingPointError("the loss is nan at step 3")
    if checkpoint.steps(path):
      return
    config = config_lib.resolve(config, source)
    with (
      workdir_lib.hold(path, config, source),
      checkpoint.Checkpoints(path) as checkpoints,
    ):
      mesh = sharding.make_mesh()
      variables = state_lib.build(
        lambda: state_lib.init_variables(config, source), mesh
      )
      checkpoints.save(12, model=variables, train={"step": np.int32(12)})


def test_what_is_measured_and_made_once(tmp_path, monkeypatch):
  source = tiny.source()
  trainings = Trainings(source)
  monkeypatch.setattr(sweep.loop, "train", trainings)
  monkeypatch.setattr(workdir_lib, "kept_source", lambda *_: source)
  evaluated = []
  evaluate = execute.evaluate

  def counted(evaluator, run, **options):
    evaluated.append((evaluator.name, run.path.name))
    return evaluate(evaluator, run, **options)

  monkeypatch.setattr(execute, "evaluate", counted)
  grid, root = "seed=0,1", tmp_path / "sweep"
  trainings.fail = ("seed=1",)
  with pytest.raises(Failed, match="seed=1: the loss is nan") as told:
    sweep.sweep(tiny.config(), root, grid, recipe=recipe)
  assert "| 1 | failed |" in str(told.value)
  trainings.fail = ()
  text = sweep.sweep(tiny.config(), root, grid, recipe=recipe)
  # The first trial's evaluation is kept from the sweep that failed.
  assert evaluated == [
    (name, trial) for trial in ("seed=0", "seed=1") for name in sweep.EVALUATORS
  ]
  rows = jsonl.read(root / "sweep.jsonl")
  assert [row["trial"] for row in rows] == ["seed=0", "seed=1"]
  for row in rows:
    opened = open_run(root / row["trial"], source=source)
    found = knn.evaluate(opened.config, opened.variables, source, opened.mesh)
    assert row["knn"]["h"]["accuracy"] == found["h"]["accuracy"]
    # Nothing was trained: the control is the run.
    assert row["untrained"]["h"]["accuracy"] == found["h"]["accuracy"]
    assert row["pixels"]["h"]["accuracy"] == 1.0
  assert text.startswith("| seed | kNN h, % | untrained, % | pixels, % |")
  assert (root / "sweep.md").read_text().strip() in text
  with PIL.Image.open(root / "sweep.png") as drawn:
    assert drawn.size[0] > 500
  known = (root / "measured.jsonl").read_text()
  assert sweep.sweep(tiny.config(), root, grid, recipe=recipe) == text
  assert (root / "measured.jsonl").read_text() == known
  assert len(evaluated) == 4
  # The table is printed though its files cannot be written.
  (root / "sweep.md").unlink()
  (root / "sweep.md").mkdir()
  with pytest.raises(Failed, match="results cannot be written: .*sweep.md") as told:
    sweep.sweep(tiny.config(), root, grid, recipe=recipe)
  assert str(told.value).startswith(text)


def test_a_table_of_cells_without_numbers():
  rows = [{"settings": {"seed": 0, "loss.transform": "relu"}, "failed": "why"}]
  assert sweep_lib.table(rows).splitlines()[-1] == "| 0 | relu | failed |"
  assert sweep_lib.figure(rows).png


@pytest.mark.slow
def test_the_program_sweeps(tmp_path, monkeypatch):
  tiny.npz(tmp_path / "tiny.npz")
  code, out, err = call(
    "sweep",
    "--config=tests/tiny.py:ncl",
    f"--config.data.source=arrays:{tmp_path / 'tiny.npz'}",
    f"--workdir={tmp_path / 'sweep'}",
    "--grid=method=ncl,barlow_twins_ncl",
    "--config.train.epochs=2",
  )
  assert code == 0, err
  rows = jsonl.read(tmp_path / "sweep" / "sweep.jsonl")
  assert [row["settings"]["method"] for row in rows] == ["ncl", "barlow_twins_ncl"]
  assert "barlow_twins_ncl" in out and "sweep.png" in out
  assert all(np.isfinite(row["knn"]["h"]["accuracy"]) for row in rows)
