"""Supervised training: a second derivation agrees, and only what may move moves."""

import dataclasses
import os
import pathlib
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax import data as data_lib
from ncl_jax import models
from ncl_jax.config import supervised_recipe
from ncl_jax.errors import InputError, Stopped
from ncl_jax.evaluators import finetune, linear_probe, supervised, supervised_step
from ncl_jax.evaluators.run import ALL_LAYERS, Run
from ncl_jax.runtime import jsonl, sharding, tensors
from ncl_jax.training import state as state_lib

SGD = supervised_recipe.Recipe(
  epochs=2,
  batch_size=16,
  optimizer="sgd",
  learning_rate=16.0,  # times 16 / 256
  weight_decay=0.01,
  schedule="step",
  milestones=(1,),
  label_smoothing=0.1,
)


def mesh_of(devices):
  return sharding.make_mesh(jax.devices()[:devices])


@pytest.fixture(scope="module")
def source():
  return tiny.source(train=40, test=21)


@pytest.fixture(scope="module")
def config(source):
  """Views that are the images."""
  c = tiny.config()
  c.augment.crop_scale = (1.0, 1.0)
  c.augment.crop_ratio = (1.0, 1.0)
  c.augment.flip = 0.0
  return config_lib.resolve(c, source)


@pytest.fixture(scope="module")
def variables(config, source):
  return state_lib.build(lambda: state_lib.init_variables(config, source), mesh_of(8))


@pytest.fixture(scope="module")
def probes(config, variables, source):
  """Of every layer, after four steps on eight devices."""
  layers = ALL_LAYERS
  return supervised.train(
    SGD, Run(config, variables, source, mesh_of(8)), layers=layers, frozen=True
  )


@pytest.fixture(scope="module")
def finetuned(config, variables, source, tmp_path_factory):
  folder = tmp_path_factory.mktemp("finetune")
  result = supervised.train(
    SGD, Run(config, variables, source, mesh_of(8)), frozen=False, folder=folder
  )
  return result, folder


def numpy_probe(x, labels, batches, start, smoothing=0.1):
  """Momentum SGD on softmax regression; the rate falls to a tenth after two steps."""
  w, b = (np.array(start[name], np.float64) for name in ("kernel", "bias"))
  momenta = [np.zeros_like(w), np.zeros_like(b)]
  for t, rows in enumerate(batches):
    scores = x[rows] @ w + b
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    target = np.full(p.shape, smoothing / 2)
    target[np.arange(len(rows)), labels[rows]] += 1 - smoothing
    slope = (p - target) / len(rows)
    gradients = [x[rows].T @ slope + 0.01 * w, slope.sum(0)]
    momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
    rate = 1.0 if t < 2 else 0.1
    w, b = w - rate * momenta[0], b - rate * momenta[1]
  return w, b


@pytest.mark.parametrize("layer", ALL_LAYERS)
def test_a_probe_is_softmax_regression_by_momentum_sgd(
  layer, probes, config, variables, source
):
  train = Run(config, variables, source, mesh_of(8)).extract("train")
  x = train.layer(layer, config.loss.transform).astype(np.float64)
  batches = source.train_batches(config.seed, 0, 16)
  order = [next(batches)["id"] for _ in range(4)]
  batches.close()
  start = supervised_step.init_heads(config, source, (layer,))[layer]
  w, b = numpy_probe(x, train.labels, order, start)
  np.testing.assert_allclose(probes.heads[layer]["kernel"], w, atol=1e-4)
  np.testing.assert_allclose(probes.heads[layer]["bias"], b, atol=1e-4)
  settings = probes.settings
  assert settings["steps"] == 4 and settings["batch_size"] == 16
  assert settings["train_images"] == 40


