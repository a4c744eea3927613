"""The training loop: it learns, goes on where it stopped, and stops when it must."""

import dataclasses
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import time
import types

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tiny

from benchmarks import kills
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError, SaveError, Stopped
from ncl_jax.evaluators.run import open_run
from ncl_jax.runtime import checkpoint, jsonl, sharding
from ncl_jax.training import describe, loop
from ncl_jax.training import state as state_lib
from ncl_jax.training import workdir as workdir_lib


def final_model(config, source, workdir):
  shapes = jax.eval_shape(lambda: state_lib.init_variables(_resolved(config), source))
  return checkpoint.load_model(
    workdir, shapes, jax.sharding.SingleDeviceSharding(jax.devices()[0])
  )


def two_epochs():
  """Three steps each; a checkpoint after each, and at each logged step."""
  config = tiny.config()
  config.train.epochs = 2
  config.train.checkpoint_every_epochs = 1
  config.train.checkpoint_every_minutes = 1e-9
  config.train.keep_checkpoints = 3
  return config


@pytest.fixture
def strict():
  """No operation takes two dtypes."""
  with jax.numpy_dtype_promotion("strict"):
    yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """A run to its end, to be read alone, and what it said."""
  said = []
  log = types.SimpleNamespace(info=lambda text, *values: said.append(text % values))
  path = tmp_path_factory.mktemp("trained") / "run"
  with pytest.MonkeyPatch.context() as patch, jax.numpy_dtype_promotion("strict"):
    patch.setattr(describe, "logging", log)
    loop.train(two_epochs(), path, tiny.source())
  return path, said


@pytest.fixture
def whole(trained):
  return trained[0]


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(whole, tmp_path):
  config, source = two_epochs(), tiny.source()
  # The state in which a kill during epoch 2 leaves a directory: the checkpoint of epoch
  # 1, and metrics that ran ahead of it.
  parts = tmp_path / "parts"
  shutil.copytree(whole, parts)
  assert checkpoint.steps(parts) == [3, 4, 6]
  for step in ("4", "6"):
    shutil.rmtree(parts / "checkpoints" / step)
  loop.train(config, parts, source)
  a, step_a = final_model(config, source, whole)
  b, step_b = final_model(config, source, parts)
  assert step_a == step_b == 6
  jax.tree.map(np.testing.assert_array_equal, a, b)
  assert (parts / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
  steps = [row["step"] for row in jsonl.read(whole / "metrics.jsonl")]
  # Every second step, and the end of every epoch.
  assert steps == [2, 3, 4, 6]
  # A finished run is left as it is.
  before = (parts / "metrics.jsonl").stat().st_mtime_ns
  loop.train(config, parts, source)
  assert (parts / "metrics.jsonl").stat().st_mtime_ns == before


def at_step(monkeypatch, step, act):
  """Calls `act` in the middle of a run, when a step has been taken note of."""
  update = jsonl.Progress.update

  def watched(self, done, message):
    update(self, done, message)
    if done == step:
      act()

  monkeypatch.setattr(jsonl.Progress, "update", watched)


def test_stopped_by_sigterm_within_an_epoch_and_gone_on_with_on_fewer_devices(
  whole, tmp_path, monkeypatch
):
  config, source = tiny.config(), tiny.source()
  config.train.epochs = 2
  parts = tmp_path / "parts"
  with monkeypatch.context() as patch:
    at_step(patch, 3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Stopped, match="SIGTERM after step 4 of 6, which") as end:
      loop.train(config, parts, source)
  assert end.value.exit_code == 143
  # The watch over the epoch that began with step 4 goes on, too: 16 images, two views.
  with ocp.PyTreeCheckpointer() as reader:
    saved = kills.read(reader, parts / "checkpoints" / "4" / "train")
  assert saved["epoch"]["rows"] == 32
  assert np.all(saved["epoch"]["high"] >= saved["epoch"]["low"])
  another = shutil.copytree(parts, tmp_path / "another ü")
  loop.train(config, parts, source)
  a, b = (final_model(config, source, run)[0] for run in (whole, parts))
  jax.tree.map(np.testing.assert_array_equal, a, b)
  assert (whole / "metrics.jsonl").read_text() == (parts / "metrics.jsonl").read_text()
  # Saved on eight devices, gone on with on one: the same to rounding.
  one = sharding.make_mesh(jax.devices()[:1])
  monkeypatch.setattr(sharding, "make_mesh", lambda: one)
  loop.train(config, another, source)
  rows = [jsonl.read(run / "metrics.jsonl") for run in (whole, another)]
  assert [row["step"] for row in rows[1]] == [row["step"] for row in rows[0]]
  for row, other in zip(*rows, strict=True):
    np.testing.assert_allclose(other["loss"], row["loss"], rtol=1e-4)
    assert other["learning_rate"] == row["learning_rate"]


def forbid(folder):
  """Nothing can be made in `checkpoints` any more, whoever asks."""
  folder.rename(folder.with_name("kept"))
  folder.write_text("in the way")


def fill_the_disk(folder):
  """Files cannot grow beyond some kilobytes any more."""
  _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 10, hard))


