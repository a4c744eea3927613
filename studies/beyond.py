"""What networks do beyond the test images of their own set: transfer and corruption."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ncl_jax import metrics
from ncl_jax.data import corruptions
from ncl_jax.data.source import Source, Split
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.runtime import jsonl
from studies import scores
from studies.cifar10 import score as shared
from studies.cifar10.run import METHODS

CORRUPTED = 2000  # test images, the first ones
SEVERITY = 3


def measure(out: pathlib.Path, source: Source, other: Source, seeds: Sequence[int]):
  """Appends a row to OUT/data/beyond.jsonl for each run that has none."""
  file = out / "data" / "beyond.jsonl"
  for seed in seeds:
    for method in METHODS:
      key = {"method": method, "seed": seed}
      if scores.has_row(file, key):
        continue
      run = open_run(out / f"seed{seed}" / method, source=source)
      found = transferred(run, other) | corrupted(run, run.extract("train"))
      jsonl.append(file, key | found)


def transferred(run: Run, other: Source) -> dict[str, float]:
  """Scores on another data set, by its own training images' labels."""
  seen = run.on(other)
  train, test = shared.both(seen)
  labels = scores.Labels(train.labels, test.labels, other.num_classes)
  f = shared.in_f(run, train, test)
  return {
    f"transfer_{name}": value
    for name, value in {
      "neighbours_h": shared.neighbours(train.h, test.h, labels),
      "neighbours_f": shared.neighbours(f.train, f.test, labels),
      "naming": _naming(f, labels),
    }.items()
  }


def corrupted(run: Run, train) -> dict[str, float]:
  """Means over all kinds of corruption, and the same images without one."""
  source = run.source
  test = source.split("test")
  labels = test.labels[:CORRUPTED]
  images = test.images[np.arange(CORRUPTED)]
  side = min(source.image_shape[:2])
  found: dict[str, list[float]] = {}

  def add(prefix: str, images: Any) -> None:
    split = Split(images, labels)
    changed = dataclasses.replace(source, splits={"train": split, "test": split})
    seen = run.on(changed, eval_crop=1.0).extract("test")
    asked = scores.Labels(train.labels, labels, source.num_classes)
    f = shared.in_f(run, train, seen)
    for name, value in {
      "neighbours_h": shared.neighbours(train.h, seen.h, asked),
      "neighbours_f": shared.neighbours(f.train, f.test, asked),
      "naming": _naming(f, asked),
    }.items():
      found.setdefault(f"{prefix}_{name}", []).append(value)

  add("clean", images)
  for kind in corruptions.names(source.image_shape[-1]):
    add("corrupted", corruptions.Corrupted(images, kind, SEVERITY, side))
  return {name: float(np.mean(values)) for name, values in found.items()}


def _naming(f: scores.Features, labels: scores.Labels) -> float:
  arguments = (f.train, labels.train, f.test, labels.test, labels.num_classes)
  return max(
    float(metrics.naming_accuracy(*arguments, signed=signed))
    for signed in (False, True)
  )


def table(rows: list[dict[str, Any]], other: str) -> list[str]:
  """The lines of the table; `other` is the set that no network has seen."""
  lines = [
    "| images | score | CL | NCL | NCL minus CL |",
    "|---|---|--:|--:|---|",
  ]
  sets = {
    "transfer": f"{other}'s images",
    "clean": f"{CORRUPTED:,} test images",
    "corrupted": "the same, corrupted",
  }
  for prefix, images in sets.items():
    for name in ("neighbours_h", "neighbours_f", "naming"):
      values = {
        method: [r[f"{prefix}_{name}"] for r in rows if r["method"] == method]
        for method in METHODS
      }
      cl, ncl = (100 * np.mean(values[method]) for method in METHODS)
      difference = scores.points(scores.paired(values["ncl"], values["cl"]))
      score = name.replace("_", " on ")
      lines.append(f"| {images} | {score} | {cl:.1f} | {ncl:.1f} | {difference} |")
  return lines
