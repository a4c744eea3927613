"""Follows a run: each new checkpoint is evaluated, until the training is complete."""

import pathlib
import time
from collections.abc import Callable, Iterator

import jax
from absl import logging

from ncl_jax.errors import Failed, InputError, Stopped
from ncl_jax.host import paths
from ncl_jax.runtime import checkpoint, jsonl
from ncl_jax.training import workdir as workdir_lib

POLL_SECONDS = 5.0
REMINDER_SECONDS = 600


def each(workdir: str | pathlib.Path, evaluate: Callable[[int], None]) -> None:
  """Evaluates every checkpoint of a run as it appears; returns when all are done.

  The run may not have begun yet. A checkpoint that training deletes meanwhile is
  skipped. A failed evaluation is logged, and the next one starts.

  Raises:
    Failed: at the end, if an evaluation failed.
    InputError: in one of several processes.
  """
  if jax.distributed.is_initialized():
    raise InputError("--watch is for one process: each may see another checkpoint")
  path = paths.absolute(workdir)
  failed: dict[int, str] = {}
  for step in follow(path):
    try:
      evaluate(step)
    except Stopped:
      raise
    # Whatever it is, the other checkpoints are still evaluated.
    except Exception as error:  # noqa: BLE001
      gone = isinstance(error, FileNotFoundError | InputError)
      if gone and step not in checkpoint.steps(path):
        logging.warning("the checkpoint of step %d was deleted meanwhile", step)
        continue
      logging.exception("step %d could not be evaluated", step)
      failed[step] = str(error)
  if failed:
    lines = "".join(f"\n  step {step}: {reason}" for step, reason in failed.items())
    raise Failed(f"{path}: of some checkpoints the evaluation failed:{lines}")


def follow(path: pathlib.Path) -> Iterator[int]:
  """The steps of a run's checkpoints as they appear, each once, up to the last."""
  seen: set[int] = set()
  while True:
    # Asked first: what was saved before it was complete is then in the list.
    complete = is_complete(path)
    new = [step for step in checkpoint.steps(path) if step not in seen]
    for step in new:
      seen.add(step)
      if step in checkpoint.steps(path):
        yield step
    if complete and not new:
      return
    if not new:
      message = "waiting for the next checkpoint in %s"
      logging.log_every_n_seconds(logging.INFO, message, REMINDER_SECONDS, path)
      time.sleep(POLL_SECONDS)


def is_complete(path: pathlib.Path) -> bool:
  """Whether a run's last step is saved."""
  steps = checkpoint.steps(path)
  if not steps:
    return False
  config = workdir_lib.read_config(path)
  if rows := jsonl.read(path / "metrics.jsonl"):
    per_epoch = round(rows[-1]["step"] / rows[-1]["epoch"])
  else:
    # Imported, or stopped before the first row: count from the data.
    source = workdir_lib.load_source(config)
    per_epoch = source.steps_per_epoch(config.train.batch_size)
  return steps[-1] >= per_epoch * config.train.epochs
