"""The train state, the optimiser, and the compiled step around an update."""

import functools
from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import augment, losses, metrics, numerics, optimizers
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import classifier, collapse, ema, input_pipeline
from ncl_jax.training import loss as loss_lib
from ncl_jax.training.update import make_update


@flax.struct.dataclass
class TrainState:
  """Everything that training changes.

  Attributes:
    step: int32, updates done. Randomness is `fold_in(key(seed), step)`: never stored.
    params: {"backbone", "projector", "probe", "loss", "classifier"}; the probe is the
      online linear classifier on detached `h`, absent without labels; "loss" is the
      temperature, where it is learnt. Beside a text tower also {"text",
      "text_projector"}. Of supervised training {"backbone", "projector",
      "classifier"}.
    batch_stats: BatchNorm's running statistics.
    opt_state: of the optimiser.
    epoch: what the features of this epoch have shown so far, see `collapse`.
    momentum: the slow copy of the network, see `momentum`; None for most methods.
  """

  step: jax.Array
  params: Any
  batch_stats: Any
  opt_state: Any
  epoch: Any = None
  momentum: Any = None

  def items(self) -> dict[str, Any]:
    """The two items of a checkpoint: what evaluation reads, and the rest."""
    train = {"step": self.step, "opt_state": self.opt_state, "epoch": self.epoch}
    if self.momentum is not None:
      train["momentum"] = self.momentum
    return {
      "model": {"params": self.params, "batch_stats": self.batch_stats},
      "train": train,
    }


def make_optimizer(
  config: ConfigDict, steps_per_epoch: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """The optimiser of a resolved config, and the encoder's learning rate.

  Args:
    config: resolved settings.
    steps_per_epoch: updates in an epoch.

  Returns:
    (transformation, schedule of the encoder's learning rate over steps).
  """
  settings = config.optimizer
  scale = config.train.batch_size / 256

  def schedule(base: float) -> optax.Schedule:
    return optimizers.warmup_cosine(
      base * scale,
      warmup_steps=round(settings.warmup_epochs * steps_per_epoch),
      total_steps=config.train.epochs * steps_per_epoch,
      start=settings.warmup_start,
    )

  def make(learning_rate: optax.Schedule, decay: float) -> optax.GradientTransformation:
    if settings.name == "lars":
      return optimizers.lars(
        learning_rate,
        weight_decay=decay,
        momentum=settings.momentum,
        trust_coefficient=settings.trust_coefficient,
        clip=settings.trust_clip,
      )
    if settings.name == "sgd":
      return optimizers.sgd(
        learning_rate, weight_decay=decay, momentum=settings.momentum
      )
    return optimizers.adamw(learning_rate, weight_decay=decay)

  learning_rate = schedule(settings.learning_rate)
  probe = make(schedule(settings.probe_learning_rate), 0.0)
  encoder = make(learning_rate, settings.weight_decay)
  loss = None
  if config.loss.learn_temperature:
    loss = optimizers.log_scale(
      lambda step: learning_rate(step) / (settings.learning_rate * scale)
    )
  return optimizers.partition(encoder, probe, loss), learning_rate


def init_variables(config: ConfigDict, source: Source) -> Any:
  """The untrained network, the same for CL and NCL; to be run by `build`.

  Args:
    config: resolved settings.
    source: for the image channels and the number of classes.

  Returns:
    {"params": {"backbone", "projector", "probe" or "classifier"}, "batch_stats"}, with
    "predictor", "prototypes" and "loss" among the parameters where the loss has them.
  """
  model = config_lib.model(config)
  size, channels = config.augment.size, source.image_shape[-1]
  # The forward pass that fixes the shapes is dead code, dropped before compilation.
  variables = model.init(
    numerics.key(config.seed), jnp.zeros((2, size, size, channels)), train=False
  )
  params = dict(variables["params"]) | loss_lib.init(config)
  params |= classifier.init(config, source)
  batch_stats = variables.get("batch_stats", {})
  predictor = config_lib.predictor(config)
  if predictor is not None:
    # A key of its own: the network's are drawn from the seed's key itself.
    key = jax.random.fold_in(numerics.key(config.seed), 2)
    drawn = predictor.init(key, jnp.zeros((2, config.model.projector_out)))
    params["predictor"] = drawn["params"]
    batch_stats = {**batch_stats, "predictor": drawn["batch_stats"]}
  if source.num_classes and "classifier" not in params:
    params["probe"] = {
      "kernel": jnp.zeros((model.backbone.num_features, source.num_classes)),
      "bias": jnp.zeros(source.num_classes),
    }
  return {"params": params, "batch_stats": batch_stats}


def init_state(
  config: ConfigDict, source: Source, optimizer: optax.GradientTransformation
) -> TrainState:
  """The state before the first step; to be run by `build`."""
  variables = init_variables(config, source)
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=variables["params"],
    batch_stats=variables["batch_stats"],
    opt_state=optimizer.init(variables["params"]),
    epoch=collapse.start(config_lib.widths(config)["z"]),
    momentum=ema.init(config, variables),
  )


