r"""One long run of CL and of NCL on CIFAR-10, scored as training goes on.

  python -m studies.cifar10.long --source=arrays:cifar10.npz --out=runs/cifar10-long

Trains both, or resumes. Then scores the kept checkpoints on the test images, writes
OUT/data/long.jsonl and two pictures of top images, and prints the README's table.
"""

import json
import pathlib
from typing import Any

import numpy as np
from absl import logging

from ncl_jax import metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators.run import open_run
from ncl_jax.experiments import rivals
from ncl_jax.runtime import compile_cache, jsonl
from ncl_jax.training import workdir as workdir_lib
from studies import pictures, scores
from studies.cifar10 import run as study
from studies.cifar10.score import arguments, both, in_f, on_h

PLAN = study.Plan("cifar10_small", (16,), 30, study.CHOSEN, kept_every=6)
CLASSES = (
  *("airplane", "automobile", "bird", "cat", "deer"),
  *("dog", "frog", "horse", "ship", "truck"),
)
ACTIVE = 18  # clusters that stay of an image: as many as NCL's dimensions there


def main() -> None:
  """Trains, then scores."""
  parser = arguments(__doc__)
  flags = parser.parse_args()
  logging.set_verbosity(logging.INFO)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  (out / "data").mkdir(parents=True, exist_ok=True)
  source = workdir_lib.load_source(PLAN.settings("cl", flags.source))
  (seed,) = PLAN.seeds
  for method, rate in study.CHOSEN.items():
    study.fit(PLAN, method, rate, seed, source, out, flags.source)
  file = out / "data" / "long.jsonl"
  steps = len(source.split("train")) // 256 * PLAN.kept_every
  for method in study.CHOSEN:
    for count in range(1, 1 + PLAN.epochs // PLAN.kept_every):
      key = {"method": method, "epochs": count * PLAN.kept_every}
      if scores.has_row(file, key):
        continue
      path = out / f"seed{seed}" / method
      measured = _measured(open_run(path, count * steps, source=source), seed)
      jsonl.append(file, key | measured)
      logging.info("%s", json.dumps(key))
  print("\n".join(tables(out / "data")))
  _draw(out, source, seed)


def _draw(out: pathlib.Path, source: Source, seed: int) -> None:
  """Pictures of what the dimensions of the last checkpoints respond to."""
  of = []
  for method in study.METHODS:
    run = open_run(out / f"seed{seed}" / method, source=source)
    of.append(in_f(run, *both(run)))
  test = source.split("test")
  shown = test.images[np.arange(len(test))], test.labels, CLASSES
  pictures.write(*of, shown, seed, out / "data")


def _measured(run, seed: int) -> dict[str, Any]:
  """The scores of a checkpoint, and those of k-means of its f."""
  train, test = both(run)
  labels = scores.Labels(train.labels, test.labels, run.source.num_classes)
  f = in_f(run, train, test)
  row = scores.measured(f, labels, seed) | on_h(train, test, labels, seed)
  clusters = scores.made(rivals.kmeans(f.train, f.train.shape[1], ACTIVE, seed), f)
  row["naming_kmeans"] = float(
    metrics.naming_accuracy(
      clusters.train, labels.train, clusters.test, labels.test, labels.num_classes
    )
  )
  return row


COLUMNS = {
  "naming": "naming",
  "axis_gain": "axis gain",
  "naming_kmeans": "k-means of f",
  "ewp": "EWP",
  "neighbours": "neighbours on f",
  "neighbours_h": "neighbours on h",
  "probe_h": "probe on h",
  "l0": "active an image",
}


def tables(folder: pathlib.Path) -> list[str]:
  """The README's table, from the data."""
  lines = [
    "| epochs | method | " + " | ".join(COLUMNS.values()) + " |",
    "|--:|---|" + "--:|" * len(COLUMNS),
  ]
  rows = jsonl.read(folder / "long.jsonl")
  for row in sorted(rows, key=lambda row: (row["epochs"], row["method"])):
    cells = [
      f"{row[key]:.1f}" if key == "l0" else f"{100 * row[key]:.1f}" for key in COLUMNS
    ]
    start = f"| {row['epochs']} | {row['method'].upper()} | "
    lines.append(start + " | ".join(cells) + " |")
  return lines


if __name__ == "__main__":
  main()
