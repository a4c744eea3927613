"""One update: the released code's trace, any number of devices, what was compiled."""

import functools
import re

import chex
import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recipe
import tiny
from jax.sharding import AxisType

from ncl_jax import config as config_lib
from ncl_jax import interop, optimizers, sharding
from ncl_jax import step as step_lib

TRACE = "train_trace"


def mesh_of(devices):
  return jax.make_mesh(
    (devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices]
  )


# The released code's five steps.


@functools.cache
def trace():
  return golden_numbers.load(TRACE)


def trace_config(map_name):
  config = config_lib.defaults()
  config.model.backbone = "resnet10"
  config.model.projector_hidden = 32
  config.model.projector_out = 16
  config.model.dtype = "float64"
  config.loss.map = map_name
  return config


def trace_start():
  state = recipe.state(golden_numbers.tensors(TRACE)["tensors"])
  variables = interop.from_torch(state)
  return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), variables)


def trace_optimizer(regime):
  """LARS with the trace's learning rates, set by hand for each step."""

  def at(name):
    rates = jnp.asarray(trace()[f"{regime}__lr_{name}"])
    return lambda step: rates[step]

  def make(name, decay):
    return optimizers.lars(
      at(name), weight_decay=decay, trust_coefficient=0.02, clip=True
    )

  return optimizers.partition(make("main", 1e-4), make("classifier", 0.0)), at("main")


@pytest.mark.parametrize("map_name", ["identity", "relu", "rep_relu"])
@pytest.mark.parametrize("regime", ["small", "recipe"])
def test_the_released_codes_five_steps(x64, regime, map_name):
  golden, start = trace(), trace_start()
  prefix = f"{regime}__{map_name}__"
  optimizer, learning_rate = trace_optimizer(regime)
  update = jax.jit(
    step_lib.make_update(trace_config(map_name), 10, optimizer, learning_rate)
  )
  state = step_lib.TrainState(
    step=jnp.zeros((), jnp.int32),
    params=start["params"],
    batch_stats=start["batch_stats"],
    opt_state=optimizer.init(start["params"]),
  )
  views = np.stack([golden["x_view1"], golden["x_view2"]], axis=1)
  views = views.transpose(0, 1, 3, 4, 2).astype(np.float64)
  initial = interop.to_torch(start)
  for step in range(5):
    state, values, _ = update(state, views, jnp.asarray(golden["targets"]))
    for ours, theirs in {"loss": "loss_nce", "probe_loss": "loss_class"}.items():
      expected = golden[f"{prefix}{theirs}_f64"][step]
      np.testing.assert_allclose(values[ours], expected, atol=1e-9, rtol=0)
    tensors = interop.to_torch(
      {"params": state.params, "batch_stats": state.batch_stats}
    )
    for i, name in enumerate(golden["tensor_names"]):
      tensor = np.asarray(tensors[str(name)])
      change = tensor - initial[str(name)]

      def at(key, step=step, i=i):
        return golden[f"{prefix}{key}_f64"][step, i]

      np.testing.assert_allclose((tensor**2).sum(), at("sumsq"), rtol=1e-9)
      np.testing.assert_allclose((change**2).sum(), at("delta_sumsq"), rtol=1e-9)
      np.testing.assert_allclose(
        recipe.probe(str(name), tensor),
        at("probe"),
        rtol=0,
        atol=1e-9 * np.sqrt(at("sumsq") / 3),
      )
      np.testing.assert_allclose(
        recipe.probe(str(name), change),
        at("delta_probe"),
        rtol=0,
        atol=1e-9 * np.sqrt(at("delta_sumsq") / 3),
      )


def test_joint_statistics_are_another_recipe(x64):
  golden, start = trace(), trace_start()
  config = trace_config("identity")
  config.model.batch_norm = "joint"
  optimizer, learning_rate = trace_optimizer("small")
  update = jax.jit(step_lib.make_update(config, 10, optimizer, learning_rate))
  state = step_lib.TrainState(
    step=jnp.zeros((), jnp.int32), opt_state=optimizer.init(start["params"]), **start
  )
  views = np.stack([golden["x_view1"], golden["x_view2"]], axis=1)
  views = views.transpose(0, 1, 3, 4, 2).astype(np.float64)
  _, values, _ = update(state, views, jnp.asarray(golden["targets"]))
  expected = golden["small__identity__step0_loss_nce_if_views_shared_one_forward_f64"]
  np.testing.assert_allclose(values["loss"], expected, atol=1e-9, rtol=0)


# The statistics of the log.


