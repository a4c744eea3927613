"""What the studies of axes measure on CL and NCL of one seed, and their verdicts."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ncl_jax import metrics
from ncl_jax.evaluators import axes, feature_stats, meaning
from ncl_jax.experiments import rivals
from ncl_jax.report import statistics
from ncl_jax.runtime import jsonl

BUDGETS = (0.002, 0.005, 0.01, 0.03)  # of the energy-weighted purity
paired = statistics.paired_difference
MARGIN = 0.02  # naming accuracy that counts as equal to the best rival's
POST_HOC = ("kmeans", "varimax 95", "varimax 99")


@dataclasses.dataclass(frozen=True)
class Features:
  """f of the training and the test images, rows of unit length, [M, D] and [N, D]."""

  train: np.ndarray
  test: np.ndarray


@dataclasses.dataclass(frozen=True)
class Labels:
  """Classes of the training and the test images, and how many there are."""

  train: np.ndarray
  test: np.ndarray
  num_classes: int


def has_row(file: pathlib.Path, key: dict[str, Any]) -> bool:
  """Whether a .jsonl file has a row with these values."""
  return any(key.items() <= row.items() for row in jsonl.read(file))


def unit(x: np.ndarray) -> np.ndarray:
  """Rows of unit length; all-zero ones stay zero."""
  size = np.linalg.norm(x, axis=1, keepdims=True)
  return np.asarray(x / np.where(size > 0, size, 1), np.float32)


def made(encode: Callable[[np.ndarray], np.ndarray], f: Features) -> Features:
  """The features that a rival makes of CL's."""
  return Features(unit(encode(f.train)), unit(encode(f.test)))


def seed_rows(
  cl: Features, ncl: Features, untrained: Features, labels: Labels, seed: int
) -> list[dict[str, Any]]:
  """The measures of both methods, the rivals and the control.

  Args:
    cl: of the run without a transform.
    ncl: of the run with one.
    untrained: of NCL's network before training.
    labels: of the same images.
    seed: of the runs.

  Returns:
    A row for each, with "features" its name and "seed".
  """
  on = ncl.train > 1e-5
  active, width = max(1, round(float(on.sum(1).mean()))), ncl.train.shape[1]
  kinds = {
    "CL": cl,
    "NCL": ncl,
    "untrained": untrained,
    "CL, NCL's activity": made(rivals.matched_rates(cl.train, on.mean(0)), cl),
    "kmeans": made(rivals.kmeans(cl.train, width, active, seed), cl),
    "varimax 95": made(rivals.varimax(cl.train, 0.95), cl),
    "varimax 99": made(rivals.varimax(cl.train, 0.99), cl),
    "PCA 95": made(rivals.pca(cl.train, 0.95), cl),
    "ICA 95": made(rivals.ica(cl.train, 0.95, seed), cl),
  }
  rows = []
  for name, f in kinds.items():
    row: dict[str, Any] = {
      "features": name,
      "seed": seed,
      "dimensions": f.test.shape[1],
    }
    row |= measured(f, labels, seed)
    own, other = metrics.consistency_at_matched_rates(
      ncl.test, f.test, labels.test, labels.num_classes
    )
    row["consistency_at_ncls_activity"] = float(own if name == "NCL" else other)
    rows.append(row)
  return rows


def measured(f: Features, labels: Labels, seed: int) -> dict[str, float]:
  """Of one set of features."""
  k = labels.num_classes
  # With both signs; where nothing is negative that is the same as with one.
  found = meaning.statistics(f.train, labels.train, f.test, labels.test, k, seed=seed)
  one = metrics.naming_accuracy(f.train, labels.train, f.test, labels.test, k)
  found["naming_one_sign"] = float(one)
  half = np.bincount(labels.test).min() / 2 / len(labels.test)
  for budget in BUDGETS:
    purity = metrics.energy_weighted_purity(
      f.test, labels.test, k, budget=min(budget, half)
    )
    found[f"ewp_{budget}"] = float(purity)
  stats = feature_stats.statistics(
    f.test, labels.test, k, threshold=1e-5, activation_rate=0.03, seed=seed
  )
  for name in ("sparsity", "l0", "zero_rows", "purity"):
    found[name] = stats[name]
  found["live_dimensions"] = stats["active_dimensions"]
  guess = metrics.knn_predict(f.train, labels.train, f.test, k)
  found["neighbours"] = float(np.mean(np.asarray(guess) == labels.test))
  return found