def build(function: Callable[[], Any], mesh: Mesh) -> Any:
  """Runs an initialisation once, as one program, its results on every device.

  Args:
    function: takes nothing and returns a tree of arrays.
    mesh: from `sharding.make_mesh`.

  Returns:
    The tree, replicated over the mesh.
  """
  whole = sharding_lib.replicated(mesh)
  # It runs once, so the time to compile it is what counts: on CPU, for a ResNet-10, 4.5
  # instead of 21 CPU seconds.
  return jax.jit(function, out_shardings=whole, compiler_options=cpu_effort(0, mesh))()


def seed_of(config: ConfigDict) -> np.ndarray:
  """The seed as an argument of compiled programs.

  Args:
    config: its seed is below 2^63.

  Returns:
    uint32 [], or uint64 under x64: as much of it as `jax.random.key` makes use of.
  """
  dtype = jax.dtypes.canonicalize_dtype(np.uint64)
  return np.array(config.seed % 2 ** (8 * dtype.itemsize), dtype)


def make_init(
  config: ConfigDict,
  source: Source,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
) -> Any:
  """The program that makes the state before the first step, one for all seeds.

  Args:
    config: resolved settings; their seed does not count.
    source: for the image channels and the number of classes.
    optimizer: from `make_optimizer`.
    mesh: from `sharding.make_mesh`.

  Returns:
    Jitted `init(seed) -> state`, what `build` makes of `init_state` with that seed;
    seed: from `seed_of`.
  """

  def init(seed: jax.Array) -> TrainState:
    drawn = config.copy_and_resolve_references()
    with drawn.ignore_type():
      drawn.seed = seed
    return init_state(drawn, source, optimizer)

  whole = sharding_lib.replicated(mesh)
  return jax.jit(init, out_shardings=whole, compiler_options=cpu_effort(0, mesh))


def cpu_effort(level: int, mesh: Mesh | None = None) -> dict[str, Any] | None:
  """Compiler options: how hard XLA's CPU backend tries; nothing elsewhere."""
  if sharding_lib.platform(mesh) != "cpu":
    return None
  return {"xla_backend_optimization_level": level}


