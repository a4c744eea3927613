"""A projector on a frozen backbone: what changes, what does not, and the first loss."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
import tiny
from programs import call
from torch_files import save, tiny_state

from ncl_jax import config as config_lib
from ncl_jax import features, interop, nonneg
from ncl_jax.errors import InputError
from ncl_jax.evaluators import knn
from ncl_jax.evaluators.run import open_run
from ncl_jax.runtime import jsonl
from ncl_jax.training import frozen_backbone


@pytest.fixture(scope="module")
def source():
  return tiny.source(train=16)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory):
  """A network as torchvision names it, with a classifier of its own."""
  state = {}
  for name, tensor in tiny_state(classes=5).items():
    part, rest = name.split(".", 1)
    if part == "backbone":
      state[rest] = tensor
    elif part == "classifier":
      state[f"fc.{rest}"] = tensor
  return save(tmp_path_factory.mktemp("backbone") / "resnet.safetensors", state)


def fit(backbone, workdir, source, method="ncl", **settings):
  settings = {"views": 2, "epochs": 60} | settings
  config = tiny.config(method, "resnet10")
  # Features of a network with random weights are nearly parallel.
  config.loss.temperature = 0.02
  return frozen_backbone.train_projector(
    config, backbone, workdir, source=source, **settings
  )


@pytest.fixture(scope="module")
def trained(backbone, tmp_path_factory, source):
  """NCL on the backbone of a file, CL on that of NCL's run."""
  out = tmp_path_factory.mktemp("frozen")
  ncl = fit(backbone, out / "ncl", source)
  return {"ncl": ncl, "cl": fit(ncl, out / "cl", source, "cl")}


def test_the_projector_learns_and_nothing_else_changes(trained, backbone, source):
  given = interop.backbone_from_torch(interop.read(backbone))
  for method, path in trained.items():
    run = open_run(path, source=source)
    assert run.config.loss.transform == {"ncl": "rep_relu", "cl": "identity"}[method]
    kept = {"params": {"backbone": run.variables["params"]["backbone"]}}
    kept |= {"batch_stats": run.variables["batch_stats"]}
    jax.tree.map(np.testing.assert_array_equal, kept, given)
    rows = jsonl.read(path / "metrics.jsonl")
    assert [row["epoch"] for row in rows] == list(range(1, 61))
    assert rows[-1]["step"] == run.step == 60
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.05
    # What evaluators see.
    result = knn.evaluate(run.config, run.variables, source, run.mesh)
    assert result["f"]["accuracy"] >= 0.5


def test_the_first_loss_by_hand(trained, source):
  """One batch of all images: whatever the order, each against its other view."""
  path = trained["ncl"]
  loss = jsonl.read(path / "metrics.jsonl")[0]["loss"]
  run = open_run(path, source=source)
  fresh = run.untrained()
  network = dataclasses.replace(run.network(), batch_size=16)
  views = features.extract_two_views(
    run.variables, source, "train", network, seed=run.config.seed + 1
  )
  p = jax.tree.map(np.asarray, fresh.variables["params"]["projector"])
  rows = []
  for h in (view.h for view in views):
    hidden = np.maximum(h @ p["linear1"]["kernel"] + p["linear1"]["bias"], 0)
    z = hidden @ p["linear2"]["kernel"] + p["linear2"]["bias"]
    f = np.float64(nonneg.rep_relu(z))
    rows.append(f / np.linalg.norm(f, axis=1, keepdims=True))
  f, n = np.concatenate(rows), len(rows[0])
  total = 0.0
  for i in range(2 * n):
    scores = f @ f[i] / run.config.loss.temperature
    others = np.delete(scores, i)
    total += np.log(np.exp(others).sum()) - scores[(i + n) % (2 * n)]
  assert loss == pytest.approx(total / (2 * n), rel=1e-5)


def test_settings_that_training_reads_count_here_too(
  backbone, tmp_path, source, monkeypatch
):
  config, asked = tiny.config(backbone="resnet10"), []
  config.loss.precision, config.eval.threshold = "bfloat16", 2.0
  right = frozen_backbone.losses.nt_xent

  def nt_xent(z, **settings):
    asked.append(settings["precision"])
    return right(z, **settings)

  monkeypatch.setattr(frozen_backbone.losses, "nt_xent", nt_xent)
  path = frozen_backbone.train_projector(
    config, backbone, tmp_path / "run", views=2, epochs=1, source=source
  )
  (row,) = jsonl.read(path / "metrics.jsonl")
  assert set(asked) == {"bfloat16"}
  # The threshold is above every |f|.
  assert (row["sparsity"], row["active_dimensions"]) == (1.0, 0.0)


