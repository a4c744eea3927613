"""Methods with a momentum encoder: its updates, checkpoints and separation."""

import functools
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tiny
from jax.sharding import AxisType

from benchmarks import kills
from ncl_jax import config as config_lib
from ncl_jax import methods, optimizers
from ncl_jax.runtime import sharding
from ncl_jax.training import ema, loop, update
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib

RATE, BASE, STEPS = 0.1, 0.7, 3


def setting(method):
  config, source = tiny.config(method), tiny.source()
  config.model.projector_hidden = 8
  if config.loss.prototypes:
    config.loss.prototypes = 12
  if methods.of(config).momentum_encoder:
    config.loss.ema_decay = BASE
  config_lib.validate(config)
  return config_lib.resolve(config, source), source


def optimizer():
  return optimizers.partition(
    optimizers.sgd(RATE, weight_decay=1e-4), optimizers.sgd(RATE)
  )


def start(config, source, mesh, dtype):
  state = state_lib.build(
    lambda: state_lib.init_state(config, source, optimizer()), mesh
  )
  return jax.tree.map(lambda x: x.astype(dtype) if x.dtype == jnp.float32 else x, state)


def run(method, devices, steps=STEPS, dtype="float64"):
  """The state before and after each of some steps, and the metrics of each."""
  config, source = setting(method)
  config.unlock()
  config.model.dtype = dtype
  mesh = jax.make_mesh(
    (devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices]
  )
  step = step_lib.make_step(
    config, source, mesh, optimizer(), lambda _: jnp.asarray(RATE)
  )
  state = start(config, source, mesh, jnp.dtype(dtype))
  states, rows = [jax.device_get(state)], []
  batches = source.train_batches(0, 0, 16)
  for _ in range(steps):
    batch = {k: v for k, v in next(batches).items() if k in ("image", "label")}
    state, values, _ = step(state, sharding.to_global(mesh, batch))
    states.append(jax.device_get(state))
    rows.append({k: float(v) for k, v in values.items()})
  batches.close()
  return states, rows


@functools.cache
def moco(devices):
  with jax.enable_x64(True):
    return run("moco_v3_ncl", devices)


def test_steps_on_eight_devices_are_those_on_one():
  (one, rows), (eight, others) = moco(1), moco(8)
  chex.assert_trees_all_close(eight, one, rtol=1e-8, atol=1e-8)
  chex.assert_trees_all_close(others, rows, rtol=1e-8, atol=1e-8)
  assert rows[0]["loss"] != rows[-1]["loss"]


def test_the_momentum_encoder_is_the_closed_form():
  states, _ = moco(1)
  total = 4 * 3  # epochs, steps in each
  rates = [1 - (1 - BASE) * (1 + np.cos(np.pi * k / total)) / 2 for k in range(STEPS)]
  # Unrolled: what each state's parameters still weigh in the last one.
  weights = [np.prod(rates)] + [
    (1 - rates[k]) * np.prod(rates[k + 1 :]) for k in range(STEPS)
  ]
  np.testing.assert_allclose(sum(weights), 1, rtol=1e-12)
  encoder = states[-1].momentum["params"]
  assert set(encoder) == {"backbone", "projector"}
  expected = {
    part: jax.tree.map(
      lambda *xs: sum(w * x for w, x in zip(weights, xs, strict=True)),
      *(state.params[part] for state in states),
    )
    for part in encoder
  }
  chex.assert_trees_all_close(encoder, expected, rtol=1e-10, atol=1e-12)
  apart = states[-1].params["projector"]["linear1"]["kernel"]
  assert np.abs(apart - encoder["projector"]["linear1"]["kernel"]).max() > 1e-6


def test_no_gradient_reaches_the_momentum_encoder():
  config, source = setting("byol_ncl")
  state = tiny.drawn(
    jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer()))
  )
  go = update.make_update(config, 2, optimizer())
  views = np.random.default_rng(0).normal(size=(8, 2, 8, 8, 1)).astype(np.float32)
  labels = jnp.arange(8) % 2

  def loss(teacher, params):
    encoder = state.momentum | {"params": teacher}
    return go(state.replace(momentum=encoder, params=params), views, labels)[1]["loss"]

  teacher, own = jax.jit(jax.grad(loss, argnums=(0, 1)))(
    state.momentum["params"], state.params
  )
  assert all(not np.any(g) for g in jax.tree.leaves(teacher))
  for part in ("backbone", "projector", "predictor"):
    assert any(np.any(g) for g in jax.tree.leaves(own[part])), part


