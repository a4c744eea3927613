"""What a run writes while it goes: `metrics.jsonl`, and progress for who watches."""

import contextlib
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

from ncl_jax.errors import naming


def to_json(value: Any) -> Any:
  """The value in strict JSON's terms: arrays to lists, NaN and infinities to null.

  A number that is undefined, such as the class consistency of a dead dimension, is null
  in every file and a dash in every table.
  """
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
  """Adds one JSON line to a file, whole and on disk before it returns.

  A line that a kill or a full disk cut off is ended first: it takes no other with it.
  """
  line = (json.dumps(to_json(row), allow_nan=False) + "\n").encode()
  with naming(path), path.open("ab+") as file:
    if file.seek(0, os.SEEK_END):
      file.seek(-1, os.SEEK_END)
      line = line if file.read(1) == b"\n" else b"\n" + line
    file.write(line)
    file.flush()
    os.fsync(file.fileno())


def write(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
  """Writes a JSON-lines file anew: a reader sees the old one or the new one."""
  lines = (json.dumps(to_json(row), allow_nan=False) + "\n" for row in rows)
  replace(path, "".join(lines))


def replace(path: pathlib.Path, content: str | bytes) -> None:
  """Writes a file anew, text as UTF-8: it is there whole, or the old one stays."""
  draft = path.with_name(f"{path.name}.tmp")
  with naming(path):
    with draft.open("wb") as file:
      file.write(content.encode() if isinstance(content, str) else content)
      file.flush()
      os.fsync(file.fileno())
    draft.replace(path)


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of a JSON-lines file.

  Lines that hold no row, as kills and full disks leave them, are left out, and a
  warning says how many. A last line without an end may be being written: it is left out
  without a word.
  """
  if not path.exists():
    return []
  *lines, last = path.read_bytes().split(b"\n")
  found = [_row(line) for line in lines if line.strip()]
  rows = [row for row in [*found, _row(last)] if row is not None]
  bad = found.count(None)
  if bad > _told.get(path, 0):
    _told[path] = bad
    logging.warning(
      "%s: lines without a row left out: %d; a kill or a full disk cut them off",
      *(path, bad),
    )
  return rows


def _row(line: bytes) -> dict[str, Any] | None:
  """The object that a line holds, or None."""
  try:
    row = json.loads(line)
  except ValueError:  # also bytes that are no text
    return None
  return row if isinstance(row, dict) else None


# How many such lines of a file were told: it may be read again and again.
_told: dict[pathlib.Path, int] = {}


def truncate(path: pathlib.Path, step: int) -> None:
  """Drops the rows after `step`: a resumed run neither repeats nor skips any."""
  if path.exists():
    write(path, [row for row in read(path) if row["step"] <= step])


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
      try:
        self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(step - self._bar.n)
      except OSError:  # the terminal is gone, the run is not
        self._bar = None
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
      with contextlib.suppress(OSError):
        self._bar.close()
