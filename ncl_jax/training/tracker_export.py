"""Exports metrics.jsonl to TensorBoard or Weights & Biases, online or offline."""

import json
import math
import pathlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from absl import logging

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.host import paths
from ncl_jax.runtime import jsonl
from ncl_jax.training import workdir

TARGETS = ("tensorboard", "wandb")


class Sink(Protocol):
  """Takes numbers by name, and is closed at the end."""

  def write(self, step: int, values: dict[str, float]) -> None:
    """The numbers of a step."""

  def flush(self) -> None:
    """Returns when what was given is as safe as the target makes it."""

  def close(self) -> None:
    """Writes what is left."""


class TensorBoard:
  """Event files in WORKDIR/tensorboard."""

  def __init__(
    self, path: pathlib.Path, config: dict[str, Any], step: int, identity: str
  ):
    del config, identity
    try:
      from tensorboardX import SummaryWriter
    except ImportError as error:
      raise InputError(_missing("tensorboard")) from error
    # What a kill left of later steps is not shown: those are written again.
    self._writer = SummaryWriter(
      str(path / "tensorboard"), purge_step=step + 1 if step else None
    )

  def write(self, step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
      self._writer.add_scalar(name, value, step)

  def flush(self) -> None:
    self._writer.flush()

  def close(self) -> None:
    self._writer.close()


class WeightsAndBiases:
  """A run named as the directory; WANDB_MODE=offline keeps it on this machine."""

  def __init__(
    self, path: pathlib.Path, config: dict[str, Any], step: int, identity: str
  ):
    del step  # of earlier ones the service takes none
    try:
      import wandb
    except ImportError as error:
      raise InputError(_missing("wandb")) from error
    self._run = wandb.init(
      project="ncl_jax",
      name=path.name,
      dir=str(path),
      config=config,
      id=identity,
      resume="allow",
    )

  def write(self, step: int, values: dict[str, float]) -> None:
    self._run.log(values, step=step)

  def flush(self) -> None:
    """It sends by itself."""

  def close(self) -> None:
    self._run.finish()


SINKS: dict[str, Callable[[pathlib.Path, dict[str, Any], int, str], Sink]] = {
  "tensorboard": TensorBoard,
  "wandb": WeightsAndBiases,
}


def _missing(extra: str) -> str:
  return f"{extra} is not installed: pip install '.[{extra}]'"


def export(
  directory: str | pathlib.Path,
  target: str,
  *,
  follow: bool = False,
  seconds: float = 10.0,
) -> int:
  """Copies a run's metrics.

  Copies what training wrote, without changing the run. WORKDIR/TARGET.copied.json holds
  the last copied step: a second call continues after it, in the same run of Weights &
  Biases. Without that file everything is copied anew.

  Args:
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
  note = path / f"{target}.copied.json"
  done = _done(note)
  # First: a start that is killed has its run of Weights & Biases already.
  jsonl.replace(note, json.dumps(done, allow_nan=False) + "\n")
  sink = SINKS[target](path, config.to_dict(), done["step"], done["id"])
  count = 0
  try:
    for rows in _news(path, done["step"], config.train.epochs, follow, seconds):
      for row in rows:
        values = {
          key: float(value)
          for key, value in row.items()
          if key != "step" and isinstance(value, int | float) and math.isfinite(value)
        }
        sink.write(row["step"], values)
        count += 1
      if rows:
        sink.flush()
        done["step"] = rows[-1]["step"]
        jsonl.replace(note, json.dumps(done, allow_nan=False) + "\n")
  finally:
    sink.close()
  logging.info("%d rows of %s to %s", count, path, target)
  return count


def _done(note: pathlib.Path) -> dict[str, Any]:
  """The last step that was copied, and the name of the run it was copied to."""
  try:
    found = json.loads(note.read_text(encoding="utf-8"))
    return {"step": int(found["step"]), "id": str(found["id"])}
  except FileNotFoundError:
    return {"step": 0, "id": uuid.uuid4().hex[:12]}
  except (ValueError, KeyError, TypeError) as error:
    raise InputError(
      f"{note} is damaged: remove it to copy everything anew ({error})"
    ) from error


def _news(
  path: pathlib.Path, step: int, epochs: int, follow: bool, seconds: float
) -> Iterator[list[dict[str, Any]]]:
  """Rows after a step, each once; of a run that was killed some are there twice."""
  epoch = 0.0
  while True:
    rows = []
    for row in jsonl.read(path / "metrics.jsonl"):
      epoch = max(epoch, row["epoch"])
      if row["step"] > step:
        step = row["step"]
        rows.append(row)
    yield rows
    if not follow or epoch >= epochs:
      return
    time.sleep(seconds)