def test_batch_statistics_are_the_released_codes():
  golden = golden_numbers.load("metrics")
  # One view an example; scaled, to see the rows normalised.
  z = 3 * jnp.asarray(golden["nonneg__trainlog__input_normalized"]).reshape(300, 1, -1)
  values = step_lib.batch_statistics(z, jnp.asarray(golden["labels"]), 10, 1e-5)

  def at(name):
    return golden[f"nonneg__trainlog__{name}"]

  np.testing.assert_allclose(values["sparsity"], at("sparse_vals_ratio"), rtol=2e-5)
  # The released log gives the entropy, and counts one dimension whose only value is
  # 2e-7 as active.
  np.testing.assert_allclose(
    np.log(values["effective_rank"]), at("effective_rank"), rtol=1e-3
  )
  assert values["live_dimensions"] == at("num_active_dim") - 1
  np.testing.assert_allclose(
    values["class_consistency"], at("semantic_consistency"), rtol=2e-5
  )
  assert values["zero_rows"] == np.sum(~np.any(golden["features_nonneg"], axis=1))


# Devices.


def run(devices, steps, batch_norm="per_view", map_name="rep_relu", dtype="float64"):
  """Parameters after some steps, and the gradients' norm at each."""
  config = tiny.config()
  config.model.dtype = dtype
  config.model.batch_norm = batch_norm
  config.loss.map = map_name
  config.optimizer.name = "sgd"
  source = tiny.source()
  config = config_lib.resolve(config, source)
  optimizer = optimizers.partition(
    optimizers.sgd(0.05, weight_decay=1e-4), optimizers.sgd(0.1)
  )
  mesh = mesh_of(devices)
  step = step_lib.make_step(
    config, source, mesh, optimizer, lambda _: jnp.asarray(0.05)
  )
  state = step_lib.build(lambda: step_lib.init_state(config, source, optimizer), mesh)
  state = jax.tree.map(
    lambda x: x.astype(jnp.dtype(dtype)) if x.dtype == jnp.float32 else x, state
  )
  batches = source.train_batches(0, 0, 16)
  rows = []
  for _ in range(steps):
    batch = next(batches)
    state, values, _ = step(state, sharding.to_global(mesh, _needed(batch)))
    rows.append({k: float(v) for k, v in values.items()})
  batches.close()
  return jax.device_get(state), rows


def _needed(batch):
  return {"image": batch["image"], "label": batch["label"]}


@pytest.mark.parametrize("batch_norm", ["per_view", "joint"])
def test_ten_steps_are_the_same_on_any_number_of_devices(x64, batch_norm):
  # SGD at a constant rate: LARS would hide a gradient that is wrong by a factor.
  one, rows = run(1, 10, batch_norm)
  assert rows[-1]["loss"] < rows[0]["loss"] - 0.05
  for devices in (2, 8):
    many, others = run(devices, 10, batch_norm)
    chex.assert_trees_all_close(many, one, rtol=1e-8, atol=1e-8)
    chex.assert_trees_all_close(others, rows, rtol=1e-8, atol=1e-8)


def test_the_first_step_in_float32():
  (_, one), (_, eight) = (run(n, 1, dtype="float32") for n in (1, 8))
  for key in ("loss", "gradient_norm"):
    np.testing.assert_allclose(eight[0][key], one[0][key], rtol=1e-5)


# What was compiled.


@pytest.mark.parametrize("batch_norm", ["per_view", "joint"])
def test_the_compiled_step_moves_embeddings_once_and_images_never(batch_norm):
  config = tiny.config()
  config.model.batch_norm = batch_norm
  source = tiny.source()
  config = config_lib.resolve(config, source)
  optimizer, learning_rate = step_lib.make_optimizer(config, 3)
  mesh = mesh_of(8)
  step = step_lib.make_step(config, source, mesh, optimizer, learning_rate)
  state = step_lib.build(lambda: step_lib.init_state(config, source, optimizer), mesh)
  batch = next(source.train_batches(0, 0, 16))
  batch = sharding.to_global(mesh, _needed(batch))
  hlo = step.lower(state, batch).compile().as_text()
  assert "all-to-all" not in hlo
  assert "all-reduce" in hlo
  sizes = [
    int(np.prod([int(n) for n in shape.split(",")]))
    for shape in re.findall(r"= \w+\[([\d,]+)\]\S* all-gather(?:-start)?\(", hlo)
  ]
  # 16 images, 2 views, 8 dimensions; index vectors (one number a row) are gathered too.
  embedding = 16 * 2 * config.model.projector_out
  assert [size for size in sizes if size > 16 * 2] == [embedding]


def test_the_state_is_donated_and_the_step_compiles_once():
  config, source = config_lib.resolve(tiny.config(), tiny.source()), tiny.source()
  optimizer, learning_rate = step_lib.make_optimizer(config, 3)
  mesh = mesh_of(8)
  step = step_lib.make_step(config, source, mesh, optimizer, learning_rate)
  state = first = step_lib.build(
    lambda: step_lib.init_state(config, source, optimizer), mesh
  )
  batches = source.train_batches(0, 0, 16)
  for _ in range(3):
    state, *_ = step(state, sharding.to_global(mesh, _needed(next(batches))))
  batches.close()
  assert all(x.is_deleted() for x in jax.tree.leaves(first.params))
  assert step._cache_size() == 1
