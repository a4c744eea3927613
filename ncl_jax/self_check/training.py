"""The train step, as training compiles it: the same on all devices, and how fast."""

import math
import statistics
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import sharding as sharding_lib
from ncl_jax import step as step_lib
from ncl_jax.data.source import Source, Split
from ncl_jax.self_check.arithmetic import reference_loss
from ncl_jax.self_check.result import TOLERANCE, Result, distance, worst

CPU_BATCH = 128
STEPS = 10


def step() -> Result:
  """The first train step: on one device, on all, and its loss in numpy."""
  config, source = prepared(small_config())
  temperature = config.loss.temperature
  # A device of this process: each process makes the comparison by itself.
  one = sharding_lib.make_mesh(jax.local_devices()[:1])
  every = sharding_lib.make_mesh()
  # Otherwise each number of devices may be rounded in another way.
  with jax.default_matmul_precision("highest"):
    state = _to_host(
      step_lib.build(lambda: step_lib.init_state(config, source, _RECORD), one)
    )
    whole = _first_step(config, source, every, state)
    parts = [distance(whole["loss"], reference_loss(whole["z"], temperature)[0])]
    detail = f"loss {whole['loss']:.4f}, from numpy's by {parts[0]:.1e}"
    if every.size == 1:
      detail += "; one device, nothing to compare it with"
    else:
      alone = _first_step(config, source, one, state)
      names = ("loss", "gradient", "statistics")
      apart = {name: distance(whole[name], alone[name]) for name in names}
      parts += apart.values()
      between = ", ".join(f"{name} {value:.1e}" for name, value in apart.items())
      detail += f"; {every.size} devices from one: {between}"
  return Result(
    "step", worst(*parts) <= TOLERANCE, f"{detail}; allowed {TOLERANCE:.0e}"
  )


def speed() -> Result:
  """Images a second of the train step, on all devices, from a batch that is there."""
  config, source = prepared(speed_config())
  mesh = sharding_lib.make_mesh()
  optimizer, learning_rate = step_lib.make_optimizer(config, 1)
  state = step_lib.build(lambda: step_lib.init_state(config, source, optimizer), mesh)
  batch = _batch(source, mesh, config.train.batch_size)
  start = time.perf_counter()
  compiled = (
    step_lib.make_step(config, source, mesh, optimizer, learning_rate)
    .lower(state, batch)
    .compile()
  )
  compile_seconds = time.perf_counter() - start
  times = []
  for _ in range(STEPS + 2):
    start = time.perf_counter()
    state, values, _ = jax.block_until_ready(compiled(state, batch))
    times.append(time.perf_counter() - start)
  last = float(values["loss"])
  seconds = statistics.median(times[2:])
  model = config.model
  return Result(
    "speed",
    math.isfinite(last),
    f"{config.train.batch_size / seconds:.0f} images/s ({seconds * 1e3:.1f} ms a step; "
    f"{model.backbone} of width {model.width}, {config.augment.size} pixels, batch "
    f"{config.train.batch_size}, {model.dtype}); ready to run after "
    f"{compile_seconds:.1f} s; loss {last:.3f}",
  )


def small_config() -> ConfigDict:
  """Every kind of layer, small enough to compile in seconds."""
  config = config_lib.defaults()
  config.data.source = "noise"
  config.data.image_size = 16
  config.model.backbone = "resnet10"
  config.model.width = 8
  config.model.projector_hidden = 64
  config.model.projector_out = 32
  config.model.dtype = "float32"
  config.train.batch_size = 32
  config.train.epochs = 1
  config.optimizer.warmup_epochs = 0.0
  return config


def speed_config() -> ConfigDict:
  """On CPU the network of configs/digits.py; elsewhere the paper's for CIFAR."""
  config = small_config()
  if jax.default_backend() == "cpu":
    config.model.projector_hidden = 512
    config.model.projector_out = 128
    config.train.batch_size = CPU_BATCH
  else:
    config.data.image_size = 32
    config.model = config_lib.defaults().model
    config.train.batch_size = 256
  return config


def prepared(config: ConfigDict) -> tuple[ConfigDict, Source]:
  """The config for these devices, and one batch of labelled noise as a data set."""
  mesh = sharding_lib.make_mesh()
  batch = sharding_lib.pad_to_devices(mesh, config.train.batch_size)
  config.train.batch_size = batch
  side = config.data.image_size
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, (batch, side, side, 3)).astype(np.uint8)
  labels = rng.integers(0, 10, batch).astype(np.int32)
  source = Source("noise", {"train": Split(images, labels)}, tuple(map(str, range(10))))
  return config_lib.resolve(config, source), source


def _batch(source: Source, mesh: Mesh, batch_size: int) -> Any:
  """The one batch on a mesh, of all processes or of this process alone."""
  own = sharding_lib.process_rows(mesh, batch_size)
  batches = source.train_batches(0, 0, batch_size, own)
  batch = next(batches)
  batches.close()
  return sharding_lib.to_global(
    mesh, {"image": batch["image"], "label": batch["label"]}
  )


# Changes nothing and keeps the gradients: as they are, they say more than an update.
_RECORD = optax.GradientTransformation(
  lambda params: jax.tree.map(jnp.zeros_like, params),
  lambda gradients, state, params: (jax.tree.map(jnp.zeros_like, gradients), gradients),
)


def _first_step(config: ConfigDict, source: Source, mesh: Mesh, state: Any) -> dict:
  """What the first step gives on a mesh, as numpy arrays."""
  compiled = step_lib.make_step(config, source, mesh, _RECORD, lambda _: jnp.zeros(()))
  batch = _batch(source, mesh, config.train.batch_size)
  after, values, z = compiled(put(state, mesh), batch)
  if not z.is_fully_addressable:
    z = multihost_utils.process_allgather(z, tiled=True)
  return {
    "loss": float(values["loss"]),
    "gradient": _to_host(after.opt_state),
    "statistics": _to_host(after.batch_stats),
    "z": np.asarray(z),
  }


def put(tree: Any, mesh: Mesh) -> Any:
  """Numpy arrays, the same in every process, onto each device of a mesh."""
  whole = sharding_lib.replicated(mesh)
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(whole, x, x.shape), tree
  )


def _to_host(tree: Any) -> Any:
  return jax.tree.map(np.array, tree)
