"""Exports metrics.jsonl to TensorBoard or Weights & Biases, online or offline."""

import math
import pathlib
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from absl import logging

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.host import paths
from ncl_jax.runtime import jsonl
from ncl_jax.training import workdir

TARGETS = ("tensorboard", "wandb")
# `write(step, {name: number})` and `close()`.
Tracker = tuple[Callable[[int, dict[str, float]], None], Callable[[], None]]


def _tensorboard(path: pathlib.Path) -> Tracker:
  """Event files in WORKDIR/tensorboard."""
  from tensorboardX import SummaryWriter

  # Hides all that an earlier export wrote.
  writer = SummaryWriter(str(path / "tensorboard"), purge_step=0, flush_secs=10)

  def write(step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
      writer.add_scalar(name, value, step)

  return write, writer.close


def _wandb(path: pathlib.Path, config: dict[str, Any]) -> Tracker:
  """A run named as the directory; WANDB_MODE=offline keeps it on this machine."""
  import wandb

  run = wandb.init(
    project="ncl_jax",
    name=path.name,
    dir=str(path),
    config=config,
    # The same each time; the service ignores steps that it has.
    id=uuid.uuid5(uuid.NAMESPACE_URL, f"{socket.gethostname()}{path}{config}").hex,
    resume="allow",
  )
  return lambda step, values: run.log(values, step=step), run.finish


def export(
  directory: str | pathlib.Path,
  target: str,
  *,
  follow: bool = False,
  seconds: float = 10.0,
) -> int:
  """Copies a run's metrics, without changing the run; returns the number of rows.

  A second call copies all of them again, to the same place.

  Args:
    follow: go on until the last step of the run.
    seconds: between looks, if so.

  Raises:
    FileNotFoundError: if there is no run.
    InputError: for another target, or one that is not installed.
  """
  checks.choice("to", target, TARGETS)
  path = paths.local(directory).resolve()
  config = workdir.read_config(path)
  try:
    if target == "tensorboard":
      write, close = _tensorboard(path)
    else:
      write, close = _wandb(path, config.to_dict())
  except ImportError as error:
    raise InputError(f"{target} is not installed: pip install '.[{target}]'") from error
  count = 0
  try:
    for row in _rows(path, config.train.epochs if follow else 0, seconds):
      numbers = {
        key: float(value)
        for key, value in row.items()
        if key != "step" and isinstance(value, int | float) and math.isfinite(value)
      }
      write(row["step"], numbers)
      count += 1
  finally:
    close()
  logging.info("%d rows of %s to %s", count, path, target)
  return count


def _rows(
  path: pathlib.Path, epochs: float, seconds: float
) -> Iterator[dict[str, Any]]:
  """Each step's row once, until so many epochs are done; a killed run repeats some."""
  step, epoch = 0, 0.0
  while True:
    for row in jsonl.read(path / "metrics.jsonl"):
      epoch = max(epoch, row["epoch"])
      if row["step"] > step:
        step = row["step"]
        yield row
    if epoch >= epochs:
      return
    time.sleep(seconds)
