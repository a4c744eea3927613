"""Logs the steps of a run: `metrics.jsonl`, progress, warnings."""

import pathlib
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax.checks import divergence
from ncl_jax.runtime import jsonl
from ncl_jax.training import collapse


class Recorder:
  """Fetches the metrics of each call one call late, checks them and writes some.

  Args:
    file: gets a line every `train.log_every_steps` steps and at each epoch's end.
  """

  def __init__(
    self,
    file: pathlib.Path,
    progress: jsonl.Progress,
    per_epoch: int,
    config: ConfigDict,
  ) -> None:
    self._log, self._progress = jsonl.Log(file), progress
    self._per_epoch, self._log_every = per_epoch, config.train.log_every_steps
    self._width, self._transform = config_lib.widths(config)["z"], config.loss.transform
    self._warned: set[str] = set()
    self._pending: tuple | None = None

  def writes(self, step: int) -> bool:
    """Whether the metrics of this step go into the file."""
    return step % self._log_every == 0 or step % self._per_epoch == 0

  def add(
    self, step: int, count: int, values: dict[str, Any], last: dict[str, Any]
  ) -> None:
    """Queues the metrics of a call of `count` steps.

    Args:
      values: their metrics, in the first `count` rows.
      last: further values of the last step.

    Raises:
      FloatingPointError: if the previous call made a value that is not finite, naming
        the first such step.
    """
    self._take()
    self._pending = (step, count, values, last)

  def flush(self) -> None:
    """Writes all queued metrics; raises as `add`."""
    self._take()
    self._log.flush()

  def close(self) -> None:
    """Writes the metrics that were checked."""
    self._log.flush()

  def check(self, step: int, count: int, values: dict[str, Any]) -> None:
    """Checks a call at once, and those before it; raises as `add`."""
    self.flush()
    self._check(step, jax.device_get(values["fault"])[:count])

  def _check(self, step, faults):
    exp = "The transform exp is infinite above 88. " * (self._transform == "exp")
    divergence.check(faults, step, f"{exp}The last checkpoint is kept.")

  def _take(self):
    if self._pending is None:
      return
    (step, count, values, last), self._pending = self._pending, None
    values = dict(values)
    losses, faults = jax.device_get((values["loss"], values.pop("fault")))
    self._check(step, faults[:count])
    self._progress.update(step, f"loss {losses[count - 1]:.4f}")
    # A call ends at a logged step: only its last row can be one.
    if self.writes(step):
      values = jax.tree.map(lambda x: x[count - 1], jax.device_get(values))
      values |= jax.device_get(last)
      row = {"step": step, "epoch": step / self._per_epoch}
      if jax.process_index() == 0:
        self._log.append(row | values)
      if step % self._per_epoch == 0:
        self._warn(row["epoch"], values)

  def _warn(self, epoch, values):
    lines = collapse.warnings(values, self._width, self._transform)
    # Once, when it begins, and not in every epoch that follows.
    for kind, line in lines.items():
      if kind not in self._warned:
        logging.warning("epoch %d: %s", epoch, line)
    self._warned = set(lines)
