"""The compiled step of supervised training: views, network, loss and optimiser."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import augment, features, numerics
from ncl_jax import config as config_lib
from ncl_jax.checks import divergence
from ncl_jax.config.supervised_recipe import Recipe
from ncl_jax.runtime import sharding as sharding_lib


@dataclasses.dataclass(frozen=True)
class Task:
  """What is trained.

  Attributes:
    config: resolved settings of the run that the network comes from.
    layers: what the classifiers see; "h" alone if the network is trained too.
  """

  recipe: Recipe
  config: ConfigDict
  num_classes: int
  layers: tuple[str, ...]
  frozen: bool


def make_step(task: Task, optimizer: optax.GradientTransformation, mesh: Mesh):
  """The compiled update: one view of each image, network, cross entropy, optimiser.

  Returns:
    `step(state, network, batch) -> (state, values)`; batch = {"image": uint8
    [N, H, W, C], "label": int32 [N] in [0, K)}, split over the mesh; the state is
    donated, the network {"params", "batch_stats"} only read. Values: for each layer its
    "loss_LAYER" and "accuracy_LAYER" on the batch, and "fault", `divergence.mark` of
    the step.
  """
  view = dataclasses.replace(
    config_lib.augmentation(task.config), jitter=0, grayscale=0, blur=0, solarize=0
  )
  loss = _loss(task)

  def step(state, network, batch):
    key = jax.random.fold_in(numerics.key(task.config.seed), state.step)
    draws = augment.view_parameters(key, batch["image"].shape[0], views=1)
    images = augment.make_views(draws, batch["image"], view)[:, 0]
    gradients, (batch_stats, values) = jax.grad(loss, has_aux=True)(
      state.params, state.batch_stats, network, images, batch["label"]
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    values["fault"] = divergence.mark(
      [values[f"loss_{name}"] for name in task.layers], gradients, params, batch_stats
    )
    state = state.replace(
      step=state.step + 1, params=params, batch_stats=batch_stats, opt_state=opt_state
    )
    return state, values

  whole, split = sharding_lib.replicated(mesh), sharding_lib.batch_sharded(mesh)
  return jax.jit(
    step,
    in_shardings=(whole, whole, split),
    out_shardings=(whole, whole),
    donate_argnums=0,
  )


def _loss(task: Task):
  """`loss(trained, batch_stats, network, images, labels)`, and its auxiliary values."""
  model = config_lib.model(task.config)

  def forward(trained, batch_stats, network, images):
    if task.frozen:
      embedded: Any = model.apply(network, images, method="embed")
      seen = dict(zip(("h", "hidden", "z"), embedded, strict=True))
      if "f" in task.layers:
        seen["f"] = features.embed(seen["z"], task.config.loss.transform)
      return {
        name: jax.lax.stop_gradient(seen[name]) for name in task.layers
      }, batch_stats
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
    one_hot = jax.nn.one_hot(labels, task.num_classes)
    target = optax.smooth_labels(one_hot, task.recipe.label_smoothing)
    values = {}
    for name in task.layers:
      head = trained["heads"][name]
      scores = seen[name] @ head["kernel"] + head["bias"][None]
      values[f"loss_{name}"] = optax.softmax_cross_entropy(scores, target).mean()
      values[f"accuracy_{name}"] = jnp.mean(scores.argmax(-1) == labels)
    loss = sum(values[f"loss_{name}"] for name in task.layers)
    return loss, (batch_stats, values)

  return loss_fn
