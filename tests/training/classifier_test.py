"""Classifiers in the train step: weights, loss, mixing, chunks, devices, whole runs."""

import functools
import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax import optimizers
from ncl_jax.errors import InputError
from ncl_jax.evaluators import (
  execute,
  feature_stats,
  knn,
  retrieval,
  selection,
  sepin,
  torch_exchange,
)
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.experiments import controls
from ncl_jax.runtime import checkpoint, jsonl, sharding
from ncl_jax.training import classifier, heldout_accuracy, loop, restore, step, update
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib

SLOW = pytest.mark.slow


def resolved(method, **changes):
  config = tiny.config(method)
  for key, value in changes.items():
    section, field = key.split("__")
    config[section][field] = value
  config_lib.validate(config)
  return config_lib.resolve(config, tiny.source())


def test_ce_and_nce_start_from_the_same_weights():
  ce, nce = (
    classifier.init(resolved(method), tiny.source())["classifier"]
    for method in ("ce", "nce")
  )
  assert sorted(ce) == ["bias", "prototypes"] and sorted(nce) == ["prototypes"]
  np.testing.assert_array_equal(ce["prototypes"], nce["prototypes"])
  width = config_lib.widths(resolved("ce"))["z"]
  assert nce["prototypes"].shape == (2, width)
  assert np.abs(nce["prototypes"]).max() <= width**-0.5
  assert classifier.init(resolved("supcon"), tiny.source()) == {}


def test_nce_maps_features_and_weights():
  config = resolved("nce", loss__logit_scale=3.0)
  z = np.float32([[2, -1], [0.5, 4]])
  w = np.float32([[1, 3], [-2, 5]])
  seen = classifier.scores(config, {"prototypes": w}, z)
  np.testing.assert_allclose(seen, 3 * np.maximum(z, 0) @ np.maximum(w, 0).T, rtol=1e-6)
  biased = classifier.scores(
    resolved("ce"), {"prototypes": w, "bias": np.float32([1, 2])}, z
  )
  np.testing.assert_allclose(biased, z @ w.T + np.float32([[1, 2]]), rtol=1e-6)


def test_the_mean_is_over_what_is_labelled():
  config = resolved("ce", loss__label_smoothing=0.1)
  rng = np.random.default_rng(0)
  z = rng.normal(size=(5, 4)).astype(np.float32)
  weights = {"prototypes": rng.normal(size=(2, 4)), "bias": rng.normal(size=2)}
  weights = jax.tree.map(np.float32, weights)
  labels = np.array([1, -1, 0, -1, 1])
  one_hot = jax.nn.one_hot(labels, 2)
  loss, values = classifier.loss(config, weights, jnp.asarray(z), one_hot)
  known = labels >= 0
  logits = z[known] @ weights["prototypes"].T + weights["bias"][None]
  target = optax.smooth_labels(one_hot[known], 0.1)
  expected = optax.softmax_cross_entropy(logits, target).mean()
  np.testing.assert_allclose(loss, expected, rtol=1e-6)
  assert values["unlabelled"] == 2
  hits = logits.argmax(1) == labels[known]
  np.testing.assert_allclose(values["accuracy"], hits.mean(), rtol=1e-6)
  nothing, values = classifier.loss(config, weights, jnp.asarray(z), 0 * one_hot)
  assert nothing == 0 and values["unlabelled"] == 5


def test_the_mixing_weight_is_drawn_from_beta():
  config = resolved("ce", loss__mixup=0.4)
  keys = jax.random.split(jax.random.key(0), 2000)
  draw = jax.jit(jax.vmap(lambda key: classifier.mixing_weights(config, key, 2)))
  drawn = draw(keys)
  np.testing.assert_array_equal(drawn[:, 0], drawn[:, 1])
  # Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)).
  assert float(drawn.mean()) == pytest.approx(0.5, abs=0.03)
  assert float(drawn[:, 0].var()) == pytest.approx(1 / 4 / 1.8, abs=0.01)


def init(config, source, optimizer):
  mesh = sharding.make_mesh(jax.devices()[:1])
  return state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)


