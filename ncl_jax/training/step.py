"""The compiled train step: from a batch of images to the next state."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import augment, numerics
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import classifier, collapse, input_pipeline
from ncl_jax.training.update import make_update


def make_step(
  config: ConfigDict,
  source: Source,
  mesh: Mesh,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
):
  """The compiled train step: views, network, loss, update; sharded over the mesh.

  Returns:
    `step(state, batch) -> (state, metrics, z)`; batch = {"image": uint8 [N, H, W, C],
    "label": int32 [N]}, split over the mesh like z [N, V, D]; the state is replicated
    and donated.
  """
  whole, split = sharding_lib.replicated(mesh), sharding_lib.batch_sharded(mesh)
  one = _make_step(config, source, mesh, optimizer, learning_rate)
  return jax.jit(
    lambda state, batch: one(state, batch, config.seed),
    in_shardings=(whole, split),
    out_shardings=(whole, whole, split),
    donate_argnums=0,
  )


def make_steps(
  config: ConfigDict,
  source: Source,
  mesh: Mesh,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  layout: input_pipeline.Layout,
):
  """Several train steps in one call: as many as `steps_in_call` says.

  The numbers are those of single steps, bit for bit. One program serves all seeds; the
  config's is ignored.

  Returns:
    `steps(state, data, seed) -> (state, metrics, z, labels)`; data from
    `input_pipeline.open_feed`, the seed from `seed_of`. Metrics are those of each step,
    [steps_per_call]; z [N, V, D] and labels [N] are those of the last. The state is
    replicated and donated. Compile it with `compiler.cpu_effort(1)`: this takes a fifth
    less time than the default, for a step that is as fast.
  """
  one = _make_step(config, source, mesh, optimizer, learning_rate)
  size = config.train.batch_size
  per_epoch = source.steps_per_epoch(size)
  log_every, steps_per_call = config.train.log_every_steps, layout.steps_per_call
  whole, split = sharding_lib.replicated(mesh), sharding_lib.batch_sharded(mesh)

  def step(state, data, seed):
    batch = data
    if layout.on_device:
      start = state.step % per_epoch * size
      batch = input_pipeline.batch_of(data, start, size, mesh, source.image_shape)
    state, values, z = one(state, batch, seed)
    return state, values, z, batch["label"]

  def steps(state, data, seed):
    if steps_per_call == 1:
      state, values, *last = step(state, data, seed)
      return state, jax.tree.map(lambda x: x[None], values), *last
    _, values, *last = jax.eval_shape(step, state, data, seed)
    rows = jax.tree.map(
      lambda x: jnp.zeros((steps_per_call, *x.shape), x.dtype), values
    )
    last = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), last)
    last = jax.lax.with_sharding_constraint(last, split)

    def body(i, carry):
      state, rows, *_ = carry
      state, values, *last = step(state, data, seed)
      rows = jax.tree.map(lambda row, x: row.at[i].set(x), rows, values)
      return state, rows, *last

    # Computed on the device from the state: nothing is transferred, and any number of
    # steps is the same compiled loop.
    count = steps_in_call(state.step, steps_per_call, per_epoch, log_every)
    return jax.lax.fori_loop(0, count, body, (state, rows, *last))

  return jax.jit(
    steps,
    in_shardings=(whole, whole if layout.on_device else split, whole),
    out_shardings=(whole, whole, split, split),
    donate_argnums=0,
  )


def steps_in_call(
  step: Any, steps_per_call: int, per_epoch: int, log_every: int
) -> Any:
  """How many steps a call makes: up to the next logged step or end of an epoch.

  Args:
    step: steps done so far, a number or an array; the result is of its type.
    steps_per_call: the most.

  >>> [steps_in_call(step, 4, 10, 7) for step in (0, 4, 7, 8)]
  [4, 3, 3, 2]
  """
  least = min if isinstance(step, int) else jnp.minimum
  to_epoch, to_log = per_epoch - step % per_epoch, log_every - step % log_every
  return least(steps_per_call, least(to_epoch, to_log))


def _make_step(
  config: ConfigDict,
  source: Source,
  mesh: Mesh,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
):
  """A step from a batch of images and a seed, a pure function of global arrays."""
  views_config = config_lib.augmentation(config)
  per_epoch = source.steps_per_epoch(config.train.batch_size)

  def make_views(batch):
    views = augment.make_views(batch["parameters"], batch["image"], views_config)
    return classifier.mix(views, batch["weight"]) if "weight" in batch else views

  update = make_update(
    config, source.num_classes, optimizer, make_views, mesh, per_epoch
  )

  def step(state, batch, seed):
    key = jax.random.fold_in(numerics.key(seed), state.step)
    # Of the whole batch, so that views do not depend on `train.grad_cache_chunks`.
    n, labels = batch["image"].shape[0], batch["label"]
    parameters = augment.view_parameters(key, n, config_lib.views(config))
    views = {"parameters": parameters, "image": batch["image"]}
    if "tokens" in batch:
      views["tokens"] = batch["tokens"]
    if config.loss.mixup:
      views["weight"] = classifier.mixing_weights(config, jax.random.fold_in(key, 1), n)
      one_hot = jax.nn.one_hot(labels, source.num_classes)
      labels = classifier.mix(one_hot, views["weight"])
    first = state.step % per_epoch == 0
    values = {"learning_rate": learning_rate(state.step)}
    state, more, z = update(state, views, labels)
    values |= more
    return state.replace(epoch=collapse.fold(state.epoch, z, first)), values, z

  return step
