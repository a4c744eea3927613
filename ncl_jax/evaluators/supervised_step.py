"""The classifiers, the optimiser and the compiled step of supervised training."""

import dataclasses
from typing import Any

import jax
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import augment, features, numerics, optimizers
from ncl_jax import config as config_lib
from ncl_jax.checks import divergence
from ncl_jax.config.supervised_recipe import Recipe
from ncl_jax.data.source import Source
from ncl_jax.runtime import sharding as sharding_lib


@dataclasses.dataclass(frozen=True)
class Task:
  """What is trained, and on what.

  Attributes:
    config: resolved settings of the run that the network comes from.
    source: its split "train" is run through.
    layers: what the classifiers see; "h" alone if the network is trained too.
    frozen: whether only the classifiers are trained.
  """

  recipe: Recipe
  config: ConfigDict
  source: Source
  mesh: Mesh
  batch_size: int
  layers: tuple[str, ...]
  frozen: bool

  @property
  def per_epoch(self) -> int:
    """Steps of an epoch."""
    return self.source.steps_per_epoch(self.batch_size)

  @property
  def total(self) -> int:
    """Steps of the whole training."""
    return self.recipe.epochs * self.per_epoch


def init_heads(config: ConfigDict, source: Source, layers: tuple[str, ...]) -> Any:
  """The classifiers before the first step: torch's Linear, uniform in +-width^-1/2.

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
    depths: ints, a prefix of the trained parameters: see `depths_of`.
    batch_size: images a step, which the learning rate is scaled by.
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


def make_step(task: Task, optimizer: optax.GradientTransformation):
  """The compiled update: one view of each image, network, cross entropy, optimiser.

  Returns:
    `step(state, network, batch) -> (state, values)`; batch = {"image": uint8
    [N, H, W, C], "label": int32 [N] in [0, K)}, split over the mesh; the state is
    donated, the network {"params", "batch_stats"} only read. Values: the "loss", summed
    over the layers, and "fault", `divergence.mark` of the step.
  """
  config = task.config
  model = config_lib.model(config)
  view = dataclasses.replace(
    config_lib.augmentation(config), jitter=0, grayscale=0, blur=0, solarize=0
  )

  def seen(trained, batch_stats, network, images):
    """What the classifiers see, and the new statistics."""
    if task.frozen:
      embedded: Any = model.apply(network, images, method="embed")
      layers = dict(zip(("h", "hidden", "z"), embedded, strict=True))
      layers["f"] = features.embed(layers["z"], config.loss.transform)
      return layers, batch_stats
    params = network["params"] | {"backbone": trained["backbone"]}
    (h, _), mutated = model.apply(
      {"params": params, "batch_stats": batch_stats},
      images,
      train=True,
      mutable=["batch_stats"],
    )
    return {"h": h}, mutated.get("batch_stats", {})

  def loss(trained, batch_stats, network, images, labels):
    layers, batch_stats = seen(trained, batch_stats, network, images)
    one_hot = jax.nn.one_hot(labels, task.source.num_classes)
    target = optax.smooth_labels(one_hot, task.recipe.label_smoothing)
    losses = []
    for name in task.layers:
      head = trained["heads"][name]
      scores = layers[name] @ head["kernel"] + head["bias"][None]
      losses.append(optax.softmax_cross_entropy(scores, target).mean())
    return sum(losses), (batch_stats, losses)

  def step(state, network, batch):
    key = jax.random.fold_in(numerics.key(config.seed), state.step)
    draws = augment.view_parameters(key, batch["image"].shape[0], views=1)
    images = augment.make_views(draws, batch["image"], view)[:, 0]
    gradients, (batch_stats, losses) = jax.grad(loss, has_aux=True)(
      state.params, state.batch_stats, network, images, batch["label"]
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    fault = divergence.mark(losses, gradients, params, batch_stats)
    state = state.replace(
      step=state.step + 1, params=params, batch_stats=batch_stats, opt_state=opt_state
    )
    return state, {"loss": sum(losses), "fault": fault}

  whole = sharding_lib.replicated(task.mesh)
  return jax.jit(
    step,
    in_shardings=(whole, whole, sharding_lib.batch_sharded(task.mesh)),
    out_shardings=(whole, whole),
    donate_argnums=0,
  )