def run(devices, **changes):
  """Three steps in float64, of a batch with unlabelled images."""
  config = resolved("nce", model__dtype="float64", **changes)
  source = tiny.source()
  source.split("train").labels[::5] = -1
  optimizer = optimizers.partition(optimizers.sgd(0.3), optimizers.sgd(0.1))
  mesh = sharding.make_mesh(jax.devices()[:devices])
  go = step.make_step(config, source, mesh, optimizer, lambda _: jnp.asarray(0.3))
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  state = jax.tree.map(
    lambda x: x.astype("float64") if x.dtype == jnp.float32 else x, state
  )
  batches = source.train_batches(0, 0, 16)
  rows = []
  for _ in range(3):
    batch = {k: v for k, v in next(batches).items() if k in ("image", "label")}
    state, values, _ = go(state, sharding.to_global(mesh, batch))
    rows.append({k: float(v) for k, v in values.items()})
  batches.close()
  return jax.device_get(state.items()["model"]), rows


def test_one_device_and_eight_are_the_same(x64):
  changes = {"loss__label_smoothing": 0.1}
  one, rows = run(1, **changes)
  many, others = run(8, **changes)
  chex.assert_trees_all_close(many, one, rtol=1e-8, atol=1e-8)
  chex.assert_trees_all_close(others, rows, rtol=1e-8, atol=1e-8)
  assert [row["unlabelled"] > 0 for row in rows] == [True] * 3


def test_images_are_mixed_across_devices():
  # Of a step in float64 the images are float32 all the same: a test of its own.
  x = np.random.default_rng(0).random((16, 1, 4, 4, 1), np.float32)
  share = np.float32(0.3)
  mesh = sharding.make_mesh(jax.devices()[:8])
  split = sharding.batch_sharded(mesh)
  seen = jax.jit(classifier.mix, in_shardings=(split, split), out_shardings=split)(
    x, np.full(16, share)
  )
  expected = [share * x[i] + (1 - share) * x[15 - i] for i in range(16)]
  np.testing.assert_allclose(seen, expected, rtol=1e-6)


def test_accumulated_chunks_give_the_loss_of_the_whole_batch():
  config = resolved("ce_projector", train__grad_cache_chunks=2)
  source = tiny.source()
  optimizer, learning_rate = optimizer_lib.make_optimizer(config, 3)
  state = init(config, source, optimizer)
  rng = np.random.default_rng(0)
  views = rng.normal(size=(16, 1, 8, 8, 1)).astype(np.float32)
  labels = np.where(np.arange(16) % 5, np.arange(16) % 2, -1)
  go = jax.jit(update.make_update(config, 2, optimizer))
  _, values, z = go(state, views, labels)
  model = config_lib.model(config)
  variables = {"params": state.params, "batch_stats": state.batch_stats}
  apply = jax.jit(lambda x: model.apply(variables, x, True, mutable=["batch_stats"]))
  expected = np.zeros((16, 8), np.float32)
  for j in range(2):
    (_, expected[j::2]), _ = apply(views[j::2, 0])
  np.testing.assert_allclose(z[:, 0], expected, atol=1e-5)
  weights = state.params["classifier"]
  logits = expected @ weights["prototypes"].T + weights["bias"][None]
  each = optax.softmax_cross_entropy_with_integer_labels(logits, np.maximum(labels, 0))
  np.testing.assert_allclose(values["loss"], each[labels >= 0].mean(), rtol=1e-5)
  assert values["unlabelled"] == 4


# Whole runs.


@pytest.fixture(scope="module")
def ncl(tmp_path_factory):
  path = tmp_path_factory.mktemp("runs") / "ncl"
  return tiny.as_trained(tiny.config("supcon_ncl"), path, tiny.source())


@pytest.fixture(scope="module")
def nce(tmp_path_factory):
  """Without a projector; four epochs."""
  config = tiny.config("nce")
  return loop.train(config, tmp_path_factory.mktemp("runs") / "nce", unlabelled())


def unlabelled():
  """The data, three labels of which are unknown."""
  source = tiny.source()
  source.split("train").labels[:3] = -1
  return source


def test_a_classifier_learns_and_is_tested_on_the_way(nce):
  rows = jsonl.read(nce / "metrics.jsonl")
  tested = [row for row in rows if "test_top1" in row]
  assert [row["step"] for row in tested] == [3, 6, 9, 12]
  assert all(row["test_images"] == 21 for row in tested)
  assert all(row["test_top5"] == 1 for row in tested)  # of two classes
  assert tested[-1]["loss"] < rows[0]["loss"]
  assert sum(row["unlabelled"] for row in rows) > 0
  # The numbers of the last row, from the checkpoint.
  opened = open_run(nce, source=tiny.source())
  found = opened.extract("test")
  np.testing.assert_array_equal(found.h, found.z)
  w = np.asarray(opened.variables["params"]["classifier"]["prototypes"])
  scores = np.maximum(found.z, 0) @ np.maximum(w, 0).T
  assert tested[-1]["test_top1"] == np.mean(scores.argmax(1) == found.labels)


