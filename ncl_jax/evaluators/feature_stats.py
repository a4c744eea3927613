"""How sparse, pure and correlated the single dimensions of the test features are."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators import program

SHUFFLES = 10


def evaluate(
  config: ConfigDict, variables: Any, source: Source, mesh: Mesh
) -> dict[str, Any]:
  """The paper's feature properties, with what is needed to judge them.

  Args:
    config: resolved settings; `eval.threshold` and `eval.activity` are used.
    variables: {"params", "batch_stats"}.
    source: data; without labels the class-based figures are left out.
    mesh: for the forward passes.

  Returns:
    {"settings", "h": {...}, "f": {...}}; see `statistics`.
  """
  test = program.extract(config, variables, source, "test", mesh)
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      threshold=config.eval.threshold,
      activity=config.eval.activity,
      label_shuffles=SHUFFLES,
      images=len(test.labels),
    )
  }
  for layer in program.LAYERS:
    result[layer] = statistics(
      test.layer(layer, config.loss.map),
      test.labels,
      source.num_classes,
      threshold=config.eval.threshold,
      activity=config.eval.activity,
      seed=config.seed,
    )
  return result


def statistics(
  f: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  *,
  threshold: float,
  activity: float,
  seed: int,
) -> dict[str, float]:
  """All label-free statistics of a feature matrix, and the class-based ones if it can.

  Args:
    f: [N, D] features.
    labels: [N]; -1 where unknown.
    num_classes: K; 0 for none.
    threshold: |f| below it counts as zero.
    activity: share of the images that count as activating a dimension in `purity`.
    seed: of the label shuffles that give the chance levels.

  Returns:
    sparsity, activity (mean share of images that activate a live dimension),
    dimensions, live_dimensions, zero_rows, orthogonality (mean |C - I|),
    effective_rank; with labels also consistency_abs and consistency_positive (mean
    over live dimensions), purity (at matched activity), and each of the three with
    `_chance`: its mean over shuffled labels.
  """
  live = np.asarray(metrics.live_dimensions(f, threshold))
  values = {
    "sparsity": metrics.sparsity(f, threshold),
    "activity": (np.abs(f[:, live]) > threshold).mean() if live.any() else 0.0,
    "dimensions": f.shape[1],
    "live_dimensions": live.sum(),
    "zero_rows": metrics.num_zero_rows(f),
    "orthogonality": metrics.orthogonality(f),
    "effective_rank": metrics.effective_rank(f),
  }
  if num_classes:
    by_class = {
      "consistency_abs": lambda y: _consistency(f, y, num_classes, "abs", threshold),
      "consistency_positive": lambda y: _consistency(
        f, y, num_classes, "positive", threshold
      ),
      "purity": lambda y: metrics.purity(f, y, num_classes, activity),
    }
    generator = np.random.default_rng(seed)
    shuffled = [generator.permutation(labels) for _ in range(SHUFFLES)]
    for name, measure in by_class.items():
      values[name] = _mean(measure(labels))
      values[f"{name}_chance"] = np.mean([_mean(measure(y)) for y in shuffled])
  return {name: float(value) for name, value in jax.device_get(values).items()}


def _consistency(f, labels, num_classes, rule, threshold):
  return metrics.class_consistency(f, labels, num_classes, rule, threshold)[0]


def _mean(rates: jax.Array) -> float:
  """Over live dimensions; NaN if there is none."""
  known = np.asarray(rates)
  known = known[~np.isnan(known)]
  return float(known.mean()) if known.size else np.nan
