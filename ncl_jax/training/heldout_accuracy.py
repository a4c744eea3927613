"""Test accuracy of a classifier while it trains, and its best checkpoint.

The best step is chosen on the test set itself: report the accuracy of the last step.
"""

import math
import pathlib
from typing import Any

import jax
import numpy as np
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import features
from ncl_jax.data.source import Source
from ncl_jax.runtime import checkpoint, jsonl
from ncl_jax.training import classifier, state

FOLDER = "best"


def top(scores: np.ndarray, labels: np.ndarray, k: int) -> float:
  """Fraction of the labelled rows whose class is among the k highest scores.

  Args:
    scores: [N, K]; of equal ones the lower class counts as higher.
    labels: [N] int; -1 is left out.
    k: at least 1; K and more give 1.

  Returns:
    In [0, 1]; NaN without a labelled row, or if a score is not finite.

  >>> top(np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 5.0]]), np.array([2, 2]), 1)
  0.0
  >>> top(np.array([[1.0, 3.0, 2.0], [5.0, 0.0, 5.0]]), np.array([2, 2]), 2)
  1.0
  """
  known = labels >= 0
  if not known.any() or not np.isfinite(scores).all():
    return math.nan
  order = np.argsort(-scores[known], axis=1, kind="stable")[:, :k]
  return float((order == labels[known, None]).any(1).mean())


def evaluate(
  config: ConfigDict, variables: Any, source: Source, mesh: Mesh
) -> dict[str, float]:
  """Top-1 and top-5 on the test split, and how many of its images have a label."""
  found = features.extract(variables, source, "test", state.network(config, mesh))
  weights = jax.device_get(variables["params"]["classifier"])
  scores = np.asarray(classifier.scores(config, weights, found.z))
  return {
    "test_top1": top(scores, found.labels, 1),
    "test_top5": top(scores, found.labels, 5),
    "test_images": int((found.labels >= 0).sum()),
  }


class Best:
  """WORKDIR/best, a work directory of its own with the best step so far.

  An open resource, to be closed.

  Args:
    start: steps done before; what metrics.jsonl says of them counts.
  """

  def __init__(self, workdir: pathlib.Path, config: ConfigDict, start: int):
    folder = workdir / FOLDER
    rows = jsonl.read(workdir / "metrics.jsonl")
    tested = [r for r in rows if r["step"] <= start and r.get("test_top1") is not None]
    self._best = max((row["test_top1"] for row in tested), default=-1.0)
    self._checkpoints = checkpoint.Checkpoints(folder, keep=1)
    if jax.process_index() == 0:
      jsonl.replace(folder / "config.json", config_lib.to_json(config))

  def offer(self, step: int, top1: float, items: dict[str, Any]) -> None:
    """Keeps a step if it is better than all before.

    Raises:
      SaveError: if it cannot be written.
    """
    if not top1 > self._best:
      return
    self._best = top1
    # A resumed run repeats steps with the same numbers: a later checkpoint is better.
    if (self._checkpoints.latest_step() or 0) < step:
      self._checkpoints.save(step, **items)
      logging.info("step %d is the best so far: %.2f %% top-1", step, 100 * top1)

  def close(self) -> None:
    """Waits until everything is written."""
    self._checkpoints.__exit__()
