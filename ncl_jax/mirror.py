"""metrics.jsonl for other programs: TensorBoard and Weights & Biases, online or not."""

import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from absl import logging

from ncl_jax import checks, paths, workdir, writer
from ncl_jax.errors import InputError

TARGETS = ("tensorboard", "wandb")


class Sink(Protocol):
  """Takes numbers by name, and is closed at the end."""

  def write(self, step: int, values: dict[str, float]) -> None:
    """The numbers of a step."""

  def close(self) -> None:
    """Writes what is left."""


class TensorBoard:
  """Event files in WORKDIR/tensorboard."""

  def __init__(self, path: pathlib.Path, config: dict[str, Any]):
    del config
    try:
      from tensorboardX import SummaryWriter
    except ImportError as error:
      raise InputError(_missing("tensorboard")) from error
    self._writer = SummaryWriter(str(path / "tensorboard"))

  def write(self, step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
      self._writer.add_scalar(name, value, step)

  def close(self) -> None:
    self._writer.close()


class WeightsAndBiases:
  """A run named as the directory; WANDB_MODE=offline keeps it on this machine."""

  def __init__(self, path: pathlib.Path, config: dict[str, Any]):
    try:
      import wandb
    except ImportError as error:
      raise InputError(_missing("wandb")) from error
    self._run = wandb.init(
      project="ncl_jax", name=path.name, dir=str(path), config=config
    )

  def write(self, step: int, values: dict[str, float]) -> None:
    self._run.log(values, step=step)

  def close(self) -> None:
    self._run.finish()


SINKS: dict[str, Callable[[pathlib.Path, dict[str, Any]], Sink]] = {
  "tensorboard": TensorBoard,
  "wandb": WeightsAndBiases,
}


def _missing(extra: str) -> str:
  return f"{extra} is not installed: pip install '.[{extra}]'"


def mirror(
  directory: str | pathlib.Path,
  target: str,
  *,
  follow: bool = False,
  seconds: float = 10.0,
) -> int:
  """Copies a run's metrics.

  Training knows nothing of it: what is copied is what training wrote.

  Args:
    directory: of a run.
    target: one of `TARGETS`.
    follow: go on until the last step of the run.
    seconds: between looks, if so.

  Returns:
    How many rows were copied.

  Raises:
    FileNotFoundError: if there is no run.
    InputError: for another target, or one that is not installed.
  """
  checks.choice("to", target, TARGETS)
  path = paths.local(directory).resolve()
  config = workdir.read_config(path)
  sink = SINKS[target](path, config.to_dict())
  count = 0
  try:
    for row in _rows(path, config.train.epochs, follow, seconds):
      values = {
        key: float(value)
        for key, value in row.items()
        if key != "step" and isinstance(value, int | float) and math.isfinite(value)
      }
      sink.write(row["step"], values)
      count += 1
  finally:
    sink.close()
  logging.info("%d rows of %s to %s", count, path, target)
  return count


def _rows(
  path: pathlib.Path, epochs: int, follow: bool, seconds: float
) -> Iterator[dict[str, Any]]:
  """Each row once; after a kill, those that the run writes again are left out."""
  last = {"step": 0, "epoch": 0.0}
  while True:
    for row in writer.read(path / "metrics.jsonl"):
      if row["step"] > last["step"]:
        last = row
        yield row
    if not follow or last["epoch"] >= epochs:
      return
    time.sleep(seconds)
