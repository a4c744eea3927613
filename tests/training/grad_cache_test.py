"""The batch in chunks: the whole batch's loss, exactly, in less memory."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from jax.sharding import AxisType

from ncl_jax import augment, losses, nonneg
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.runtime import sharding
from ncl_jax.training import collapse, workdir
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib
from ncl_jax.training import update as update_lib

N, RATE = 16, 0.3


def make_config(chunks, dtype="float64", **settings):
  config = tiny.config()
  config.model.dtype = dtype
  config.train.grad_cache_chunks = chunks
  # Flips at random and nothing else: views are the same to the last bit in any program.
  config.augment.update(crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), jitter=0.0)
  config.augment.update(blur=0.0, mean=(0.0,), std=(1.0,))
  for key, value in settings.items():
    config.model[key] = value
  return config_lib.resolve(config, tiny.source())


def random_state(config, dtype):
  """Like a state on its way: the probe is not zero, nor are the running means."""
  shapes = jax.eval_shape(lambda: state_lib.init_variables(config, tiny.source()))
  rng = np.random.default_rng(0)

  def draw(path, shape):
    positive = any(key.key in ("var", "scale") for key in path)
    x = rng.normal(size=shape.shape) / np.sqrt(max(1, np.prod(shape.shape[:-1])))
    return jnp.asarray(1 + 0.1 * x if positive else x, dtype)

  variables = jax.tree.map_with_path(draw, shapes)
  optimizer = optax.sgd(RATE)
  return optimizer, state_lib.TrainState(
    step=jnp.zeros((), jnp.int32),
    opt_state=optimizer.init(variables["params"]),
    epoch=collapse.start(config.model.projector_out),
    **variables,
  )


def batch(dtype):
  rng = np.random.default_rng(1)
  labels = np.arange(N) % 2
  labels[[3, 4, 10]] = -1
  return jnp.asarray(rng.normal(size=(N, 2, 8, 8, 1)), dtype), labels


# One compilation for all chunks of all references of a size.
@functools.partial(jax.jit, static_argnames=("model", "per_view"))
def apply(model, params, statistics, x, per_view):
  return model.apply(
    {"params": params, "batch_stats": statistics},
    x,
    train=True,
    views=per_view,
    mutable=["batch_stats"],
  )


@functools.partial(jax.jit, static_argnames=("transform", "temperature", "whole"))
def total(probe, h, z, order, known, classes, transform, temperature, whole):
  """The sum of both losses, (z, each loss); h and z are lists, a chunk's rows each."""
  h = [x.reshape(len(x) // 2, 2, -1) for x in h]
  z = [nonneg.apply(x, transform).reshape(len(x) // 2, 2, -1) for x in z]
  parts = [losses.nt_xent(part, temperature=temperature) for part in z]
  h, z = (jnp.concatenate(parts)[order] for parts in (h, z))
  loss = losses.nt_xent(z, temperature=temperature).mean()
  if not whole:
    loss = sum(part.mean() for part in parts) / len(parts)
  h = jax.lax.stop_gradient(h)
  scores = h @ probe["kernel"] + probe["bias"][None, None]
  scores = jax.nn.log_softmax(scores[known])
  target = jax.nn.one_hot(classes, scores.shape[-1])[:, None]
  probe = -(scores * target).sum(-1).mean()
  return loss + probe, (z, {"loss": loss, "probe_loss": probe})


@jax.jit
def descended(params, gradients):
  return jax.tree.map(lambda p, g: p - RATE * g, params, gradients)


def reference(config, state, views, labels, chunks, whole=True):
  """Parameters after a step of SGD, statistics, z: a Python loop over the chunks.

  `whole=False` is what this is not: the mean of the chunks' own contrastive losses.
  """
  model, views = config_lib.model(config), np.asarray(views)
  per_view = 2 if config.model.batch_norm == "per_view" else 1
  transform, temperature = config.loss.transform, config.loss.temperature
  known = np.flatnonzero(labels >= 0)

  def loss_fn(params):
    statistics, rows, h, z = state.batch_stats, [], [], []
    for j in range(chunks):
      index = np.array([n for n in range(N) if n % chunks == j])
      x = views[index].reshape(-1, *views.shape[2:])
      (h_j, z_j), moved = apply(model, params, statistics, x, per_view)
      statistics = moved["batch_stats"]
      rows.append(index)
      h.append(h_j)
      z.append(z_j)
    order = np.argsort(np.concatenate(rows))
    of = (params["probe"], h, z, order, known, labels[known])
    sum_, rest = total(*of, transform, temperature, whole)
    return sum_, (statistics, *rest)

  gradients, rest = jax.grad(loss_fn, has_aux=True)(state.params)
  return descended(state.params, gradients), *rest


def one_step(config, optimizer, state, views, labels):
  update = update_lib.make_update(config, 2, optimizer)
  return jax.jit(update)(state, views, labels)


@pytest.mark.parametrize(
  ("chunks", "dtype", "batch_norm"),
  [
    (4, "float64", "per_view"),
    pytest.param(2, "float32", "per_view", marks=pytest.mark.slow),
    pytest.param(1, "float64", "per_view", marks=pytest.mark.slow),
    pytest.param(8, "float64", "per_view", marks=pytest.mark.slow),
    pytest.param(2, "float64", "joint", marks=pytest.mark.slow),
  ],
)
def test_a_step_is_that_of_a_loop_over_chunks(x64, chunks, dtype, batch_norm):
  config = make_config(chunks, dtype, batch_norm=batch_norm)
  optimizer, state = random_state(config, dtype)
  views, labels = batch(dtype)
  after, values, z = one_step(config, optimizer, state, views, labels)
  expected = reference(config, state, views, labels, chunks)
  params, statistics, expected_z, expected_values = expected
  tolerance = 1e-10 if dtype == "float64" else 1e-5
  close = {"rtol": tolerance, "atol": tolerance}
  chex.assert_trees_all_close(z, expected_z, **close)
  chex.assert_trees_all_close(after.params, params, **close)
  chex.assert_trees_all_close(after.batch_stats, statistics, **close)
  for name, value in expected_values.items():
    np.testing.assert_allclose(values[name], value, **close)
  chex.assert_trees_all_equal_shapes_and_dtypes(after, state)


def test_the_mean_of_the_chunks_losses_would_be_seen(x64):
  config = make_config(4)
  _, state = random_state(config, "float64")
  moved = []
  for whole in (True, False):
    params, *_ = reference(config, state, *batch("float64"), 4, whole)
    change = jax.tree.map(
      lambda new, old: np.sum((new - np.asarray(old)) ** 2), params, state.params
    )
    moved.append(np.sqrt(sum(jax.tree.leaves(change["projector"]))))
  assert abs(moved[1] / moved[0] - 1) > 0.05


def test_one_chunk_is_no_loop_and_several_are_two(x64):
  loops = {}
  for chunks in (1, 2, 4):
    config = make_config(chunks)
    optimizer, state = random_state(config, "float64")
    update = update_lib.make_update(config, 2, optimizer)
    text = str(jax.make_jaxpr(update)(state, *batch("float64")))
    loops[chunks] = len(re.findall(r"\bscan\[", text))
  assert loops == {1: 0, 2: 2, 4: 2}


def test_float64_arithmetic_on_float32_parameters(x64):
  # As a config with model.dtype = "float64" starts: types must not change in the loop.
  config = make_config(2)
  optimizer, state = random_state(config, "float32")
  update = update_lib.make_update(config, 2, optimizer)
  after, _, z = jax.eval_shape(update, state, *batch("float32"))
  assert z.dtype == jnp.float64
  chex.assert_trees_all_equal_shapes_and_dtypes(after.batch_stats, state.batch_stats)


# The whole step: views in chunks, devices, what was compiled.


def mesh_of(devices):
  return jax.make_mesh(
    (devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices]
  )


def images():
  x, labels = tiny.images(0, N)
  return {"image": x, "label": labels}


def compile_step(config, devices, dtype):
  """A compiled step on some devices, and its arguments."""
  mesh = mesh_of(devices)
  optimizer, state = random_state(config, dtype)
  step = step_lib.make_step(
    config, tiny.source(), mesh, optimizer, lambda _: jnp.asarray(RATE)
  )
  state = jax.device_put(state, sharding.replicated(mesh))
  batch = sharding.to_global(mesh, images())
  return step.lower(state, batch).compile(), (state, batch)


def test_the_step_in_chunks_on_one_and_eight_devices(x64):
  config = make_config(2)
  key = jax.random.fold_in(jax.random.key(config.seed), 0)
  views = jax.jit(augment.two_views, static_argnames="config")(
    key, images()["image"], config=config_lib.augmentation(config)
  )
  _, state = random_state(config, "float64")
  expected = reference(config, state, views, images()["label"], 2)
  results = []
  for devices in (1, 8):
    compiled, arguments = compile_step(config, devices, "float64")
    after, values, z = compiled(*arguments)
    assert z.sharding.shard_shape(z.shape) == (N // devices, *z.shape[1:])
    results.append(jax.device_get((after, values, z)))
    chex.assert_trees_all_close(
      (after.params, after.batch_stats, z), expected[:3], rtol=1e-8, atol=1e-8
    )
  chex.assert_trees_all_close(*results, rtol=1e-8, atol=1e-8)

  hlo = compiled.as_text()
  assert not re.search("all-to-all|collective-permute", hlo)
  sizes = [
    int(np.prod([int(n) for n in shape.split(",")]))
    for shape in re.findall(r"= \w+\[([\d,]+)\]\S* all-gather(?:-start)?\(", hlo)
  ]
  # The embeddings once, of all chunks; index vectors (one number a row) apart.
  assert [size for size in sizes if size > 2 * N] == [
    2 * N * config.model.projector_out
  ]


def test_memory_falls_with_the_chunks():
  temp = {}
  for chunks in (1, 4):
    config = make_config(chunks, "float32", width=8)
    optimizer, state = random_state(config, "float32")
    update = update_lib.make_update(config, 2, optimizer)
    views = jax.ShapeDtypeStruct((64, 2, 16, 16, 1), jnp.float32)
    labels = jax.ShapeDtypeStruct((64,), jnp.int32)
    compiled = jax.jit(update).lower(state, views, labels).compile()
    temp[chunks] = compiled.memory_analysis().temp_size_in_bytes
  assert temp[4] < 0.4 * temp[1]


# What cannot be done is said before anything is compiled.


@pytest.mark.parametrize(
  ("batch_size", "chunks", "message"),
  [
    (48, 4, "batch size 48 .*8 devices in 4 chunks .*32 or 64"),
    (16, 3, "batch size 16 .*8 devices in 3 chunks .*nearest that can is 24"),
    (16, 0, "train.grad_cache_chunks is 0"),
    (16, -2, "train.grad_cache_chunks is -2"),
  ],
)
def test_wrong_numbers_of_chunks_are_refused(tmp_path, batch_size, chunks, message):
  config = tiny.config()
  config.train.batch_size = batch_size
  config.train.grad_cache_chunks = chunks
  with pytest.raises(InputError, match=message):
    workdir.prepare(config, tmp_path / "w", tiny.source())
  assert not (tmp_path / "w").exists()


def test_another_number_of_chunks_is_another_run():
  found = config_lib.differences(make_config(1), make_config(2))
  assert found == ["train.grad_cache_chunks: 1 there, 2 here"]