def test_devices_change_nothing(probes, finetuned, config, variables, source):
  alone = supervised.train(
    SGD, Run(config, variables, source, mesh_of(1)), layers=ALL_LAYERS, frozen=True
  )
  for a, b in zip(*map(jax.tree.leaves, (alone.heads, probes.heads)), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
  alone = supervised.train(
    SGD, Run(config, variables, source, mesh_of(1)), frozen=False
  )
  for a, b in zip(
    *(jax.tree.leaves((run.variables, run.heads)) for run in (alone, finetuned[0])),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=1e-3)


def test_finetuning_moves_the_backbone_and_its_statistics_and_not_the_projector(
  finetuned, variables
):
  after = finetuned[0].variables
  before = {k: v for k, v in variables["params"].items() if k != "probe"}
  same = jax.tree.map(np.array_equal, after["params"], before)
  assert not any(jax.tree.leaves(same["backbone"]["conv1"]))
  assert all(jax.tree.leaves(same["projector"]))
  moved = jax.tree.map(np.array_equal, after["batch_stats"], variables["batch_stats"])
  assert not any(jax.tree.leaves(moved))


def test_stopped_and_gone_on_with_it_ends_the_same_bit_for_bit(
  finetuned, config, variables, source, tmp_path, monkeypatch
):
  update = jsonl.Progress.update

  def watched(self, done, message):
    update(self, done, message)
    if done == 2:
      os.kill(os.getpid(), signal.SIGTERM)

  def go():
    return supervised.train(
      SGD, Run(config, variables, source, mesh_of(8)), frozen=False, folder=tmp_path
    )

  with monkeypatch.context() as patch:
    patch.setattr(jsonl.Progress, "update", watched)
    with pytest.raises(Stopped, match="step 3 of 4"):
      go()
  whole, parts = finetuned[0], go()
  for a, b in zip(
    *(jax.tree.leaves((run.variables, run.heads)) for run in (whole, parts)),
    strict=True,
  ):
    np.testing.assert_array_equal(a, b)
  # Another recipe does not take over what is there.
  other = dataclasses.replace(SGD, epochs=1)
  supervised.train(
    other, Run(config, variables, source, mesh_of(8)), frozen=False, folder=tmp_path
  )
  assert len(list(tmp_path.iterdir())) == 2


def test_layer_decay_scales_the_steps_of_each_depth():
  images = jnp.zeros((2, 8, 8, 1))
  shapes = jax.eval_shape(models.resnet10("cifar", 2).init, jax.random.key(0), images)
  backbone = shapes["params"]
  depths = supervised_step.depths_of(backbone, frozen=False)
  assert depths == {
    "heads": 5,
    "backbone": {
      "conv1": 0,
      "bn1": 0,
      **{f"layer{stage}_0": stage for stage in (1, 2, 3, 4)},
    },
  }
  vit = ("class_token", "layer01", "layer02", "norm")
  places = supervised_step.depths_of(dict.fromkeys(vit), frozen=False)["backbone"]
  assert places == {"class_token": 0, "layer01": 1, "layer02": 2, "norm": 2}
  params = {
    "heads": np.ones(2),
    "backbone": {name: np.ones((2, 2)) for name in backbone},
  }
  one = dataclasses.replace(SGD, layer_decay=0.5, weight_decay=0.0)
  optimizer = supervised_step.make_optimizer(one, depths, 16, 2)
  updates, _ = optimizer.update(params, optimizer.init(params), params)
  assert updates["heads"][0] == -1
  for name, factor in (("conv1", 1 / 32), ("layer1_0", 1 / 16), ("layer4_0", 1 / 2)):
    np.testing.assert_allclose(updates["backbone"][name], -factor)


def test_the_sgd_protocol_proves_that_the_network_is_as_it_was(
  config, variables, source, monkeypatch
):
  args = (config, variables, source, mesh_of(8))
  options = {"protocol": "sgd", "layers": ("h", "f"), "recipe": SGD}
  result = linear_probe.evaluate(*args, **options)
  settings = result["settings"]
  assert settings["network_before"] == settings["network_after"]
  assert settings["network_before"] == tensors.digest(network_of(variables))
  assert settings["recipe"]["milestones"] == (1,)
  assert (settings["images"], settings["train_images"]) == (21, 40)
  test = Run(config, variables, source, mesh_of(8)).extract("test")
  trained = supervised.train(SGD, Run(*args), layers=("h", "f"), frozen=True)
  for layer in ("h", "f"):
    head = jax.tree.map(np.asarray, trained.heads[layer])
    scores = test.layer(layer, config.loss.transform) @ head["kernel"] + head["bias"]
    accuracy = np.mean(scores.argmax(1) == test.labels)
    assert result[layer]["accuracy"] == pytest.approx(accuracy)

  def spoil(*unused, **options):
    changed = jax.tree.map(lambda x: x, network_of(variables))
    changed["batch_stats"]["backbone"]["bn1"]["mean"] += 1
    return dataclasses.replace(trained, variables=changed)

  monkeypatch.setattr(supervised, "train", spoil)
  with pytest.raises(RuntimeError, match="the probe changed the network"):
    linear_probe.evaluate(*args, **options)


def network_of(variables):
  """Without the online probe, which is no part of it."""
  params = {k: v for k, v in variables["params"].items() if k != "probe"}
  return {"params": params, "batch_stats": variables["batch_stats"]}


def test_finetuning_takes_a_stratified_part_of_the_labels(
  finetuned, config, variables, source
):
  part = dataclasses.replace(SGD, label_fraction=0.25)
  result = finetune.evaluate(config, variables, source, mesh_of(2), recipe=part)
  settings = result["settings"]
  assert (settings["train_images"], settings["train_classes"]) == (10, 2)
  assert (settings["batch_size"], settings["steps"]) == (8, 2)
  assert settings["recipe"]["label_fraction"] == 0.25
  assert 0 <= result["h"]["accuracy"] <= 1


@pytest.mark.parametrize(
  "devices", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (6, 7))]
)
def test_any_number_of_devices_will_do(devices, finetuned, config, variables, source):
  seen = supervised.train(
    SGD, Run(config, variables, source, mesh_of(devices)), frozen=False
  )
  assert (seen.settings["batch_size"], seen.settings["steps"]) == (16, 4)
  for a, b in zip(
    *(jax.tree.leaves((run.variables, run.heads)) for run in (seen, finetuned[0])),
    strict=True,
  ):
    np.testing.assert_allclose(a, b, atol=1e-3)