@pytest.mark.parametrize(
  ("method", "settings", "message"),
  [
    ("ncl", {"views": 3}, "views = 3: it must be an even number"),
    ("ncl", {"views": 0}, "views = 0"),
    ("ce", {}, "loss.name is cross_entropy"),
    ("ncl", {"epochs": 0}, "epochs = 0"),
  ],
)
def test_refused_before_anything_is_written(
  method, settings, message, backbone, tmp_path, source
):
  with pytest.raises(InputError, match=message):
    fit(backbone, tmp_path / "run", source, method, **settings)
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("section", "field", "value"),
  [("model", "projector_batch_norm", True), ("loss", "l1", 2.0)],
)
def test_what_a_projector_alone_does_not_take(
  section, field, value, backbone, tmp_path, source
):
  config = tiny.config(backbone="resnet10")
  config[section][field] = value
  with pytest.raises(InputError, match=f"{section}.{field} is {value}: a projector"):
    frozen_backbone.train_projector(config, backbone, tmp_path / "run", source=source)
  assert not (tmp_path / "run").exists()


def test_other_networks_are_refused(backbone, tmp_path, source):
  state = dict(interop.read(backbone))
  with pytest.raises(InputError, match="channels: 1 in the file, 3 in"):
    fit(backbone, tmp_path / "run", tiny.source(channels=3))
  config = tiny.config(backbone="resnet10")
  config.model.width = 4
  with pytest.raises(
    InputError, match=r"take the file's network: --config.model.width"
  ):
    frozen_backbone.train_projector(config, backbone, tmp_path / "run", source=source)
  del state["layer2.0.conv1.weight"]
  file = save(tmp_path / "less.safetensors", state)
  with pytest.raises(InputError, match=r"1 are missing .*layer2\.0\.conv1"):
    fit(file, tmp_path / "run", source)
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
  ("key", "value"),
  [
    ("loss.name", "vicreg"),
    ("loss.l1", 5.0),
    ("loss.learn_temperature", True),
    ("loss.weight", 2.0),
    ("model.projector_batch_norm", True),
    ("train.init_from", "runs/other"),
  ],
)
def test_what_would_be_ignored_is_refused(key, value, backbone, tmp_path, source):
  config = tiny.config(backbone="resnet10")
  config_lib.put(config, key, value)
  with pytest.raises(InputError, match=f"{key} is {value}"):
    frozen_backbone.train_projector(config, backbone, tmp_path / "run", source=source)
  assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["train.epochs", "optimizer.learning_rate"])
def test_settings_of_its_own_are_not_set_by_the_config(key, tmp_path):
  flags = [f"--config={tiny.__file__}:ncl", f"--config.{key}=2", "--backbone=x"]
  code, _, err = call("train_projector", *flags, f"--workdir={tmp_path / 'run'}")
  assert code == 2 and f"--config.{key}" in err and "--epochs" in err


def test_pairs_of_the_data_are_refused(backbone, tmp_path, source):
  train = dataclasses.replace(source.split("train"), partners=lambda rows, rng: rows)
  paired = dataclasses.replace(source, splits=source.splits | {"train": train})
  with pytest.raises(InputError, match="pairs each image with another"):
    fit(backbone, tmp_path / "run", paired)


def test_of_another_network_the_backbone_alone_is_taken():
  """BYOL's statistics have a part of its predictor."""
  model = {
    "params": {"backbone": 1, "projector": 2, "predictor": 3},
    "batch_stats": {"backbone": 4, "projector": 5, "predictor": 6},
  }
  assert frozen_backbone._backbone_of(model) == {
    "params": {"backbone": 1},
    "batch_stats": {"backbone": 4},
  }


def test_again_after_a_kill_it_is_the_same(trained, backbone, tmp_path, source):
  path = shutil.copytree(trained["ncl"], tmp_path / "run")
  shutil.rmtree(path / "checkpoints")
  fit(backbone, path, source)
  assert jsonl.read(path / "metrics.jsonl") == jsonl.read(
    trained["ncl"] / "metrics.jsonl"
  )


def test_too_many_features_and_a_second_training_are_refused(
  trained, backbone, tmp_path, source, monkeypatch
):
  with pytest.raises(InputError, match="choose another --workdir"):
    fit(backbone, trained["ncl"], source)
  monkeypatch.setattr(frozen_backbone, "MAX_BYTES", 100)
  with pytest.raises(InputError, match="fewer --views"):
    fit(backbone, tmp_path / "run", source)
  assert not (tmp_path / "run").exists()