@pytest.mark.parametrize("spoil", [forbid, fill_the_disk])
def test_a_save_that_fails_is_told_with_its_step_and_the_earlier_one_stays(
  tmp_path, monkeypatch, spoil
):
  config, source = tiny.config(), tiny.source()
  config.train.checkpoint_every_epochs = 1
  run = tmp_path / "run"
  folder = run / "checkpoints"
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)

  def act():
    while not (folder / "3").is_dir():
      time.sleep(0.01)
    spoil(folder)

  try:
    with monkeypatch.context() as patch:
      at_step(patch, 4, act)
      with pytest.raises(
        SaveError, match="step 6 could not be written to .*checkpoint"
      ):
        loop.train(config, run, source)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  if spoil is forbid:
    folder.unlink()
    folder.with_name("kept").rename(folder)
  assert final_model(config, source, run)[1] == 3
  assert loop.train(config, run, source) == run
  assert final_model(config, source, run)[1] == 12
  # What the failure left half-written is gone.
  assert all(entry.name.isdigit() for entry in folder.iterdir())


def test_a_directory_in_use_is_refused_until_its_process_is_dead(tmp_path):
  config, source = tiny.config(), tiny.source()
  run = tmp_path / "run"
  code = (
    "import sys, time, tiny; from ncl_jax.training import workdir\n"
    "c, path, _ = workdir.prepare(tiny.config(), sys.argv[1], tiny.source())\n"
    "with workdir.hold(path, c, tiny.source()):\n"
    "  print('held', flush=True); time.sleep(600)"
  )
  tests = pathlib.Path(__file__).parents[1]
  holder = subprocess.Popen(
    [sys.executable, "-c", code, str(run)],
    env=os.environ | {"PYTHONPATH": f"{tests}:{tests.parent}"},
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    assert holder.stdout.readline() == "held\n"
    before = (run / "config.json").read_text()
    config.train.log_every_steps = 1  # may differ on resume, but not now
    with pytest.raises(InputError, match=rf"in use: process {holder.pid} on "):
      loop.train(config, run, source)
    assert (run / "config.json").read_text() == before
  finally:
    holder.kill()
    holder.communicate()
  with workdir_lib.hold(run, config_lib.resolve(config, source), source):
    stored = workdir_lib.read_config(run)
    assert stored.train.log_every_steps == 1


@pytest.mark.usefixtures("strict")
def test_weights_of_another_run_under_a_fresh_optimiser(whole, tmp_path, monkeypatch):
  config, source = two_epochs(), tiny.source()
  first = shutil.copytree(whole, tmp_path / "first")
  weights, _ = final_model(config, source, first)
  monkeypatch.chdir(tmp_path)
  config.train.init_from = "first"
  config.optimizer.name = "sgd"
  config.optimizer.learning_rate = 1e-20
  config.optimizer.weight_decay = 0.0
  config.optimizer.warmup_start = 0.0
  second = loop.train(config, "second", source)
  again, step = final_model(config, source, second)
  assert step == 6
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12),
    again["params"]["backbone"],
    weights["params"]["backbone"],
  )
  stored = json.loads((second / "config.json").read_text())
  assert stored["train"]["init_from"] == str(first)
  # Once begun, the run needs its origin no more.
  first.rename("gone")
  shutil.rmtree(second / "checkpoints" / "6")
  assert loop.train(config, second, source) == second
  pathlib.Path("gone").rename(first)
  config.train.init_from = "nowhere"
  with pytest.raises(InputError, match="nowhere: there is no config.json of a run"):
    loop.train(config, "third", source)
  config.train.init_from = "first"
  config.model.width = 4
  with pytest.raises(InputError, match="does not fit"):
    loop.train(config, "third", source)


