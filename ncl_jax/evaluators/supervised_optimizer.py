"""Supervised training's start: classifiers, and the optimiser of a recipe."""

from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import numerics, optimizers
from ncl_jax.config.supervised_recipe import Recipe
from ncl_jax.data.source import Source


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
