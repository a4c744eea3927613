"""One update: its statistics, any number of devices, what was compiled."""

import re

import chex
import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import AxisType

from ncl_jax import config as config_lib
from ncl_jax import optimizers
from ncl_jax.runtime import sharding
from ncl_jax.training import collapse, input_pipeline
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib


def mesh_of(devices):
  return jax.make_mesh(
    (devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices]
  )


def test_batch_statistics_are_the_released_codes():
  golden = golden_numbers.load("metrics")
  # One view an example; scaled, to see the rows normalised.
  z = 3 * jnp.asarray(golden["nonneg__trainlog__input_normalized"]).reshape(300, 1, -1)
  values = collapse.batch_statistics(z, jnp.asarray(golden["labels"]), 10, 1e-5)

  def at(name):
    return golden[f"nonneg__trainlog__{name}"]

  np.testing.assert_allclose(values["sparsity"], at("sparse_vals_ratio"), rtol=2e-5)
  # The released log gives the entropy, and counts one dimension whose only value is
  # 2e-7 as active.
  np.testing.assert_allclose(
    np.log(collapse.effective_rank(z)), at("effective_rank"), rtol=1e-3
  )
  assert values["active_dimensions"] == at("num_active_dim") - 1
  np.testing.assert_allclose(
    values["class_consistency"], at("semantic_consistency"), rtol=2e-5
  )
  assert values["zero_rows"] == np.sum(~np.any(golden["features_nonneg"], axis=1))


def run(devices, steps, batch_norm="per_view", transform="rep_relu", dtype="float64"):
  """The state after each of some steps, and the metrics of each."""
  config = tiny.config(backbone="resnet_two_blocks")
  config.model.dtype = dtype
  config.model.batch_norm = batch_norm
  config.loss.transform = transform
  config.optimizer.name = "sgd"
  source = tiny.source()
  config = config_lib.resolve(config, source)
  optimizer = optimizers.partition(
    optimizers.sgd(0.3, weight_decay=1e-4), optimizers.sgd(0.1)
  )
  mesh = mesh_of(devices)
  step = step_lib.make_step(config, source, mesh, optimizer, lambda _: jnp.asarray(0.3))
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  state = jax.tree.map(
    lambda x: x.astype(jnp.dtype(dtype)) if x.dtype == jnp.float32 else x, state
  )
  first = state
  batches = source.train_batches(0, 0, 16)
  states, rows = [], []
  for _ in range(steps):
    batch = next(batches)
    state, values, _ = step(state, sharding.to_global(mesh, _needed(batch)))
    states.append(jax.device_get(state))
    rows.append({k: float(v) for k, v in values.items()})
  batches.close()
  assert all(x.is_deleted() for x in jax.tree.leaves(first.params)), "not donated"
  assert step._cache_size() == 1
  return states, rows


def _needed(batch):
  return {"image": batch["image"], "label": batch["label"]}


@pytest.mark.parametrize(
  ("batch_norm", "several"),
  [
    ("per_view", (8,)),
    pytest.param("per_view", (2, 4), marks=pytest.mark.slow),
    pytest.param("joint", (2, 4, 8), marks=pytest.mark.slow),
  ],
)
def test_ten_steps_are_the_same_on_any_number_of_devices(x64, batch_norm, several):
  # SGD at a constant rate: the first step shows the gradient itself, all ten what comes
  # of it; LARS would hide one that is wrong by a factor.
  one, rows = run(1, 10, batch_norm)
  assert rows[-1]["probe_loss"] < rows[0]["probe_loss"] - 0.01
  for devices in several:
    many, others = run(devices, 10, batch_norm)
    chex.assert_trees_all_close(many, one, rtol=1e-8, atol=1e-8)
    chex.assert_trees_all_close(others, rows, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_the_first_loss_in_float32():
  # The loss is continuous. Its gradient jumps where rounding decides a ReLU: float64
  # compares that, above.
  (_, one), (_, eight) = (run(n, 1, dtype="float32") for n in (1, 8))
  np.testing.assert_allclose(eight[0]["loss"], one[0]["loss"], rtol=1e-5)


# What was compiled.


@pytest.mark.parametrize(
  ("batch_norm", "on_device"), [("per_view", True), ("joint", False)]
)
def test_the_compiled_step_moves_embeddings_once_and_images_never(
  batch_norm, on_device
):
  config = tiny.config()
  config.model.batch_norm = batch_norm
  source = tiny.source()
  config = config_lib.resolve(config, source)
  optimizer, learning_rate = optimizer_lib.make_optimizer(config, 3)
  mesh = mesh_of(8)
  step = step_lib.make_steps(
    config, source, mesh, optimizer, learning_rate, input_pipeline.Layout(on_device)
  )
  state = jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer))
  data = input_pipeline.open_feed(source, config, mesh, 0, on_device).at(0)
  hlo = step.lower(state, data, np.uint32(0)).compile().as_text()
  assert "all-to-all" not in hlo
  assert "all-reduce" in hlo
  sizes = [
    int(np.prod([int(n) for n in shape.split(",")]))
    for shape in re.findall(r"= \w+\[([\d,]+)\]\S* all-gather(?:-start)?\(", hlo)
  ]
  # 16 images, 2 views, 8 dimensions; index vectors (one number a row) are gathered too.
  embedding = 16 * 2 * config.model.projector_out
  assert [size for size in sizes if size > 16 * 2] == [embedding]


# The first state.


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 + 5, 2**63 - 1])
@pytest.mark.parametrize("wide", [False, True])
def test_a_seed_given_is_a_seed_known(seed, wide):
  config = tiny.config()
  config.seed = seed
  with jax.enable_x64(wide):
    given = jax.jit(jax.random.key)(state_lib.seed_of(config))
    np.testing.assert_array_equal(
      jax.random.key_data(given), jax.random.key_data(jax.random.key(seed))
    )


def test_the_first_state_is_that_of_its_seed():
  source = tiny.source()
  config = tiny.config("dino")
  config.seed = 2**32 + 5
  config = config_lib.resolve(config, source)
  mesh = mesh_of(1)
  optimizer, _ = optimizer_lib.make_optimizer(config, 3)
  make = state_lib.make_init(config, source, optimizer, mesh)
  made = make(state_lib.seed_of(config))
  want = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  jax.tree.map(np.testing.assert_array_equal, made, want)
  untrained = state_lib.untrained(config, source, mesh)
  jax.tree.map(np.testing.assert_array_equal, untrained, made.items()["model"])
  config.seed = 6
  other = make(state_lib.seed_of(config))
  first, second = (x.params["prototypes"] for x in (made, other))
  assert not np.array_equal(first, second)