def test_metrics_are_logged(trained):
  config, source = two_epochs(), tiny.source()
  path, said = trained
  variables, _ = final_model(config, source, path)
  params = jax.tree.leaves(variables["params"])
  flat = sum(p.ndim == 1 for p in params)
  assert (
    f"{sum(p.size for p in params):,} parameters in {len(params)} tensors; {flat} of "
    "them, biases and BatchNorm, without weight decay and LARS's scaling" in said
  )
  row = jsonl.read(path / "metrics.jsonl")[-1]
  assert set(row) == {
    "step",
    "epoch",
    "loss",
    "probe_loss",
    "probe_accuracy",
    "learning_rate",
    "gradient_norm",
    "sparsity",
    "active_dimensions",
    "zero_rows",
    "effective_rank",
    "class_consistency",
    "epoch_active_dimensions",
    "epoch_constant_dimensions",
    "epoch_zero_rows",
  }
  assert row["step"] == 6 and row["epoch"] == 2.0
  stored = json.loads((path / "config.json").read_text())
  assert stored["augment"]["size"] == 8
  np.testing.assert_allclose(
    stored["augment"]["mean"], source.split("train").images.mean() / 255, rtol=1e-6
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("devices", "optimizer", "rate"),
  [(8, "lars", 0.4), (1, "lars", 0.4), (8, "sgd", 0.1), (8, "adamw", 0.1)],
)
def test_it_learns_two_colours(tmp_path, monkeypatch, devices, optimizer, rate):
  config = tiny.config(backbone="resnet_two_blocks")
  source = tiny.source(train=64)
  config.train.epochs = 15
  config.model.width = 4
  config.optimizer.name = optimizer
  config.optimizer.learning_rate = rate
  mesh = sharding.make_mesh(jax.devices()[:devices])
  monkeypatch.setattr(sharding, "make_mesh", lambda: mesh)
  path = loop.train(config, tmp_path / "run", source)
  rows = jsonl.read(path / "metrics.jsonl")
  assert rows[-1]["probe_accuracy"] > 0.95
  assert rows[-1]["loss"] < rows[0]["loss"] - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 64])
def test_a_hundred_steps_in_bfloat16_stay_finite(tmp_path, size):
  config, source = tiny.config(), tiny.source()
  config.model.dtype = "bfloat16"
  config.augment.size = size
  config.train.epochs = 34
  path = loop.train(config, tmp_path / "run", source)
  rows = jsonl.read(path / "metrics.jsonl")
  assert rows[-1]["step"] == 102
  assert rows[-1]["probe_loss"] < rows[0]["probe_loss"]


@pytest.mark.usefixtures("strict")
def test_no_labels_no_probe(tmp_path):
  config, source = tiny.config(), tiny.source(labelled=False)
  config.train.epochs = 1
  config.optimizer.name = "adamw"
  path = loop.train(config, tmp_path / "run", source)
  row = jsonl.read(path / "metrics.jsonl")[-1]
  assert "probe_accuracy" not in row and "class_consistency" not in row
  assert np.isfinite(row["loss"]) and "sparsity" in row


def test_another_training_set_is_refused_and_told_in_evaluation(tmp_path, caplog):
  config = tiny.config()
  config.augment.mean, config.augment.std = (0.3,), (0.2,)
  path = tiny.as_trained(config, tmp_path / "run", tiny.source(train=48))
  before = {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}
  fewer = dataclasses.replace(tiny.source(train=47), divided=True)
  with pytest.raises(InputError, match="48 images then, 47 now"):
    loop.train(config, path, fewer)
  assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}
  renamed = dataclasses.replace(tiny.source(train=48), names="others")
  with pytest.raises(InputError, match="as many images, 48, with other names"):
    loop.train(config, path, renamed)
  open_run(path, source=tiny.source(train=48))
  assert "was trained on" not in caplog.text
  open_run(path, source=fewer)
  assert "48 images then, 47 now" in caplog.text
  assert "test images that it may have been trained on" in caplog.text
  # Of a run from before there was such a file nothing is known.
  (path / "data.json").unlink()
  assert workdir_lib.data_changed(path, fewer) == ""


