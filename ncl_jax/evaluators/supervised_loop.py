"""The loop around the step of supervised training: progress, checkpoints, stopping."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax.checks import divergence
from ncl_jax.data.source import Source
from ncl_jax.runtime import checkpoint, distributed, jsonl
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training.state import TrainState


@dataclasses.dataclass(frozen=True)
class Plan:
  """What the loop runs through.

  Attributes:
    source: its split "train" is run through.
    config: of the run: the seed, and how often to save.
  """

  source: Source
  config: ConfigDict
  mesh: Mesh
  batch_size: int
  total: int


def run(
  advance: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]],
  state: TrainState,
  plan: Plan,
  folder: pathlib.Path | None,
) -> TrainState:
  """Runs the steps that are left; with a folder, from its newest checkpoint.

  Args:
    advance: from a state and a batch to the next state and its values.
    folder: where checkpoints are kept; None for nowhere.

  Raises:
    FloatingPointError: at the first step whose "fault" is not 0, see
      `divergence.check`.
    Stopped: after one of `errors.SIGNALS`, if there is a folder.
  """
  source, mesh = plan.source, plan.mesh
  batch_size, total = plan.batch_size, plan.total
  with contextlib.ExitStack() as stack:
    if folder is not None:
      # Without a folder to save to, a signal ends the program at once.
      stop = stack.enter_context(distributed.StopRequests())
      checkpoints = stack.enter_context(checkpoint.Checkpoints(folder, keep=1))
      state = _newest(checkpoints, state, folder, total)
    start = int(state.step)
    if start >= total:
      return state
    per_epoch = source.steps_per_epoch(batch_size)
    save_every = per_epoch * plan.config.train.checkpoint_every_epochs
    batches = source.train_batches(
      plan.config.seed, start, batch_size, sharding_lib.process_rows(mesh, batch_size)
    )
    stack.callback(batches.close)
    progress = jsonl.Progress(total, start, batch_size)
    stack.callback(progress.close)
    before: tuple[int, Any] | None = None
    for done in range(start + 1, total + 1):
      batch = next(batches)
      rows = {"image": batch["image"], "label": batch["label"]}
      state, values = advance(state, sharding_lib.to_global(mesh, rows))
      # One step late, so that the device never waits for the host.
      if before is not None:
        _note(progress, *before)
      before = (done, values)
      if folder is None:
        continue
      checkpoints.check()
      stopping = stop.at() and done < total
      if stopping or done % save_every == 0 or done == total:
        _note(progress, *before)
        before = None
        checkpoints.save(done, **state.items())
      if stopping:
        checkpoints.wait()
        raise stop.stopped(done, total)
    if before is not None:
      _note(progress, *before)
  return state


def _note(progress: jsonl.Progress, done: int, values: dict[str, jax.Array]) -> None:
  values = jax.device_get(values)
  divergence.check(np.atleast_1d(values["fault"]), done)
  loss = sum(float(v) for name, v in values.items() if name.startswith("loss"))
  progress.update(done, f"loss {loss:.4f}")


def _newest(
  checkpoints: checkpoint.Checkpoints,
  state: TrainState,
  folder: pathlib.Path,
  total: int,
) -> TrainState:
  """The state of the newest checkpoint, or the given one if there is none."""
  start = checkpoints.latest_step()
  if not start:
    return state
  logging.info("%s: going on from step %d of %d", folder, start, total)
  target = jax.tree.map(
    lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.items()
  )
  model, rest = checkpoints.restore(start, **target)
  return TrainState(**model, **rest)
