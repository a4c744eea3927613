"""One update: the train state, the optimiser, the loss, and the compiled step.

CL and NCL are the same program: the loss is `nt_xent(apply_map(z, name))`, and the map
"identity" is CL.
"""

from collections.abc import Callable
from typing import Any

import flax
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import (
  accumulation,
  augment,
  collapse,
  feed,
  losses,
  metrics,
  nonneg,
  objective,
  optimizers,
)
from ncl_jax import config as config_lib
from ncl_jax import sharding as sharding_lib
from ncl_jax.data.source import Source

VIEWS = 2


@flax.struct.dataclass
class TrainState:
  """Everything that training changes.

  Attributes:
    step: int32, updates done. Randomness is `fold_in(key(seed), step)`: never stored.
    params: {"backbone", "projector", "probe", "loss"}; the probe is the online linear
      classifier on detached `h`, absent without labels; the last is the temperature,
      where it is learnt.
    batch_stats: BatchNorm's running statistics.
    opt_state: of the optimiser.
    epoch: what the features of this epoch have shown so far, see `collapse`.
  """

  step: jax.Array
  params: Any
  batch_stats: Any
  opt_state: Any
  epoch: Any = None

  def items(self) -> dict[str, Any]:
    """The two items of a checkpoint: what evaluation reads, and the rest."""
    return {
      "model": {"params": self.params, "batch_stats": self.batch_stats},
      "train": {
        "step": self.step,
        "opt_state": self.opt_state,
        "epoch": self.epoch,
      },
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
        clip=settings.clip,
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
    {"params": {"backbone", "projector", "probe"}, "batch_stats"}.
  """
  model = config_lib.model(config)
  size, channels = config.augment.size, source.image_shape[-1]
  # The forward pass that fixes the shapes is dead code, dropped before compilation.
  variables = model.init(
    jax.random.key(config.seed), jnp.zeros((2, size, size, channels)), train=False
  )
  params = dict(variables["params"]) | objective.init(config)
  if source.num_classes:
    params["probe"] = {
      "kernel": jnp.zeros((model.backbone.num_features, source.num_classes)),
      "bias": jnp.zeros(source.num_classes),
    }
  return {"params": params, "batch_stats": variables["batch_stats"]}


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
    epoch=collapse.start(config.model.projector_out),
  )


def build(function: Callable[[], Any], mesh: Mesh) -> Any:
  """Runs an initialisation once, as one program, its results on every device.

  Args:
    function: takes nothing and returns a tree of arrays.
    mesh: from `sharding.make_mesh`.

  Returns:
    The tree, replicated over the mesh.
  """
  # It runs once, so the time to compile it is what counts: on CPU, for a ResNet-10, 4.5
  # instead of 21 CPU seconds.
  whole = sharding_lib.replicated(mesh)
  return jax.jit(function, out_shardings=whole, compiler_options=cpu_effort(0, mesh))()


def cpu_effort(level: int, mesh: Mesh | None = None) -> dict[str, Any] | None:
  """Compiler options: how hard XLA's CPU backend tries; nothing elsewhere."""
  if sharding_lib.platform(mesh) != "cpu":
    return None
  return {"xla_backend_optimization_level": level}


def make_update(
  config: ConfigDict,
  num_classes: int,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  make_views: Callable[[Any], jax.Array] = lambda views: views,
  mesh: Mesh | None = None,
):
  """One update from given views: loss, gradients, optimiser, statistics.

  With `train.accumulate` = k > 1 the network sees the batch in k chunks, for less
  memory; the loss is the whole batch's all the same, see `accumulation.in_chunks`.
  BatchNorm's statistics are then each chunk's, so k changes the result.

  Args:
    config: resolved settings.
    num_classes: K; 0 without labels.
    optimizer: from `make_optimizer`.
    learning_rate: from `make_optimizer`, for the log.
    make_views: from what `update` gets for views, or a chunk of it, to the views.
    mesh: that the batch is split over; None for one device.

  Returns:
    `update(state, views, labels) -> (state, metrics, z)` with views [N, V, h, w, C] (or
    what `make_views` takes: a tree of arrays [N, ...]) and labels [N]; metrics are
    scalars, z [N, V, D] is what the loss saw, after the map. A pure function of global
    arrays.
  """
  model = config_lib.model(config)
  map_name = config.loss.map
  nt_xent = objective.nt_xent(mesh, config.loss.precision)
  bn_views = VIEWS if config.model.batch_norm == "per_view" else 1

  def forward(params, batch_stats, views):
    views = make_views(views)
    n = views.shape[0]
    (h, z), mutated = model.apply(
      {"params": params, "batch_stats": batch_stats},
      views.reshape(n * VIEWS, *views.shape[2:]),
      train=True,
      views=bn_views,
      mutable=["batch_stats"],
    )
    # Detached: the probe watches the features and never shapes them.
    h = jax.lax.stop_gradient(h)
    return (h, z), mutated["batch_stats"]

  forward = accumulation.in_chunks(forward, config.train.accumulate)

  def loss_fn(params, batch_stats, views, labels):
    (h, z), batch_stats = forward(params, batch_stats, views)
    z = nonneg.apply_map(z, map_name).reshape(-1, VIEWS, z.shape[-1])
    temperature = objective.temperature(config, params)
    loss = nt_xent(z, temperature).mean() + objective.penalty(config, z)
    values = {"loss": loss}
    if config.loss.learn_temperature:
      values["temperature"] = temperature
    if num_classes:
      logits = h @ params["probe"]["kernel"] + params["probe"]["bias"][None]
      row_labels = jnp.repeat(labels, VIEWS)
      known = row_labels >= 0
      target = jnp.where(known, row_labels, 0)
      ce = optax.softmax_cross_entropy_with_integer_labels(logits, target)
      count = jnp.maximum(known.sum(), 1)
      values["probe_loss"] = jnp.where(known, ce, 0).sum() / count
      hits = known & (logits.argmax(-1) == target)
      values["probe_accuracy"] = hits.sum() / count
      loss = loss + values["probe_loss"]
    return loss, (batch_stats, z, values)

  def update(state, views, labels):
    gradients, (batch_stats, z, values) = jax.grad(loss_fn, has_aux=True)(
      state.params, state.batch_stats, views, labels
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    values["learning_rate"] = learning_rate(state.step)
    values["gradient_norm"] = optax.tree.norm(gradients)
    state = state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      batch_stats=batch_stats,
      opt_state=opt_state,
    )
    return state, values, z

  return update


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
  return jax.jit(
    _make_step(config, source, mesh, optimizer, learning_rate),
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

  The same numbers, bit for bit, as so many calls of one step.

  Args:
    config: resolved settings.
    source: for the number of classes, and of steps in an epoch.
    mesh: from `sharding.make_mesh`.
    optimizer: from `make_optimizer`.
    learning_rate: from `make_optimizer`.
    resident: whether the data lie on the devices whole, see `feed`; else they are the
      batch of one step.
    per_call: steps in a call at most; 1 unless `resident`.

  Returns:
    `steps(state, data) -> (state, metrics, z, labels)`; data as `feed.open_feed` gives
    them; metrics are those of each step, [per_call], z [N, V, D] and labels [N] those
    of the last. The state is replicated and donated.
  """
  one = _make_step(config, source, mesh, optimizer, learning_rate)
  size = config.train.batch_size
  per_epoch = source.steps_per_epoch(size)
  log_every = config.train.log_every_steps
  whole, split = sharding_lib.replicated(mesh), sharding_lib.batch_sharded(mesh)

  def step(state, data):
    batch = data
    if resident:
      start = state.step % per_epoch * size
      batch = feed.batch_of(data, start, size, mesh, source.image_shape)
    state, values, z = one(state, batch)
    return state, values, z, batch["label"]

  def steps(state, data):
    if per_call == 1:
      state, values, *last = step(state, data)
      return state, jax.tree.map(lambda x: x[None], values), *last
    _, values, *last = jax.eval_shape(step, state, data)
    rows = jax.tree.map(lambda x: jnp.zeros((per_call, *x.shape), x.dtype), values)
    last = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), last)
    last = jax.lax.with_sharding_constraint(last, split)

    def body(i, carry):
      state, rows, *_ = carry
      state, values, *last = step(state, data)
      rows = jax.tree.map(lambda row, x: row.at[i].set(x), rows, values)
      return state, rows, *last

    # Known to the device from the state: nothing is sent, and any number of steps is
    # the same compiled loop.
    count = steps_in_call(state.step, per_call, per_epoch, log_every)
    return jax.lax.fori_loop(0, count, body, (state, rows, *last))

  return jax.jit(
    steps,
    in_shardings=(whole, whole if resident else split),
    out_shardings=(whole, whole, split, split),
    donate_argnums=0,
    # Measured: a fifth less time to compile than by default, and as fast a step.
    compiler_options=cpu_effort(1, mesh),
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
  """A step from a batch of images, a pure function of global arrays."""
  views_config = config_lib.augmentation(config)
  seed = config.seed
  per_epoch = source.steps_per_epoch(config.train.batch_size)

  def make_views(batch):
    return augment.make_views(batch["draws"], batch["image"], views_config)

  update = make_update(
    config, source.num_classes, optimizer, learning_rate, make_views, mesh
  )

  def step(state, batch):
    key = jax.random.fold_in(jax.random.key(seed), state.step)
    # Of the whole batch, so that views do not depend on `train.accumulate`.
    draws = augment.draws(key, batch["image"].shape[0])
    views = {"draws": draws, "image": batch["image"]}
    first = state.step % per_epoch == 0
    state, values, z = update(state, views, batch["label"])
    return state.replace(epoch=collapse.fold(state.epoch, z, first)), values, z

  return step


@jax.jit(static_argnums=(2, 3))
def batch_statistics(
  z: jax.Array, labels: jax.Array, num_classes: int, threshold: float
) -> dict[str, jax.Array]:
  """What the features of a batch look like; the released code logs the same.

  A program of its own, run where its result is written: the decomposition behind the
  effective rank would be felt in every step.

  Args:
    z: [N, V, D] projector outputs after the map, as the step returns them.
    labels: [N]; -1 where unknown.
    num_classes: K; 0 leaves out what needs labels.
    threshold: |f| below it counts as zero.

  Returns:
    Scalars: share of zeros, dimensions with any activity, rows that are all zero,
    effective rank, and the mean class consistency of the live dimensions.
  """
  f = losses.l2_normalize(z).reshape(-1, z.shape[-1])
  labels = jnp.repeat(labels, z.shape[1])
  values = {
    "sparsity": metrics.sparsity(f, threshold),
    "live_dimensions": metrics.live_dimensions(f, threshold).sum(),
    "zero_rows": metrics.num_zero_rows(f),
    "effective_rank": metrics.effective_rank(f),
  }
  if num_classes:
    rate, _ = metrics.class_consistency(f, labels, num_classes, threshold=threshold)
    values["class_consistency"] = jnp.nanmean(rate)
  return values
