"""The train step, as training compiles it: the same on all devices, and how fast."""

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax.data.source import Source, Split
from ncl_jax.preflight.self_check.arithmetic import reference_loss
from ncl_jax.preflight.self_check.result import (
  EXACT,
  TOLERANCE,
  Result,
  distance,
  worst,
)
from ncl_jax.runtime import compiler
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib

CPU_BATCH = 128
STEPS = 10


def step() -> Result:
  """The first train step: on one device, on all, and its loss in numpy."""
  with _no_edges() as allowed:
    return comparison(allowed)(0)


@contextlib.contextmanager
def _no_edges() -> Iterator[float]:
  """Where rounding decides no ReLU; gives the distance that is allowed there.

  A value next to zero can fall on either side of it by rounding alone. Its gradient is
  then another one, and the step's differs by a thousandth on machines with no fault.
  Float64 leaves no value so close; it is there on CPU. On other devices a smooth
  function takes ReLU's place.
  """
  if jax.default_backend() == "cpu":
    place = jax if hasattr(jax, "enable_x64") else jax.experimental  # JAX 0.7
    with place.enable_x64(True):
      yield EXACT
    return
  # The layers look it up by this name when they are traced.
  relu, nn.relu = nn.relu, nn.silu
  try:
    yield TOLERANCE
  finally:
    nn.relu = relu


def comparison(allowed: float) -> Callable[[int], Result]:
  """Compares the first step of a small network on all devices, on one, and in numpy.

  Args:
    allowed: the largest distance, see `result.distance`.

  Returns:
    From the seed of images and parameters to the result; to be made and called in
    `_no_edges`.
  """
  config, source = prepared(small_config())
  config.model.dtype = str(jnp.zeros(()).dtype)  # float64 where that is enabled
  # A device of this process: each process makes the comparison by itself.
  one = sharding_lib.make_mesh(jax.local_devices()[:1])
  every = sharding_lib.make_mesh()
  init = state_lib.make_init(config, source, _RECORD, one)
  on_all = _first_step(config, source, every)
  on_one = _first_step(config, source, one) if every.size > 1 else None

  def compare(seed: int) -> Result:
    seeded = config.copy_and_resolve_references()
    seeded.seed = seed
    _, source = prepared(small_config(), seed)
    # Otherwise each number of devices may be rounded in another way.
    with jax.default_matmul_precision("highest"):
      state = _to_host(init(state_lib.seed_of(seeded)))
      whole = on_all(source, state)
      alone = on_one(source, state) if on_one else None
    exact, _ = reference_loss(whole["z"], config.loss.temperature)
    parts = [distance(whole["loss"], exact)]
    detail = f"loss {whole['loss']:.4f}, from numpy's by {parts[0]:.1e}"
    if alone is None:
      detail += "; one device, nothing to compare it with"
    else:
      names = ("loss", "gradient", "statistics")
      apart = {name: distance(whole[name], alone[name]) for name in names}
      parts += apart.values()
      between = ", ".join(f"{name} {value:.1e}" for name, value in apart.items())
      detail += f"; {len(jax.devices())} devices from one: {between}"
    return Result("step", worst(*parts) <= allowed, f"{detail}; allowed {allowed:.0e}")

  return compare


def speed() -> Result:
  """Images a second of the train step, on all devices, from a batch that is there."""
  config, source = prepared(speed_config())
  mesh = sharding_lib.make_mesh()
  optimizer, learning_rate = optimizer_lib.make_optimizer(config, 1)
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
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
  config.data.update(source="noise", image_size=16)
  config.model.update(
    backbone="resnet10", width=8, projector_hidden=64, projector_out=32, dtype="float32"
  )
  config.train.update(batch_size=32, epochs=1)
  config.optimizer.warmup_epochs = 0.0
  return config


def speed_config() -> ConfigDict:
  """On CPU the network of configs/digits.py; elsewhere the paper's for CIFAR."""
  config = small_config()
  if jax.default_backend() == "cpu":
    config.model.update(projector_hidden=512, projector_out=128)
    config.train.batch_size = CPU_BATCH
  else:
    config.data.image_size = 32
    config.model = config_lib.defaults().model
    config.train.batch_size = 256
  return config


def prepared(config: ConfigDict, seed: int = 0) -> tuple[ConfigDict, Source]:
  """The config for these devices, and one batch of labelled noise as a data set."""
  mesh = sharding_lib.make_mesh()
  batch = sharding_lib.pad_to_devices(mesh, config.train.batch_size)
  config.train.batch_size = batch
  side = config.data.image_size
  rng = np.random.default_rng(seed)
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


def _first_step(
  config: ConfigDict, source: Source, mesh: Mesh
) -> Callable[[Source, Any], dict[str, Any]]:
  """From a source and a state to what the first step gives on a mesh, in numpy."""
  step = step_lib.make_step(config, source, mesh, _RECORD, lambda _: jnp.zeros(()))
  compiled = None

  def run(source, state):
    nonlocal compiled
    # Parameters are drawn in float32: float64 where it is enabled.
    wide = jnp.zeros(()).dtype
    state = jax.tree.map(
      lambda x: x.astype(wide) if x.dtype == np.float32 else x, state
    )
    batch = _batch(source, mesh, config.train.batch_size)
    arguments = (put(state, mesh), batch)
    if compiled is None:
      compiled = step.lower(*arguments).compile(compiler.cpu_effort(1, mesh))
    after, values, z = compiled(*arguments)
    if not z.is_fully_addressable:
      z = multihost_utils.process_allgather(z, tiled=True)
    return {
      "loss": float(values["loss"]),
      "gradient": _to_host(after.opt_state),
      "statistics": _to_host(after.batch_stats),
      "z": np.asarray(z),
    }

  return run


def put(tree: Any, mesh: Mesh) -> Any:
  """Numpy arrays, the same in every process, onto each device of a mesh."""
  whole = sharding_lib.replicated(mesh)
  return jax.tree.map(
    lambda x: jax.make_array_from_process_local_data(whole, x, x.shape), tree
  )


def _to_host(tree: Any) -> Any:
  return jax.tree.map(np.array, tree)