def test_fewer_images_than_devices_take_fewer_devices(config, variables, source):
  result = finetune.evaluate(config, variables, source, mesh_of(8), label_fraction=0.1)
  settings = result["settings"]
  assert (settings["train_images"], settings["batch_size"]) == (4, 4)
  assert settings["recipe"]["label_fraction"] == 0.1


def test_labelled_leaves_out_what_has_no_label_and_keeps_shares():
  whole = tiny.source(train=40)
  split = whole.split("train")
  labels = np.where(np.arange(40) < 12, -1, split.labels)
  partly = dataclasses.replace(
    whole,
    splits=whole.splits | {"train": dataclasses.replace(split, labels=labels)},
  )
  known = data_lib.labelled(partly).split("train")
  np.testing.assert_array_equal(known.images, split.images[12:])
  half = data_lib.labelled(partly, 0.5, seed=3).split("train")
  assert np.bincount(half.labels).tolist() == [7, 7]
  for fraction in (0, 1.5, 0.001):
    with pytest.raises(InputError, match="fraction"):
      data_lib.labelled(partly, fraction)


@pytest.mark.parametrize("batch", [1, 7, 16, 21])
def test_the_accuracy_counts_each_test_image_once(batch, probes, config, source):
  config = config.copy_and_resolve_references()
  config.eval.batch_size = batch
  test = Run(config, probes.variables, source, mesh_of(8)).extract("test")
  head = jax.tree.map(np.asarray, probes.heads["h"])
  hits = (test.h @ head["kernel"] + head["bias"]).argmax(1) == test.labels
  assert len(hits) == 21
  seen = supervised.accuracy(probes.heads["h"], test.h, test.labels)
  assert seen == pytest.approx(hits.mean())
  labels = np.where(np.arange(21) < 5, -1, test.labels)
  seen = supervised.accuracy(probes.heads["h"], test.h, labels)
  assert seen == pytest.approx(hits[5:].mean())


def test_the_papers_recipes():
  cifar = supervised_recipe.for_stem("cifar", epochs=50).settings()
  assert cifar["optimizer"] == "lars" and cifar["learning_rate"] == 0.4
  assert cifar["warmup_epochs"] == 10 and "milestones" not in cifar
  imagenet = supervised_recipe.for_stem("imagenet", epochs=30).settings()
  assert imagenet["optimizer"] == "sgd" and imagenet["learning_rate"] == 1.0
  assert imagenet["weight_decay"] == 0 and "clip" not in imagenet
  assert supervised_recipe.for_stem("cifar", epochs=5).warmup_epochs == 1


@pytest.mark.parametrize(
  ("changes", "says"),
  [
    ({"epochs": 0}, "epochs = 0"),
    ({"batch_size": 1}, "batch_size = 1"),
    ({"optimizer": "sdg"}, "did you mean 'sgd'"),
    ({"schedule": "linear"}, "cosine, step"),
    ({"learning_rate": 0.0}, "learning_rate = 0"),
    ({"layer_decay": 1.1}, "layer_decay = 1.1"),
    ({"label_fraction": 2.0}, "label_fraction = 2"),
    ({"label_smoothing": 1.0}, "label_smoothing = 1"),
    ({"weight_decay": -1.0}, "weight_decay = -1"),
    ({"warmup_epochs": 60.0}, "warmup_epochs = 60"),
  ],
)
def test_a_recipe_that_cannot_work_is_refused(changes, says):
  with pytest.raises(InputError, match=says):
    supervised_recipe.for_stem("cifar", **({"epochs": 50} | changes))


def test_the_digest_tells_any_change():
  tree = {"a": np.zeros(3, np.float32), "b": {"c": np.ones((1, 2))}}
  first = tensors.digest(tree)
  assert first == tensors.digest(jax.tree.map(np.copy, tree))
  changed = [
    {"a": tree["a"], "b": {"d": tree["b"]["c"]}},
    {"a": tree["a"], "b": {"c": np.ones((2, 1))}},
    {"a": tree["a"].astype(np.float64), "b": tree["b"]},
    {"a": np.array([0, 0, 1e-30], np.float32), "b": tree["b"]},
  ]
  assert first not in [tensors.digest(other) for other in changed]


def test_folders_are_left_where_they_were_asked_for(finetuned):
  (place,) = pathlib.Path(finetuned[1]).iterdir()
  assert (place / "checkpoints" / "4").is_dir()
