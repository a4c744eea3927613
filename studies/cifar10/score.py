r"""Scores the ten runs of `run.py` on the test images, once all of them are finished.

  python -m studies.cifar10.score --source=arrays:cifar10.npz --out=runs/cifar10-study

Reads the test images for the first time. Writes OUT/data/scores.jsonl and scores.json,
and prints the README's table and verdicts. Some minutes on two cores.
"""

import argparse
import json
import pathlib
from typing import Any

import numpy as np
from absl import logging

from ncl_jax import metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators import logistic_regression
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.experiments import baseline_features
from ncl_jax.runtime import compile_cache, jsonl
from ncl_jax.training import workdir as workdir_lib
from studies import scores
from studies.cifar10.run import METHODS, PLAN, Plan

GATE = 0.05  # by which CL's h must beat pixels


def main() -> None:
  """Scores all seeds and prints the tables."""
  parser = arguments(__doc__)
  _, out = score(PLAN, parser, parser.parse_args())
  print("\n".join(tables(out / "data")))


def arguments(description: str | None) -> argparse.ArgumentParser:
  """The flags of a study's scoring."""
  parser = argparse.ArgumentParser(
    description=description, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--source", required=True, help="the data, FORM:PATH")
  parser.add_argument("--out", required=True, help="folder that run.py wrote")
  return parser


def score(plan: Plan, parser, flags) -> tuple[Source, pathlib.Path]:
  """Scores all seeds; returns the data and the absolute folder."""
  logging.set_verbosity(logging.WARNING)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  finished = {(r["method"], r["seed"]) for r in jsonl.read(out / "data" / "runs.jsonl")}
  missing = [f"{m} {s}" for s in plan.seeds for m in METHODS if (m, s) not in finished]
  if missing:
    parser.error(f"runs that are not finished: {', '.join(missing)}. Repeat run.py")
  source = workdir_lib.load_source(plan.settings("cl", flags.source))
  rows: list[dict[str, Any]] = []
  kept: dict[str, list[scores.Features]] = {method: [] for method in METHODS}
  accuracy: dict[str, list[float]] = {}
  labels = None
  for seed in plan.seeds:
    of = {}
    for method in METHODS:
      run = open_run(out / f"seed{seed}" / method, source=source)
      train, test = both(run)
      labels = scores.Labels(train.labels, test.labels, source.num_classes)
      of[method] = in_f(run, train, test)
      for name, value in on_h(train, test, labels, seed).items():
        accuracy.setdefault(f"{method}_{name}", []).append(value)
    fresh = in_f(run, *both(run.untrained()))
    rows += scores.seed_rows(of["cl"], of["ncl"], fresh, labels, seed)
    jsonl.write(out / "data" / "scores.jsonl", rows)
    for method in METHODS:
      kept[method].append(of[method])
  pixels = [
    baseline_features.Pixels(run.config, source, run.mesh).extract(split)
    for split in ("train", "test")
  ]
  document = {
    "alignment": {m: scores.alignment(f, list(plan.seeds)) for m, f in kept.items()},
    "accuracy": accuracy,
    "pixels": neighbours(pixels[0].h, pixels[1].h, labels),
  }
  (out / "data" / "scores.json").write_text(json.dumps(document, indent=1) + "\n")
  return source, out


def both(run: Run):
  """The features of the training and of the test images."""
  return run.extract("train"), run.extract("test")


def in_f(run: Run, train, test) -> scores.Features:
  """What the loss compared."""
  return scores.Features(
    *(x.layer("f", run.config.loss.transform) for x in (train, test))
  )


def neighbours(train: np.ndarray, test: np.ndarray, labels: scores.Labels) -> float:
  """Accuracy of 20 nearest neighbours by cosine similarity."""
  guess = metrics.knn_predict(train, labels.train, test, labels.num_classes)
  return float(np.mean(np.asarray(guess) == labels.test))


def on_h(train, test, labels: scores.Labels, seed: int) -> dict[str, float]:
  """Accuracies on h."""
  probe = logistic_regression.probe(
    train.h,
    labels.train,
    test.h,
    labels.test,
    num_classes=labels.num_classes,
    seed=seed,
  )
  found = neighbours(train.h, test.h, labels)
  return {"neighbours_h": found, "probe_h": probe["accuracy"]}


def tables(folder: pathlib.Path) -> list[str]:
  """The README's table, gate and verdicts, from the data."""
  rows = jsonl.read(folder / "scores.jsonl")
  document = json.loads((folder / "scores.json").read_text())
  accuracy = document["accuracy"]
  cl = float(np.mean(accuracy["cl_neighbours_h"]))
  passed = cl >= document["pixels"] + GATE
  gate = "passed" if passed else "failed, no verdict"
  lines = [
    scores.table(rows),
    "",
    f"Gate: neighbours on CL's h {100 * cl:.1f} %, on pixels "
    f"{100 * document['pixels']:.1f} %: {gate}.",
  ]
  if passed:
    lines += ["", *scores.verdicts(rows)]
  lines.append("")
  for name, what in (("neighbours_h", "Neighbours on h"), ("probe_h", "Probe on h")):
    difference = scores.paired(accuracy[f"ncl_{name}"], accuracy[f"cl_{name}"])
    lines.append(
      f"{what}: CL {100 * np.mean(accuracy[f'cl_{name}']):.1f} %, NCL minus CL "
      f"{scores.points(difference)}."
    )
  aligned = document["alignment"]
  difference = scores.paired(aligned["ncl"], aligned["cl"])
  lines.append(
    f"Cross-seed alignment: CL {100 * np.mean(aligned['cl']):.1f} %, NCL minus CL "
    f"{scores.points(difference)}."
  )
  return lines


if __name__ == "__main__":
  main()
