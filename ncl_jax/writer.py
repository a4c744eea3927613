"""What a run writes while it goes: `metrics.jsonl`, and progress for who watches."""

import datetime
import json
import math
import os
import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np
import tqdm
from absl import logging


def to_json(value: Any) -> Any:
  """The value in strict JSON's terms: arrays to lists, NaN and infinities to null."""
  if isinstance(value, dict):
    return {str(key): to_json(item) for key, item in value.items()}
  if isinstance(value, (list, tuple)):
    return [to_json(item) for item in value]
  if isinstance(value, (np.ndarray, np.generic, jax.Array)):
    return to_json(np.asarray(value).tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def append(path: pathlib.Path, row: dict[str, Any]) -> None:
  """Adds one JSON line to a file, whole and on disk before it returns."""
  with path.open("a", encoding="utf-8") as file:
    file.write(json.dumps(to_json(row), allow_nan=False) + "\n")
    file.flush()
    os.fsync(file.fileno())


def write(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
  """Writes a JSON-lines file anew: a reader sees the old one or the new one."""
  draft = path.with_suffix(".draft")
  text = "".join(json.dumps(to_json(row), allow_nan=False) + "\n" for row in rows)
  draft.write_text(text, encoding="utf-8")
  os.replace(draft, path)


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of a JSON-lines file; a last line cut off by a kill is left out."""
  rows = []
  if path.exists():
    for line in path.read_text(encoding="utf-8").splitlines():
      try:
        rows.append(json.loads(line))
      except json.JSONDecodeError:
        break
  return rows


def truncate(path: pathlib.Path, step: int) -> None:
  """Drops the rows after `step`: a resumed run neither repeats nor skips any."""
  if path.exists():
    kept = [row for row in read(path) if row["step"] <= step]
    text = "".join(json.dumps(row) + "\n" for row in kept)
    swap = path.with_suffix(".tmp")
    swap.write_text(text, encoding="utf-8")
    swap.replace(path)


class Progress:
  """A bar where a person watches, a plain line now and then where not.

  Args:
    total: steps in all.
    start: steps already done.
    images_per_step: to say how many images a second go through.
    seconds_between_lines: of the plain form.
  """

  def __init__(
    self,
    total: int,
    start: int,
    images_per_step: int,
    seconds_between_lines: float = 15.0,
  ):
    self._images = images_per_step
    self._total = total
    self._first: int | None = None
    self._begun = self._said = time.monotonic()
    self._pause = seconds_between_lines
    watched = sys.stderr.isatty() and jax.process_index() == 0
    self._bar = (
      tqdm.tqdm(total=total, initial=start, unit="step", dynamic_ncols=True)
      if watched
      else None
    )

  def update(self, step: int, message: str) -> None:
    """Shows that `step` steps are done, and a message such as the loss."""
    now = time.monotonic()
    if self._first is None:
      # The first step's time is compilation's: it would spoil the rate for long.
      self._first, self._begun, self._said = step, now, now
    rate = (step - self._first) / max(now - self._begun, 1e-9)
    text = f"{rate * self._images:,.0f} images/s  {message}"
    if self._bar is not None:
      self._bar.set_postfix_str(text, refresh=False)
      self._bar.update(step - self._bar.n)
    elif now - self._said >= self._pause or step == self._total:
      self._said = now
      left = (self._total - step) / max(rate, 1e-9)
      logging.info(
        "step %d of %d  %s  %s left",
        step,
        self._total,
        text,
        datetime.timedelta(seconds=round(left)),
      )

  def close(self) -> None:
    """Leaves the terminal clean."""
    if self._bar is not None:
      self._bar.close()