def saved(workdir, step):
  with ocp.PyTreeCheckpointer() as reader:
    return [
      kills.read(reader, workdir / "checkpoints" / str(step) / item)
      for item in ("model", "train")
    ]


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
  config, source = setting("dino_ncl")
  config.unlock()
  config.train.epochs, config.train.checkpoint_every_epochs = 2, 1
  whole = loop.train(config, tmp_path / "whole", source)
  parts = tmp_path / "parts"
  shutil.copytree(whole, parts)
  shutil.rmtree(parts / "checkpoints" / "6")
  loop.train(config, parts, source)
  before, a, b = saved(whole, 3), saved(whole, 6), saved(parts, 6)
  jax.tree.map(np.testing.assert_array_equal, a, b)
  for tree in (before, a):
    assert set(tree[1]["momentum"]) == {"params", "batch_stats", "centre"}
    assert set(tree[1]["momentum"]["params"]) == {
      "backbone",
      "projector",
      "prototypes",
    }
  assert np.abs(a[1]["momentum"]["centre"] - before[1]["momentum"]["centre"]).max() > 0
  assert (parts / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()


@pytest.mark.parametrize("method", ["cl", "ncl", "barlow_twins", "vicreg_ncl", "nce"])
def test_other_methods_have_no_momentum_encoder_nor_do_their_checkpoints(method):
  config, source = setting(method)
  state = jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer()))
  assert state.momentum is None
  assert set(state.items()["train"]) == {"step", "opt_state", "epoch"}


@pytest.mark.slow
@pytest.mark.parametrize(
  "method",
  # NT-Xent's steps are compared in `step_test`.
  [
    m.variants[0][1]
    for m in methods.METHODS
    if m.variants and not m.labels and m.name != "nt_xent"
  ],
)
def test_every_method_steps_alike_on_one_and_on_eight_devices(method, x64):
  (one, rows), (eight, others) = (run(method, n, 2) for n in (1, 8))
  chex.assert_trees_all_close(eight, one, rtol=1e-8, atol=1e-8)
  chex.assert_trees_all_close(others, rows, rtol=1e-8, atol=1e-8)
  assert all(np.isfinite(v) for row in rows for v in row.values())


@pytest.mark.slow
def test_in_chunks_the_copys_statistics_move_and_keys_are_every_views(x64):
  config, source = setting("byol_ncl")
  config.unlock()
  config.model.dtype = "float64"
  mesh = sharding.make_mesh(jax.devices()[:1])
  state = start(config, source, mesh, jnp.float64)
  views = np.random.default_rng(0).normal(size=(8, 2, 8, 8, 1))
  # Two halves that are alike: a chunk's statistics are the whole batch's.
  views = np.repeat(views[:4], 2, axis=0)
  labels = jnp.repeat(jnp.arange(4) % 2, 2)
  seen = []
  for chunks in (1, 2):
    config.train.grad_cache_chunks = chunks
    go = update.make_update(config, 2, optimizer())
    seen.append(jax.jit(go)(state, views, labels))
  (one, values, _), (two, others, _) = seen
  np.testing.assert_allclose(others["loss"], values["loss"], rtol=1e-9)
  chex.assert_trees_all_close(two.params, one.params, rtol=1e-7, atol=1e-9)
  # Once in a whole batch, twice in two chunks.
  means = [
    s.momentum["batch_stats"]["projector"]["bn1"]["mean"] for s in (state, one, two)
  ]
  assert np.all(means[0] == 0)
  np.testing.assert_allclose(means[2] / means[1], 1 + 0.9**2, rtol=1e-6)


def test_the_decay_grows_to_one():
  decays = [float(ema.decay(0.99, k, 8)) for k in range(9)]
  assert decays == sorted(decays)
  np.testing.assert_allclose(decays[0], 0.99, rtol=1e-6)
  assert decays[-1] == 1
