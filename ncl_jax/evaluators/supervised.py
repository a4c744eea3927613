"""Supervised training: classifiers on a frozen network, or finetuning all of it.

Every step sees augmented images, one view each: crop, flip, normalise, as the paper's
probes do. The learning rate, the labels and the rest are a `Recipe`.
"""

import dataclasses
import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import augment, features, numerics, optimizers
from ncl_jax import config as config_lib
from ncl_jax import data as data_lib
from ncl_jax.checks import divergence
from ncl_jax.config.supervised_recipe import Recipe
from ncl_jax.data.source import Source
from ncl_jax.evaluators import supervised_loop
from ncl_jax.runtime import checkpoint
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import fingerprints
from ncl_jax.training.step import TrainState, build


@dataclasses.dataclass(frozen=True)
class Trained:
  """What training made.

  Attributes:
    variables: {"params": {"backbone", "projector"}, "batch_stats"} of the network; the
      given ones where it was frozen.
    heads: layer -> {"kernel" [width, K], "bias" [K]}.
    labels: [N], of the training images that were used.
    batch_size: images a step.
    steps: updates.
  """

  variables: Any
  heads: dict[str, dict[str, jax.Array]]
  labels: np.ndarray
  batch_size: int
  steps: int


def train(
  recipe: Recipe,
  config: ConfigDict,
  variables: Any,
  source: Source,
  mesh: Mesh,
  *,
  layers: tuple[str, ...] = ("h",),
  frozen: bool,
  folder: pathlib.Path | None = None,
) -> Trained:
  """Trains linear classifiers by cross entropy, and the network below if not frozen.

  The classifiers of several layers are trained side by side from the same images; none
  knows of the others.

  Args:
    recipe: how.
    config: the resolved settings of the run that the network comes from.
    variables: {"params", "batch_stats"} to start from; never changed.
    source: labelled data.
    mesh: batches are split over its devices, or over as many as share one equally.
    layers: what the classifiers see, see `features.Features.layer`.
    frozen: True leaves the network as it is, in evaluation mode; False trains it too,
      with the batch's statistics, and takes one layer, h.
    folder: where checkpoints are kept, so that a training that was stopped goes on;
      None keeps none.

  Returns:
    The classifiers after the last step, and the network.

  Raises:
    InputError: for settings that cannot work.
    FloatingPointError: if the loss, the gradient, a parameter or a batch statistic
      stops being finite, naming the step.
    Stopped: after one of `errors.SIGNALS`; with a folder, everything is saved.
  """
  if not frozen and layers != ("h",):
    raise ValueError(f"layers = {layers}: finetuning has one classifier, on h")
  source = data_lib.labelled(source, recipe.label_fraction, config.seed)
  images = source.num_examples("train")
  batch_size = recipe.batch_size
  if images < batch_size:
    batch_size = 2 ** int(math.log2(images))
  whole, mesh = mesh, sharding_lib.that_share(mesh, batch_size)
  if mesh is not whole and jax.process_count() > 1:
    # Several processes cannot move arrays from one set of devices to another.
    variables = jax.device_get(variables)
  per_epoch = source.steps_per_epoch(batch_size)
  total = recipe.epochs * per_epoch

  # The online probe of pretraining is no part of the network.
  params = {k: v for k, v in variables["params"].items() if k != "probe"}
  network = {"params": params, "batch_stats": variables["batch_stats"]}
  network = jax.device_put(network, sharding_lib.replicated(mesh))
  depths = depths_of(params["backbone"], frozen)
  optimizer = make_optimizer(recipe, depths, batch_size, per_epoch)

  def init() -> TrainState:
    trained = {"heads": init_heads(config, source, layers)}
    batch_stats = {}
    if not frozen:
      # Copied, as the step gives up its state's memory.
      trained["backbone"] = jax.tree.map(jnp.copy, params["backbone"])
      batch_stats = jax.tree.map(jnp.copy, network["batch_stats"])
    return TrainState(
      step=jnp.zeros((), jnp.int32),
      params=trained,
      batch_stats=batch_stats,
      opt_state=optimizer.init(trained),
    )

  state = build(init, mesh)
  step = make_step(recipe, config, source.num_classes, mesh, optimizer, layers, frozen)
  logging.info(
    "%s of %s on %d images: %d steps of %d, %s",
    "linear probe" if frozen else "finetuning",
    ", ".join(layers),
    images,
    total,
    batch_size,
    recipe.optimizer,
  )
  if folder is not None:
    folder = folder / _identity(recipe, config, network, source, layers, frozen)

  def advance(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
    return step(state, network, batch)

  state = supervised_loop.run(
    advance, state, source, config, mesh, batch_size, total, folder
  )
  if not frozen:
    params = params | {"backbone": state.params["backbone"]}
    network = {"params": params, "batch_stats": state.batch_stats}
  heads = state.params["heads"]
  if mesh is not whole and jax.process_count() > 1:
    network, heads = jax.device_get((network, heads))
  labels = source.split("train").labels
  return Trained(network, heads, labels, batch_size, total)


def accuracy(
  head: dict[str, jax.Array],
  x: np.ndarray | jax.Array,
  labels: np.ndarray,
  where: np.ndarray | bool = True,
) -> float:
  """Share of labelled rows (among `where`) whose class scores highest.

  Args:
    head: {"kernel" [F, K], "bias" [K]}.
    x: [N, F] features.
    labels: [N]; -1 is left out.
    where: [N] mask of rows, or True for all.

  Returns:
    In [0, 1]; NaN where no row counts.

  Raises:
    FloatingPointError: if a score is NaN or infinite.
  """
  predicted, finite = jax.device_get(_predict(head, x))
  if not finite.all():
    raise FloatingPointError(
      f"the class scores of {np.count_nonzero(~finite)} of {len(finite)} rows hold NaN "
      "or infinity: the classifier or the features have diverged"
    )
  counted = (labels >= 0) & where
  if not counted.any():
    return math.nan
  return float(np.mean(predicted[counted] == labels[counted]))


@jax.jit
def _predict(head, x):
  with jax.default_matmul_precision("float32"):
    scores = x @ head["kernel"] + head["bias"][None]
  return jnp.argmax(scores, axis=-1), jnp.isfinite(scores).all(-1)


def make_step(
  recipe: Recipe,
  config: ConfigDict,
  num_classes: int,
  mesh: Mesh,
  optimizer: optax.GradientTransformation,
  layers: tuple[str, ...],
  frozen: bool,
):
  """The compiled update: one view of each image, network, cross entropy, optimiser.

  Args:
    recipe: for the label smoothing.
    config: resolved settings of the run.
    num_classes: K.
    mesh: from `sharding.make_mesh`.
    optimizer: of the trained parameters.
    layers: of the classifiers.
    frozen: whether the network stays as it is.

  Returns:
    `step(state, network, batch) -> (state, values)`; batch = {"image": uint8
    [N, H, W, C], "label": int32 [N] in [0, K)}, split over the mesh; the state is
    donated, the network {"params", "batch_stats"} only read. Values: for each layer its
    "loss_LAYER" and "accuracy_LAYER" on the batch, and "fault", `divergence.mark` of
    the step.
  """
  model = config_lib.model(config)
  view = dataclasses.replace(
    config_lib.augmentation(config), jitter=0, grayscale=0, blur=0, solarize=0
  )

  def forward(trained, batch_stats, network, images):
    if frozen:
      embedded: Any = model.apply(network, images, method="embed")
      seen = dict(zip(("h", "hidden", "z"), embedded, strict=True))
      if "f" in layers:
        seen["f"] = features.embed(seen["z"], config.loss.transform)
      return {name: jax.lax.stop_gradient(seen[name]) for name in layers}, batch_stats
    params = network["params"] | {"backbone": trained["backbone"]}
    (h, _), mutated = model.apply(
      {"params": params, "batch_stats": batch_stats},
      images,
      train=True,
      mutable=["batch_stats"],
    )
    return {"h": h}, mutated.get("batch_stats", {})

  def loss_fn(trained, batch_stats, network, images, labels):
    seen, batch_stats = forward(trained, batch_stats, network, images)
    one_hot = jax.nn.one_hot(labels, num_classes)
    target = optax.smooth_labels(one_hot, recipe.label_smoothing)
    values = {}
    for name in layers:
      head = trained["heads"][name]
      scores = seen[name] @ head["kernel"] + head["bias"][None]
      values[f"loss_{name}"] = optax.softmax_cross_entropy(scores, target).mean()
      values[f"accuracy_{name}"] = jnp.mean(scores.argmax(-1) == labels)
    loss = sum(values[f"loss_{name}"] for name in layers)
    return loss, (batch_stats, values)

  def step(state, network, batch):
    key = jax.random.fold_in(numerics.key(config.seed), state.step)
    draws = augment.view_parameters(key, batch["image"].shape[0], views=1)
    images = augment.make_views(draws, batch["image"], view)[:, 0]
    gradients, (batch_stats, values) = jax.grad(loss_fn, has_aux=True)(
      state.params, state.batch_stats, network, images, batch["label"]
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    values["fault"] = divergence.mark(
      [values[f"loss_{name}"] for name in layers], gradients, params, batch_stats
    )
    state = state.replace(
      step=state.step + 1,
      params=params,
      batch_stats=batch_stats,
      opt_state=opt_state,
    )
    return state, values

  whole, split = sharding_lib.replicated(mesh), sharding_lib.batch_sharded(mesh)
  return jax.jit(
    step,
    in_shardings=(whole, whole, split),
    out_shardings=(whole, whole),
    donate_argnums=0,
  )


def init_heads(config: ConfigDict, source: Source, layers: tuple[str, ...]) -> Any:
  """The classifiers before the first step: torch's Linear, uniform in +-width^-1/2.

  Args:
    config: resolved settings; its seed determines the draw.
    source: for the number of classes.
    layers: of h, hidden, z, f.

  Returns:
    layer -> {"kernel" [width, K], "bias" [K]}.
  """
  heads = {}
  for index, (name, width) in enumerate(config_lib.widths(config).items()):
    if name in layers:
      key = jax.random.fold_in(numerics.key(config.seed), index)
      shape = (width + 1, source.num_classes)
      bound = width**-0.5
      both = jax.random.uniform(key, shape, minval=-bound, maxval=bound)
      heads[name] = {"kernel": both[:-1], "bias": both[-1]}
  return heads


def make_optimizer(
  recipe: Recipe, depths: Any, batch_size: int, steps_per_epoch: int
) -> optax.GradientTransformation:
  """The optimiser of a recipe.

  Args:
    recipe: how.
    depths: ints, a prefix of the trained parameters: see `depths_of`.
    batch_size: images a step, which the learning rate is scaled by.
    steps_per_epoch: updates in an epoch.

  Returns:
    An optax transformation.
  """

  def make(factor: float) -> optax.GradientTransformation:
    base = factor * recipe.learning_rate * batch_size / 256
    if recipe.schedule == "cosine":
      rate = optimizers.warmup_cosine(
        base,
        warmup_steps=round(recipe.warmup_epochs * steps_per_epoch),
        total_steps=recipe.epochs * steps_per_epoch,
        start=factor * recipe.warmup_start,
      )
    else:
      rate = optimizers.step_decay(
        base, milestones=[steps_per_epoch * epoch for epoch in recipe.milestones]
      )
    if recipe.optimizer == "sgd":
      return optimizers.sgd(
        rate, weight_decay=recipe.weight_decay, momentum=recipe.momentum
      )
    return optimizers.lars(
      rate,
      weight_decay=recipe.weight_decay,
      momentum=recipe.momentum,
      trust_coefficient=recipe.trust_coefficient,
      clip=recipe.clip,
    )

  return optimizers.layerwise(make, depths, recipe.layer_decay)


def depths_of(backbone: Any, frozen: bool) -> Any:
  """How deep each trained part lies: the stem 0, then the blocks, the classifiers last.

  Args:
    backbone: parameters of a ResNet or a ViT.
    frozen: whether the classifiers alone are trained.

  Returns:
    Tree of ints, a prefix of the trained parameters.
  """
  blocks = sorted(name for name in backbone if name.startswith("layer"))
  place = {name: 1 + blocks.index(name) if name in blocks else 0 for name in backbone}
  if "norm" in place:  # a ViT's last layer
    place["norm"] = len(blocks)
  top = {"heads": len(blocks) + 1}
  return top if frozen else top | {"backbone": place}


def _identity(
  recipe: Recipe,
  config: ConfigDict,
  network: Any,
  source: Source,
  layers: tuple[str, ...],
  frozen: bool,
) -> str:
  """A folder's name that only the very same training has."""
  whole = config.to_dict()
  of = recipe.settings() | {"layers": layers, "frozen": frozen}
  # What the step reads; where the data lie and how the run was trained is not of it.
  of |= {name: whole[name] for name in ("seed", "augment", "loss", "model")}
  of |= {"data": fingerprints.data(source, "train")}
  of |= fingerprints.versions(__name__)
  return checkpoint.digest({json.dumps(of, sort_keys=True, allow_nan=False): network})[
    :16
  ]
