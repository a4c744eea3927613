"""JSON-lines files such as `metrics.jsonl`, and progress output."""

import contextlib
import datetime
import functools
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
from ncl_jax.host import bucket, paths

# An object of a bucket cannot grow. One that gets many rows is written so often.
_SECONDS = 30.0


def to_json(value: Any) -> Any:
  """Converts a value to strict JSON: arrays to lists, NaN and infinity to null.

  An undefined number, such as the class consistency of a dead dimension, is null in
  every file and a dash in every table.
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
  """Appends a JSON line to a file and syncs it to disk.

  If the last line was truncated by a kill or a full disk, it is terminated first.
  """
  line = _line(row)
  if paths.in_bucket(path):
    bucket.append(path, line)
    return
  with naming(path), path.open("ab+") as file:
    if file.seek(0, os.SEEK_END):
      file.seek(-1, os.SEEK_END)
      line = line if file.read(1) == b"\n" else b"\n" + line
    file.write(line)
    file.flush()
    os.fsync(file.fileno())


class Log:
  """A JSON-lines file that one process often appends to.

  In a bucket, rows are kept in memory between writes of the whole object.
  """

  def __init__(self, path: pathlib.Path):
    self._path = path
    self._in_bucket = paths.in_bucket(path)
    self._content: bytes | None = None
    self._written, self._is_complete = time.monotonic(), True

  def append(self, row: dict[str, Any]) -> None:
    """As `append`; in a bucket, the row may be written later."""
    if not self._in_bucket:
      append(self._path, row)
      return
    if self._content is None:
      self._content = b"".join(map(_line, read(self._path)))
    self._content += _line(row)
    self._is_complete = False
    if time.monotonic() > self._written + _SECONDS:
      self.flush()

  def flush(self) -> None:
    """Writes all rows."""
    if not self._is_complete:
      replace(self._path, self._content or b"")
      self._written, self._is_complete = time.monotonic(), True


def write(path: pathlib.Path, rows: list[dict[str, Any]]) -> None:
  """Replaces a JSON-lines file atomically."""
  replace(path, b"".join(map(_line, rows)))


def _line(row: dict[str, Any]) -> bytes:
  return (json.dumps(to_json(row), allow_nan=False) + "\n").encode()


def replace(path: pathlib.Path, content: str | bytes) -> None:
  """Replaces a file atomically; text is encoded as UTF-8."""
  data = content.encode() if isinstance(content, str) else content
  if paths.in_bucket(path):
    path.write_bytes(data)  # as a whole or not at all
    return
  draft = path.with_name(f"{path.name}.tmp")
  with naming(path):
    with draft.open("wb") as file:
      file.write(data)
      file.flush()
      os.fsync(file.fileno())
    draft.replace(path)


def read(path: pathlib.Path) -> list[dict[str, Any]]:
  """The rows of a JSON-lines file.

  Lines truncated by a kill or a full disk are left out and counted in a warning. A last
  line without a newline may still be written, and is left out silently.
  """
  if not path.exists():
    return []
  *lines, last = path.read_bytes().split(b"\n")
  found = [_row(line) for line in lines if line.strip()]
  rows = [row for row in [*found, _row(last)] if row is not None]
  if bad := found.count(None):
    _warn(path, bad)
  return rows


@functools.cache  # once, though a file may be read many times
def _warn(path: pathlib.Path, bad: int) -> None:
  logging.warning(
    "%s: lines without a row left out: %d; a kill or a full disk cut them off",
    *(path, bad),
  )


def _row(line: bytes) -> dict[str, Any] | None:
  """The object that a line holds, or None."""
  try:
    row = json.loads(line)
  except ValueError:  # also for bytes that are not text
    return None
  return row if isinstance(row, dict) else None


def truncate(path: pathlib.Path, step: int) -> None:
  """Drops the rows after `step`, so a resumed run neither repeats nor skips any."""
  if path.exists():
    write(path, [row for row in read(path) if row["step"] <= step])


class Progress:
  """A progress bar in a terminal, else log lines some seconds apart."""

  def __init__(
    self,
    total: int,
    start: int,
    images_per_step: int,
    seconds_between_lines: float = 15.0,
  ):
    self._images, self._total = images_per_step, total
    self._first: int | None = None
    self._begun = self._said = time.monotonic()
    self._pause = seconds_between_lines
    self._bar: tqdm.tqdm | None = None
    if sys.stderr.isatty() and jax.process_index() == 0:
      self._bar = tqdm.tqdm(total=total, initial=start, unit="step", dynamic_ncols=True)

  def update(self, step: int, message: str) -> None:
    """Shows that `step` steps are done, and a message such as the loss."""
    now = time.monotonic()
    if self._first is None:
      # The first step includes compilation, which would distort the rate for long.
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
      seconds = round((self._total - step) / max(rate, 1e-9))
      left = datetime.timedelta(seconds=seconds)
      logging.info("step %d of %d  %s  %s left", step, self._total, text, left)

  def close(self) -> None:
    """Closes the bar."""
    if self._bar is not None:
      with contextlib.suppress(OSError):
        self._bar.close()