def make_step(
  config: ConfigDict,
  source: Source,
  mesh: Mesh,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
):
  """The compiled train step: views, network, loss, update; sharded over the mesh.

  Args:
    config: resolved settings.
    source: for the number of classes, and of steps in an epoch.
    mesh: from `sharding.make_mesh`.
    optimizer: from `make_optimizer`.
    learning_rate: from `make_optimizer`.

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
  *,
  resident: bool,
  per_call: int = 1,
):
  """Some train steps in one call: as many as `steps_in_call` says.

  The same numbers, bit for bit, as so many calls of one step, and one program for all
  seeds.

  Args:
    config: resolved settings; their seed does not count.
    source: for the number of classes, and of steps in an epoch.
    mesh: from `sharding.make_mesh`.
    optimizer: from `make_optimizer`.
    learning_rate: from `make_optimizer`.
    resident: whether the data lie on the devices whole, see `feed`; else they are the
      batch of one step.
    per_call: steps in a call at most; 1 unless `resident`.

  Returns:
    `steps(state, data, seed) -> (state, metrics, z, labels)`; data as `feed.open_feed`
    gives them, the seed as `seed_of` does; metrics are those of each step, [per_call],
    z [N, V, D] and labels [N] those of the last. The state is replicated and donated.
    To be compiled with `cpu_effort(1)`: in a fifth less time than by default, for as
    fast a step.
  """
  one = _make_step(config, source, mesh, optimizer, learning_rate)
  size = config.train.batch_size
  per_epoch = source.steps_per_epoch(size)
  log_every = config.train.log_every_steps
  whole, split = sharding_lib.replicated(mesh), sharding_lib.batch_sharded(mesh)

  def step(state, data, seed):
    batch = data
    if resident:
      start = state.step % per_epoch * size
      batch = input_pipeline.batch_of(data, start, size, mesh, source.image_shape)
    state, values, z = one(state, batch, seed)
    return state, values, z, batch["label"]

  def steps(state, data, seed):
    if per_call == 1:
      state, values, *last = step(state, data, seed)
      return state, jax.tree.map(lambda x: x[None], values), *last
    _, values, *last = jax.eval_shape(step, state, data, seed)
    rows = jax.tree.map(lambda x: jnp.zeros((per_call, *x.shape), x.dtype), values)
    last = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), last)
    last = jax.lax.with_sharding_constraint(last, split)

    def body(i, carry):
      state, rows, *_ = carry
      state, values, *last = step(state, data, seed)
      rows = jax.tree.map(lambda row, x: row.at[i].set(x), rows, values)
      return state, rows, *last

    # Known to the device from the state: nothing is sent, and any number of steps is
    # the same compiled loop.
    count = steps_in_call(state.step, per_call, per_epoch, log_every)
    return jax.lax.fori_loop(0, count, body, (state, rows, *last))

  return jax.jit(
    steps,
    in_shardings=(whole, whole if resident else split, whole),
    out_shardings=(whole, whole, split, split),
    donate_argnums=0,
  )


def steps_in_call(step: Any, per_call: int, per_epoch: int, log_every: int) -> Any:
  """How many steps a call makes: to the next place where the loop around it looks.

  Args:
    step: steps done so far, a number or an array on a device.
    per_call: the most.
    per_epoch: steps in an epoch, which no call crosses.
    log_every: steps between logged ones, at which a call ends.

  Returns:
    At least 1, of the type of `step`.

  >>> [steps_in_call(step, 4, 10, 7) for step in (0, 4, 7, 8)]
  [4, 3, 3, 2]
  """
  least = min if isinstance(step, int) else jnp.minimum
  to_epoch, to_log = per_epoch - step % per_epoch, log_every - step % log_every
  return least(per_call, least(to_epoch, to_log))


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
    views = augment.make_views(batch["draws"], batch["image"], views_config)
    return classifier.mix(views, batch["share"]) if "share" in batch else views

  update = make_update(
    config,
    source.num_classes,
    optimizer,
    learning_rate,
    make_views,
    mesh,
    per_epoch,
  )

  def step(state, batch, seed):
    key = jax.random.fold_in(numerics.key(seed), state.step)
    # Of the whole batch, so that views do not depend on `train.grad_cache_chunks`.
    n, labels = batch["image"].shape[0], batch["label"]
    draws = augment.view_parameters(key, n, config_lib.views(config))
    views = {"draws": draws, "image": batch["image"]}
    if "tokens" in batch:
      views["tokens"] = batch["tokens"]
    if config.loss.mixup:
      views["share"] = classifier.shares(config, jax.random.fold_in(key, 1), n)
      one_hot = jax.nn.one_hot(labels, source.num_classes)
      labels = classifier.mix(one_hot, views["share"])
    first = state.step % per_epoch == 0
    state, values, z = update(state, views, labels)
    return state.replace(epoch=collapse.fold(state.epoch, z, first)), values, z

  return step


@functools.partial(jax.jit, static_argnums=(2, 3))
def batch_statistics(
  z: jax.Array, labels: jax.Array, num_classes: int, threshold: float
) -> dict[str, jax.Array]:
  """What the features of a batch look like; the released code logs the same.

  A program of its own, run where its result is written: the decomposition behind the
  effective rank would be felt in every step.

  Args:
    z: [N, V, D] projector outputs after the transform, as the step returns them.
    labels: [N]; -1 where unknown.
    num_classes: K; 0 leaves out what needs labels.
    threshold: |f| below it counts as zero.

  Returns:
    Scalars: share of zeros, dimensions with any activity, rows that are all zero,
    effective rank, and the mean class consistency of the active dimensions.
  """
  f = losses.l2_normalize(z).reshape(-1, z.shape[-1])
  labels = jnp.repeat(labels, z.shape[1])
  values = {
    "sparsity": metrics.sparsity(f, threshold),
    "live_dimensions": metrics.active_dimensions(f, threshold).sum(),
    "zero_rows": metrics.num_zero_rows(f),
    "effective_rank": metrics.effective_rank(f),
  }
  if num_classes:
    rate, _ = metrics.class_consistency(f, labels, num_classes, threshold=threshold)
    values["class_consistency"] = jnp.nanmean(rate)
  return values