def test_a_config_that_came_first_is_found_under_the_lock(tmp_path):
  """Both starts saw an empty directory; the first is done before the second has it."""
  source, starts = tiny.source(), []
  for temperature in (0.2, 0.5):
    config = tiny.config()
    config.loss.temperature = temperature
    starts.append(workdir_lib.prepare(config, tmp_path / "run", source))
  (first, path, _), (second, _, _) = starts
  with workdir_lib.hold(path, first, source):
    pass
  with (
    pytest.raises(InputError, match="loss.temperature: 0.2 there, 0.5 here"),
    workdir_lib.hold(path, second, source),
  ):
    pass
  assert workdir_lib.read_config(path).loss.temperature == 0.2


def test_more_epochs_are_refused_with_the_way_to_go_on(tmp_path):
  config, source = tiny.config(), tiny.source()
  first, path, _ = workdir_lib.prepare(config, tmp_path / "run", source)
  with workdir_lib.hold(path, first, source):
    pass
  config.train.epochs = 8
  with pytest.raises(InputError, match=rf"--config.train.init_from={path}, with the"):
    workdir_lib.prepare(config, path, source)
  config.train.epochs, config.loss.temperature = 4, 0.5
  with pytest.raises(InputError) as told:
    workdir_lib.prepare(config, path, source)
  assert "init_from" not in str(told.value)


def test_another_config_is_refused_and_nothing_changed(tmp_path):
  config, source = tiny.config(), tiny.source()
  path = tiny.as_trained(config, tmp_path / "run", source)
  before = {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}
  config.loss.temperature = 0.5
  with pytest.raises(InputError, match="loss.temperature: 0.2 there, 0.5 here"):
    loop.train(config, path, source)
  assert before == {p: p.stat().st_mtime_ns for p in path.rglob("*") if p.is_file()}
  stranger = tmp_path / "stranger"
  stranger.mkdir()
  (stranger / "thesis.tex").write_text("x")
  with pytest.raises(InputError, match="neither empty nor a work directory"):
    loop.train(config, stranger, source)
  assert [p.name for p in stranger.iterdir()] == ["thesis.tex"]
  # A file of that name is a run's beside its config alone.
  (stranger / "thesis.tex").rename(stranger / "data.json")
  with pytest.raises(InputError, match="neither empty nor a work directory"):
    loop.train(config, stranger, source)
  assert (stranger / "data.json").read_text() == "x"


@pytest.mark.parametrize(
  ("key", "value", "says"),
  [
    ("batch_size", 64, "only 48 images"),
    ("batch_size", 12, "12 cannot be shared equally by 8 devices.*8 or 16"),
  ],
)
def test_batches_that_cannot_be(tmp_path, key, value, says):
  config = tiny.config()
  config.train[key] = value
  with pytest.raises(InputError, match=says):
    loop.train(config, tmp_path / "run", tiny.source())
  assert not (tmp_path / "run").exists()


def test_the_seed_decides_everything_and_the_map_nothing_else(tmp_path):
  ncl, cl, other = tiny.config(), tiny.config("cl"), tiny.config()
  other.seed = 1
  mesh = sharding.make_mesh()
  variables = [
    state_lib.build(
      lambda c=c: state_lib.init_variables(_resolved(c), tiny.source()), mesh
    )
    for c in (ncl, cl, other)
  ]
  jax.tree.map(np.testing.assert_array_equal, variables[0], variables[1])
  kernels = [v["params"]["projector"]["linear1"]["kernel"] for v in variables]
  assert not np.array_equal(kernels[0], kernels[2])


def _resolved(config):
  return config_lib.resolve(config, tiny.source())