def test_the_best_step_is_a_work_directory_of_its_own(nce):
  rows = [row for row in jsonl.read(nce / "metrics.jsonl") if "test_top1" in row]
  best = max(rows, key=lambda row: row["test_top1"])  # the first of equals
  opened = open_run(nce / "best", source=tiny.source())
  assert opened.step == best["step"]
  again = heldout_accuracy.evaluate(
    opened.config, opened.variables, opened.source, opened.mesh
  )
  assert again["test_top1"] == best["test_top1"]
  assert checkpoint.steps(nce)[-1] == 12


def test_killed_and_gone_on_with_it_is_tested_and_kept_the_same(nce, tmp_path):
  # A kill in epoch 3: the best step may be ahead of the newest checkpoint.
  parts = tmp_path / "parts"
  shutil.copytree(nce, parts)
  shutil.rmtree(parts / "checkpoints" / "12")
  config = tiny.config("nce")
  loop.train(config, parts, unlabelled())
  assert (parts / "metrics.jsonl").read_text() == (nce / "metrics.jsonl").read_text()
  assert checkpoint.steps(parts / "best") == checkpoint.steps(nce / "best")


@pytest.mark.parametrize(
  "module",
  [feature_stats, knn, retrieval, sepin, pytest.param(selection, marks=SLOW)],
)
def test_evaluation_programs_take_a_classifier(module, nce):
  row = execute.run(module.evaluate, nce, source=tiny.source())
  assert row["settings"]["method"] == "nce"


def test_a_classifier_starts_from_the_backbone_of_pretraining(ncl, tmp_path):
  source = tiny.source()
  origin = open_run(ncl, source=source)
  for method, parts in (("ce", ["backbone"]), ("nce_projector", None)):
    config = tiny.config(method)
    config.train.init_from = str(ncl)
    config = config_lib.resolve(config, source)
    optimizer, _ = optimizer_lib.make_optimizer(config, 3)
    made = functools.partial(state_lib.init_state, config, source, optimizer)
    shapes = jax.eval_shape(made)
    state = jax.tree.map(lambda x: np.full(x.shape, 0.5, x.dtype), shapes)
    new = restore.with_weights_of(str(ncl), config, state, sharding.make_mesh())
    taken = parts or ["backbone", "projector"]
    assert sorted(new.params) == sorted([*taken, "classifier"])
    for name in taken:
      chex.assert_trees_all_equal(new.params[name], origin.variables["params"][name])
    chex.assert_trees_all_equal(new.batch_stats, origin.variables["batch_stats"])
    chex.assert_trees_all_equal(new.params["classifier"], state.params["classifier"])
    chex.assert_trees_all_equal(new.opt_state, state.opt_state)
  config = tiny.config("ce")
  config.train.init_from = str(ncl)
  config.model.width = 4
  with pytest.raises(InputError, match="does not fit.*backbone/bn1/mean"):
    loop.train(config, tmp_path / "wider", source)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ce", "ce_projector", "nce_projector", "supcon"])
def test_every_method_trains_and_is_evaluated(method, ncl, tmp_path):
  config = tiny.config(method)
  config.train.epochs = 1
  source = tiny.source()
  if method == "ce":
    config.train.init_from = str(ncl)
    config.loss.mixup = 0.2
  path = loop.train(config, tmp_path / "run", source)
  row = execute.run(knn.evaluate, path, source=source)
  assert 0 <= row["f"]["accuracy"] <= 1
  assert json.loads((path / "config.json").read_text())["method"] == method


def test_a_network_without_a_projector_is_exported_by_our_names_alone(nce, tmp_path):
  source = tiny.source()
  with pytest.raises(InputError, match="no projector.*--names=ours"):
    torch_exchange.export_variables(nce, tmp_path / "t.safetensors", source=source)
  torch_exchange.export_variables(
    nce, tmp_path / "o.safetensors", names="ours", source=source
  )
  assert (tmp_path / "o.safetensors").stat().st_size > 0


def test_what_needs_a_projector_or_pretraining_says_so(tmp_path):
  config = resolved("nce")
  with pytest.raises(InputError, match="no projector.*allowed are runs with one"):
    controls.last_layer(Run(config, {"params": {}}, None, None), np.eye(2), "relu")
  with pytest.raises(InputError, match="config.method is nce.*init_from"):
    torch_exchange.import_torch(tiny.config("nce"), "no.pt", tmp_path / "run")
