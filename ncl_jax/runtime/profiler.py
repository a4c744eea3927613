"""Profiles some steps of a run, for XProf, TensorBoard or Perfetto."""

import pathlib
import re
from typing import Any

import jax
from absl import logging

from ncl_jax.errors import InputError
from ncl_jax.host import paths


class Profile:
  """Records the calls of the compiled program that overlap with some steps.

  Args:
    steps: "FIRST:LAST", counted from 1; "" for none.

  Raises:
    InputError: for other text, or a folder in a bucket.
  """

  def __init__(self, steps: str, folder: pathlib.Path):
    found = re.fullmatch(r"([1-9]\d*):([1-9]\d*)", steps)
    if steps and not (found and int(found[1]) <= int(found[2])):
      raise InputError(f"--profile={steps}: allowed is FIRST:LAST, such as 20:30")
    if steps and paths.in_bucket(folder):
      raise InputError(f"--profile={steps}: JAX writes profiles to local folders only")
    self._first, self._last = (int(found[1]), int(found[2])) if found else (0, 0)
    self._folder, self._running = folder, False

  def before(self, done: int, count: int) -> None:
    """Call before each call of the program: steps done, and steps in the call."""
    overlaps = done < self._last and done + count >= self._first
    if self._last and overlaps and not self._running:
      self._folder.mkdir(parents=True, exist_ok=True)
      jax.profiler.start_trace(self._folder)
      self._running = True

  def after(self, done: int, results: Any) -> None:
    """Call after each call of the program: steps done, and the call's results."""
    if self._running and done >= self._last:
      jax.block_until_ready(results)
      self.close()

  def close(self) -> None:
    """Ends a recording in progress."""
    if self._running:
      self._running = False
      jax.profiler.stop_trace()
      logging.info("profile in %s: tensorboard --logdir=%s", *[self._folder] * 2)
