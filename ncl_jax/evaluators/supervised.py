"""Supervised training: classifiers on a frozen network, or finetuning all of it.

Every step sees augmented images, one view each: crop, flip, normalise, as the paper's
probes do. The learning rate, the labels and the rest are a `Recipe`.
"""

import contextlib
import dataclasses
import json
import math
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from ncl_jax import data as data_lib
from ncl_jax import features
from ncl_jax.checks import divergence
from ncl_jax.config.supervised_recipe import Recipe
from ncl_jax.evaluators import supervised_step
from ncl_jax.evaluators.run import Run
from ncl_jax.evaluators.supervised_step import Task
from ncl_jax.runtime import checkpoint, distributed, jsonl, tensors
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import fingerprints
from ncl_jax.training.state import TrainState, build


@dataclasses.dataclass(frozen=True)
class Trained:
  """What training made.

  Attributes:
    variables: {"params": {"backbone", "projector"}, "batch_stats"} of the network; the
      given ones where it was frozen.
    heads: layer -> {"kernel" [width, K], "bias" [K]}.
    settings: what a result records of the training.
  """

  variables: Any
  heads: dict[str, dict[str, jax.Array]]
  settings: dict[str, Any]


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
  task = Task(recipe, config, source, mesh, batch_size, layers, frozen)
  # By way of the host, as several processes cannot move arrays between devices.
  network = features.without_probe(jax.device_get(run.variables))
  network = jax.device_put(network, sharding_lib.replicated(mesh))
  optimizer = supervised_step.make_optimizer(
    recipe,
    supervised_step.depths_of(network["params"]["backbone"], frozen),
    batch_size,
    task.per_epoch,
  )

  def start() -> TrainState:
    trained = {"heads": supervised_step.init_heads(config, source, layers)}
    batch_stats = {}
    if not frozen:
      # Copied, as the step gives up its state's memory.
      trained["backbone"] = jax.tree.map(jnp.copy, network["params"]["backbone"])
      batch_stats = jax.tree.map(jnp.copy, network["batch_stats"])
    zero, opt_state = jnp.zeros((), jnp.int32), optimizer.init(trained)
    return TrainState(zero, trained, batch_stats, opt_state)

  logging.info(
    "%s of %s on %d images: %d steps of %d, %s",
    *("linear probe" if frozen else "finetuning", ", ".join(layers), images),
    *(task.total, batch_size, recipe.optimizer),
  )
  if folder is not None:
    folder = folder / _identity(task, network)
  step = supervised_step.make_step(task, optimizer)
  state = _run(
    task, lambda state, batch: step(state, network, batch), build(start, mesh), folder
  )
  if not frozen:
    params = network["params"] | {"backbone": state.params["backbone"]}
    network = {"params": params, "batch_stats": state.batch_stats}
  network, heads = jax.device_get((network, state.params["heads"]))
  settings = {
    "fitted_on": "train, augmented by crop and flip",
    "recipe": recipe.settings(),
    "steps": task.total,
    "batch_size": batch_size,
    "train_images": images,
    "train_classes": len(np.unique(source.split("train").labels)),
  }
  return Trained(network, heads, settings)


def _run(
  task: Task,
  advance: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]],
  state: TrainState,
  folder: pathlib.Path | None,
) -> TrainState:
  """Runs the steps that are left; with a folder, from its newest checkpoint."""
  mesh, batch_size, total, start = task.mesh, task.batch_size, task.total, 0
  save_every = task.per_epoch * task.config.train.checkpoint_every_epochs
  with contextlib.ExitStack() as stack:
    if folder is not None:
      # Without a folder to save to, a signal ends the program at once.
      stop = stack.enter_context(distributed.StopRequests())
      checkpoints = stack.enter_context(checkpoint.Checkpoints(folder, keep=1))
      start = checkpoints.latest_step() or 0
    if start:
      logging.info("%s: going on from step %d of %d", folder, start, total)
      model, rest = checkpoints.restore(start, **state.items())
      state = TrainState(**model, **rest)
    if start == total:
      return state
    batches = task.source.train_batches(
      task.config.seed, start, batch_size, sharding_lib.process_rows(mesh, batch_size)
    )
    stack.callback(batches.close)
    progress = jsonl.Progress(total, start, batch_size)
    stack.callback(progress.close)
    unchecked: list[tuple[int, dict[str, jax.Array]]] = []

    def check() -> None:
      done, values = unchecked.pop(0)
      values = jax.device_get(values)
      divergence.check(np.atleast_1d(values["fault"]), done)
      progress.update(done, f"loss {values['loss']:.4f}")

    for done in range(start + 1, total + 1):
      batch = next(batches)
      rows = {"image": batch["image"], "label": batch["label"]}
      state, values = advance(state, sharding_lib.to_global(mesh, rows))
      unchecked.append((done, values))
      # One step late, so that the device never waits for the host.
      if len(unchecked) > 1:
        check()
      stopping = folder is not None and stop.at() and done < total
      saving = stopping or done % save_every == 0 or done == total
      if saving:
        check()
      if folder is None:
        continue
      checkpoints.check()
      if saving:
        checkpoints.save(done, **state.items())
      if stopping:
        checkpoints.wait()
        raise stop.stopped(done, total)
  return state


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


def _identity(task: Task, network: Any) -> str:
  """A folder name that is unique to this training."""
  whole = task.config.to_dict()
  of = task.recipe.settings() | {"layers": task.layers, "frozen": task.frozen}
  # What the step reads, without the data's path and the run's own training settings.
  of |= {name: whole[name] for name in ("seed", "augment", "loss", "model")}
  of |= {"data": fingerprints.data(task.source, "train")}
  of |= fingerprints.versions(__name__)
  return tensors.digest({json.dumps(of, sort_keys=True, allow_nan=False): network})[:16]
