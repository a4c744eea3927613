"""Supervised training: classifiers on a frozen network, or finetuning all of it.

Every step sees augmented images, one view each: crop, flip, normalise, as the paper's
probes do. The learning rate, the labels and the rest are a `Recipe`.
"""

import dataclasses
import functools
import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from ncl_jax import data as data_lib
from ncl_jax import features
from ncl_jax.config.supervised_recipe import Recipe
from ncl_jax.data.source import Source
from ncl_jax.evaluators import supervised_loop, supervised_optimizer
from ncl_jax.evaluators.run import Run
from ncl_jax.evaluators.supervised_step import Task, make_step
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.runtime import tensors
from ncl_jax.training import fingerprints
from ncl_jax.training.state import TrainState, build


@dataclasses.dataclass(frozen=True)
class Trained:
  """What training made.

  Attributes:
    variables: {"params": {"backbone", "projector"}, "batch_stats"} of the network; the
      given ones where it was frozen.
    heads: layer -> {"kernel" [width, K], "bias" [K]}.
    labels: [N], of the training images that were used.
  """

  variables: Any
  heads: dict[str, dict[str, jax.Array]]
  labels: np.ndarray
  batch_size: int
  steps: int

  def settings(self, recipe: Recipe) -> dict[str, Any]:
    """What a result records of the training."""
    return {
      "fitted_on": "train, augmented by crop and flip",
      "recipe": recipe.settings(),
      "steps": self.steps,
      "batch_size": self.batch_size,
      "train_images": len(self.labels),
      "train_classes": len(np.unique(self.labels)),
    }


def train(
  recipe: Recipe,
  run: Run,
  *,
  layers: tuple[str, ...] = ("h",),
  frozen: bool,
  folder: pathlib.Path | None = None,
) -> Trained:
  """Trains linear classifiers by cross entropy, and the network below if not frozen.

  The classifiers of several layers are trained side by side from the same images; none
  knows of the others.

  Args:
    run: with labelled data; its network is what to start from, and never changed.
      Batches are split over its mesh, or over as many devices as share one equally.
    layers: what the classifiers see, see `features.Features.layer`.
    frozen: True leaves the network as it is, in evaluation mode; False trains it too,
      with the batch's statistics, and takes one layer, h.
    folder: where checkpoints are kept, so that a stopped run can resume;
      None keeps none.

  Raises:
    InputError: for settings that cannot work.
    FloatingPointError: if the loss, the gradient, a parameter or a batch statistic
      stops being finite, naming the step.
    Stopped: after one of `errors.SIGNALS`; with a folder, everything is saved.
  """
  if not frozen and layers != ("h",):
    raise ValueError(f"layers = {layers}: finetuning has one classifier, on h")
  config = run.config
  source = data_lib.labelled(run.source, recipe.label_fraction, config.seed)
  images = source.num_examples("train")
  batch_size = recipe.batch_size
  if images < batch_size:
    batch_size = 2 ** int(math.log2(images))
  mesh = sharding_lib.that_share(run.mesh, batch_size)
  # Several processes cannot move arrays from one set of devices to another.
  moved = mesh is not run.mesh and jax.process_count() > 1
  variables = jax.device_get(run.variables) if moved else run.variables
  per_epoch = source.steps_per_epoch(batch_size)
  total = recipe.epochs * per_epoch

  network = features.without_probe(variables)
  network = jax.device_put(network, sharding_lib.replicated(mesh))
  params = network["params"]
  depths = supervised_optimizer.depths_of(params["backbone"], frozen)
  optimizer = supervised_optimizer.make_optimizer(recipe, depths, batch_size, per_epoch)
  task = Task(recipe, config, source.num_classes, layers, frozen)
  heads = functools.partial(supervised_optimizer.init_heads, config, source, layers)
  state = build(lambda: _start(heads(), network, optimizer, frozen), mesh)
  step = make_step(task, optimizer, mesh)
  logging.info(
    "%s of %s on %d images: %d steps of %d, %s",
    *("linear probe" if frozen else "finetuning", ", ".join(layers), images),
    *(total, batch_size, recipe.optimizer),
  )
  if folder is not None:
    folder = folder / _identity(task, network, source)
  plan = supervised_loop.Plan(source, config, mesh, batch_size, total)
  state = supervised_loop.run(
    lambda state, batch: step(state, network, batch), state, plan, folder
  )
  if not frozen:
    params = params | {"backbone": state.params["backbone"]}
    network = {"params": params, "batch_stats": state.batch_stats}
  trained = state.params["heads"]
  if moved:
    network, trained = jax.device_get((network, trained))
  return Trained(network, trained, source.split("train").labels, batch_size, total)


def _start(heads: Any, network: Any, optimizer: Any, frozen: bool) -> TrainState:
  """The state before the first step."""
  trained, batch_stats = {"heads": heads}, {}
  if not frozen:
    # Copied, as the step gives up its state's memory.
    trained["backbone"] = jax.tree.map(jnp.copy, network["params"]["backbone"])
    batch_stats = jax.tree.map(jnp.copy, network["batch_stats"])
  return TrainState(
    step=jnp.zeros((), jnp.int32),
    params=trained,
    batch_stats=batch_stats,
    opt_state=optimizer.init(trained),
  )


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


def _identity(task: Task, network: Any, source: Source) -> str:
  """A folder name that is unique to this training."""
  whole = task.config.to_dict()
  of = task.recipe.settings() | {"layers": task.layers, "frozen": task.frozen}
  # What the step reads, without the data's path and the run's own training settings.
  of |= {name: whole[name] for name in ("seed", "augment", "loss", "model")}
  of |= {"data": fingerprints.data(source, "train")}
  of |= fingerprints.versions()
  return tensors.digest({json.dumps(of, sort_keys=True, allow_nan=False): network})[:16]