def alignment(runs: Sequence[Features], seeds: Sequence[int]) -> list[float]:
  """Of each seed's dimensions with the next one's, in a ring."""
  pairs = zip(runs, [*runs[1:], runs[0]], seeds, strict=True)
  return [
    axes.agreement(a.train, b.train, a.test, b.test, threshold=1e-5, seed=seed)[
      "alignment"
    ]
    for a, b, seed in pairs
  ]


def verdicts(rows: Sequence[dict[str, Any]]) -> list[str]:
  """The two preregistered sentences, from the rows of all seeds."""

  def values(features, key):
    found = {row["seed"]: row[key] for row in rows if row["features"] == features}
    return [found[seed] for seed in sorted(found)]

  ncl = values("NCL", "naming")
  cl = np.maximum(values("CL", "naming"), values("CL", "naming_one_sign"))
  above = paired(ncl, cl)
  gain = paired(values("NCL", "axis_gain"), np.zeros(len(ncl)))
  control = np.mean(ncl) > np.mean(values("untrained", "naming"))
  if min(above.mean, gain.mean) <= 0:
    first = "not seen"
  elif (
    above.interval and gain.interval and min(above.interval[0], gain.interval[0]) > 0
  ):
    first = "seen" if control else "undecided"
  else:
    first = "undecided"
  best = max(
    ((name, key) for name in POST_HOC for key in ("naming", "naming_one_sign")),
    key=lambda rival: float(np.mean(values(*rival))),
  )
  beside = paired(ncl, values(*best))
  second = "undecided"
  if beside.interval:
    if beside.interval[0] > -MARGIN:
      second = "seen"
    elif beside.interval[1] < -MARGIN:
      second = "refuted"
  return [
    f"1. NCL's axes name classes: {first}. NCL minus CL {points(above)}, axis gain "
    f"{points(gain)}.",
    f"2. At least as good as the best post-hoc method ({best[0]}), margin "
    f"{100 * MARGIN:g} points: {second}. NCL minus rival {points(beside)}.",
  ]


def points(difference: statistics.Difference) -> str:
  """A difference of shares in points, with its interval."""
  text = f"{100 * difference.mean:+.1f} points"
  if difference.interval:
    low, high = (100 * x for x in difference.interval)
    text += f" [{low:+.1f}, {high:+.1f}], n = {difference.pairs}"
  return text


COLUMNS = {
  "naming": "naming",
  "naming_one_sign": "one sign",
  "axis_gain": "axis gain",
  "naming_chance": "chance",
  "ewp": "EWP",
  "ewp_gain": "EWP gain",
  "ewp_chance": "chance",
  "consistency_at_ncls_activity": "consistency",
  "neighbours": "neighbours on f",
  "l0": "active an image",
}


def table(rows: Sequence[dict[str, Any]]) -> str:
  """Means over seeds, in per cent but for the active dimensions, as Markdown."""
  lines = [
    "| f | " + " | ".join(COLUMNS.values()) + " |",
    "|---|" + "--:|" * len(COLUMNS),
  ]
  for name in dict.fromkeys(row["features"] for row in rows):
    cells = []
    for key in COLUMNS:
      mean = np.mean([row[key] for row in rows if row["features"] == name])
      cells.append(f"{mean:.1f}" if key == "l0" else f"{100 * mean:.1f}")
    lines.append(f"| {name} | " + " | ".join(cells) + " |")
  return "\n".join(lines)
