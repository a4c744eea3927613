r"""Scores the six runs of `run.py` on the test images, once all of them are finished.

  python -m studies.cifar100.score --source=arrays:cifar100.npz \
      --other=arrays:cifar10.npz --out=runs/cifar100-study

Reads the test images for the first time. Writes OUT/data/scores.jsonl, scores.json,
coarse.jsonl and beyond.jsonl, and prints the README's tables and verdicts.
"""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from ncl_jax import metrics
from ncl_jax.data import corruptions
from ncl_jax.data.source import Source, Split
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.runtime import jsonl
from ncl_jax.training import workdir as workdir_lib
from studies import scores
from studies.cifar10 import score as shared
from studies.cifar10.run import METHODS
from studies.cifar100.run import PLAN

CORRUPTED = 2000  # test images, the first ones
SEVERITY = 3
# The superclass of each class, by the alphabetical order of either.
SUPERCLASSES = np.array(
  [
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
    *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
    *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
    *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
    *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
  ]
)


def main() -> None:
  """Scores all seeds, then what lies beyond the test set, then superclasses."""
  parser = shared.arguments(__doc__)
  parser.add_argument("--other", required=True, help="CIFAR-10, FORM:PATH")
  flags = parser.parse_args()
  out = pathlib.Path(flags.out).expanduser().resolve()
  data = out / "data"
  if not (data / "scores.json").exists():
    shared.score(PLAN, parser, flags)
  source, other = (
    workdir_lib.load_source(PLAN.settings("cl", spec))
    for spec in (flags.source, flags.other)
  )
  for seed in PLAN.seeds:
    for method in METHODS:
      key = {"method": method, "seed": seed}
      rows = jsonl.read(data / "beyond.jsonl")
      if any(all(row[k] == v for k, v in key.items()) for row in rows):
        continue
      run = open_run(out / f"seed{seed}" / method, source=source)
      found = transferred(run, other) | corrupted(run, run.extract("train"))
      jsonl.append(data / "beyond.jsonl", key | found)
  coarse = jsonl.read(data / "coarse.jsonl")
  for seed in PLAN.seeds:
    if all(row["seed"] != seed for row in coarse):
      coarse += superclasses(out / f"seed{seed}", source, seed)
      jsonl.write(data / "coarse.jsonl", coarse)
  print("\n".join(tables(data)))


def superclasses(folder: pathlib.Path, source: Source, seed: int) -> list[dict]:
  """The rows of a seed, scored by the 20 superclasses."""
  of = {}
  for method in METHODS:
    run = open_run(folder / method, source=source)
    train, test = shared.both(run)
    of[method] = shared.in_f(run, train, test)
  fresh = shared.in_f(run, *shared.both(run.untrained()))
  labels = scores.Labels(
    SUPERCLASSES[train.labels], SUPERCLASSES[test.labels], SUPERCLASSES.max() + 1
  )
  return scores.seed_rows(of["cl"], of["ncl"], fresh, labels, seed)


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


BEYOND = {
  "transfer": "CIFAR-10's images",
  "clean": f"{CORRUPTED:,} test images",
  "corrupted": "the same, corrupted",
}


def tables(folder: pathlib.Path) -> list[str]:
  """The README's tables, gate and verdicts, from the data."""
  lines = shared.tables(folder)
  if coarse := jsonl.read(folder / "coarse.jsonl"):
    lines += ["", scores.table(coarse), "", *scores.verdicts(coarse)]
  rows = jsonl.read(folder / "beyond.jsonl")
  if not rows:
    return lines
  lines += [
    "",
    "| images | score | CL | NCL | NCL minus CL |",
    "|---|---|--:|--:|---|",
  ]
  for prefix, images in BEYOND.items():
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


if __name__ == "__main__":
  main()
