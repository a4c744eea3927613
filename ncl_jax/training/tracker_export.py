"""Exports metrics.jsonl to TensorBoard or Weights & Biases, online or offline."""

import dataclasses
import json
import math
import pathlib
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


@dataclasses.dataclass(frozen=True)
class Sink:
  """Where numbers go: `write(step, {name: number})`, `flush()` and `close()`."""

  write: Callable[[int, dict[str, float]], None]
  flush: Callable[[], None]
  close: Callable[[], None]


def _tensorboard(path: pathlib.Path, config: Any, step: int, identity: str) -> Sink:
  """Event files in WORKDIR/tensorboard."""
  try:
    from tensorboardX import SummaryWriter
  except ImportError as error:
    raise InputError(_missing("tensorboard")) from error
  # Hides later steps that an export wrote before it was killed: they are written again.
  writer = SummaryWriter(
    str(path / "tensorboard"), purge_step=step + 1 if step else None
  )

  def write(step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
      writer.add_scalar(name, value, step)

  return Sink(write, writer.flush, writer.close)


def _wandb(path: pathlib.Path, config: Any, step: int, identity: str) -> Sink:
  """A run named as the directory; WANDB_MODE=offline keeps it on this machine."""
  del step  # the service refuses earlier steps by itself
  try:
    import wandb
  except ImportError as error:
    raise InputError(_missing("wandb")) from error
  run = wandb.init(
    project="ncl_jax",
    name=path.name,
    dir=str(path),
    config=config,
    id=identity,
    resume="allow",
  )
  return Sink(
    lambda step, values: run.log(values, step=step),
    lambda: None,  # it sends by itself
    run.finish,
  )


SINKS: dict[str, Callable[[pathlib.Path, Any, int, str], Sink]] = {
  "tensorboard": _tensorboard,
  "wandb": _wandb,
}
TARGETS = tuple(SINKS)


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
    follow: go on until the last step of the run.
    seconds: between looks, if so.

  Raises:
    FileNotFoundError: if there is no run.
    InputError: for another target, or one that is not installed.
  """
  checks.choice("to", target, TARGETS)
  path = paths.local(directory).resolve()
  config = workdir.read_config(path)
  note = path / f"{target}.copied.json"
  done = _done(note)
  # Written first, because a killed export has its Weights & Biases run already.
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
