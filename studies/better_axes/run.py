r"""Recipes of NCL and CL on frozen features, chosen by whose dimensions name classes.

  python -m studies.better_axes.run --data=cifar100.npz --features=runs/frozen \
      --out=runs/better_axes --stage=all

--features is the folder of studies.frozen.run after its stage features. The stages
search, train and score resume; README.md says how a recipe is chosen.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from absl import logging

from ncl_jax import metrics
from ncl_jax.data.subset import stratified
from ncl_jax.experiments import rivals
from ncl_jax.runtime import compile_cache, jsonl
from studies import scores
from studies.better_axes.projectors import (
  ACTIVE,
  BASE,
  Inputs,
  Recipe,
  embedded,
  ideas,
  recipe,
  trained,
)
from studies.better_axes.tables import tables, value
from studies.frozen.run import TRAINING, loaded

STAGES = ("search", "train", "score")
TUNING_SEED = 100
SEEDS = (31, 32, 33)
CLUSTERS = (256, 512)
WORTH = 0.005  # gain in naming from which on an idea is combined with others


def main() -> None:
  """The stages in order."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--data", required=True, help="CIFAR-100 as .npz")
  parser.add_argument("--features", required=True, help="folder of studies.frozen.run")
  parser.add_argument("--out", required=True, help="folder for all of it")
  parser.add_argument("--stage", choices=("all", *STAGES), default="all")
  flags = parser.parse_args()
  logging.set_verbosity(logging.INFO)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  (out / "data").mkdir(parents=True, exist_ok=True)
  with np.load(flags.data) as arrays:
    train, test = arrays["train_labels"], arrays["test_labels"]
  rows = stratified(train, min(TRAINING, len(train) * 2 // 3))
  rest = np.setdiff1d(np.arange(len(train)), rows)
  h = pathlib.Path(flags.features).expanduser()
  inputs = Inputs(loaded(h / "views"), loaded(h / "train"))
  k = 1 + int(train.max())
  for stage in STAGES if flags.stage == "all" else (flags.stage,):
    if stage == "search":
      held_out = Asked(
        loaded(h / "held_out"), scores.Labels(train[rows], train[rest], k)
      )
      for method in BASE:
        search(method, functools.partial(held_out_row, inputs, held_out, out))
    elif stage == "train":
      for seed in SEEDS:
        for method in BASE:
          trained(inputs, best(out, method), seed, out)
    else:
      score(
        inputs,
        Asked(loaded(h / "test"), scores.Labels(train[rows], test, k)),
        out,
      )
      print("\n".join(tables(out / "data")))


@dataclasses.dataclass(frozen=True)
class Asked:
  """Images that are scored, and the labels of training images and of these."""

  h: np.ndarray
  labels: scores.Labels


def post_hoc(f: scores.Features, seed: int) -> dict[str, scores.Features]:
  """The methods applied after CL."""
  codes = {
    f"k-means, {n}": rivals.kmeans(f.train, n, ACTIVE, seed) for n in CLUSTERS
  } | {
    f"varimax, {share:.0%}": rivals.varimax(f.train, share) for share in (0.95, 0.99)
  }
  return {name: scores.made(encode, f) for name, encode in codes.items()}


def namings(f: scores.Features, labels: scores.Labels) -> tuple[float, float]:
  """Naming accuracy with one sign and with both."""
  arguments = (f.train, labels.train, f.test, labels.test, labels.num_classes)
  one, both = (
    float(metrics.naming_accuracy(*arguments, signed=signed))
    for signed in (False, True)
  )
  return one, both


def held_out_row(
  inputs: Inputs,
  held_out: Asked,
  out: pathlib.Path,
  method: str,
  names: tuple[str, ...],
) -> dict[str, Any]:
  """The row of a recipe in the search, made if it is not there yet."""
  file = out / "data" / "search.jsonl"
  for row in jsonl.read(file):
    if row["method"] == method and row["ideas"] == list(names):
      return row
  made = recipe(method, names)
  params = trained(inputs, made, TUNING_SEED, out)
  f = scores.Features(
    *(embedded(inputs, made, params, h) for h in (inputs.h, held_out.h))
  )
  labels = held_out.labels
  row = {"method": method, "ideas": list(names), "naming": max(namings(f, labels))}
  if method == "cl":
    found = post_hoc(f, TUNING_SEED)
    row["post_hoc"] = {name: max(namings(code, labels)) for name, code in found.items()}
  guess = metrics.knn_predict(f.train, labels.train, f.test, labels.num_classes)
  row["neighbours"] = float(np.mean(np.asarray(guess) == labels.test))
  row["active"] = float((np.abs(f.test) > 1e-5).sum(1).mean())
  jsonl.append(file, row)
  logging.info("%s", row)
  return row


def search(
  method: str, row: Callable[[str, tuple[str, ...]], dict[str, Any]]
) -> tuple[str, ...]:
  """Each idea, then those that help together.

  Args:
    method: "cl" or "ncl".
    row: makes the row of a method and some ideas.

  Returns:
    The ideas of the best row.
  """
  base = value(row(method, ()))
  alone = {name: value(row(method, (name,))) for name in ideas(method)}
  helpful = [name for name in alone if alone[name] >= base + WORTH]
  helpful.sort(key=lambda name: -alone[name])
  if not helpful:
    return max(((), *((name,) for name in alone)), key=lambda n: value(row(method, n)))
  chosen: tuple[str, ...] = (helpful[0],)
  highest = alone[helpful[0]]
  for name in sorted(helpful[1:], key=lambda name: name == "long"):
    found = value(row(method, (*chosen, name)))
    if found > highest:
      chosen, highest = (*chosen, name), found
  return chosen


def best(out: pathlib.Path, method: str) -> Recipe:
  """The recipe that the search chose."""
  rows = [r for r in jsonl.read(out / "data" / "search.jsonl") if r["method"] == method]
  return recipe(method, tuple(max(rows, key=value)["ideas"]))


def score(inputs: Inputs, test: Asked, out: pathlib.Path) -> None:
  """The measures of the runs that count; of the post-hoc methods the naming alone."""
  rows = []
  for seed in SEEDS:
    for method in BASE:
      made = best(out, method)
      params = trained(inputs, made, seed, out)
      f = scores.Features(
        *(embedded(inputs, made, params, h) for h in (inputs.h, test.h))
      )
      row = {"features": method.upper(), "seed": seed, "dimensions": made.out}
      rows.append(row | scores.measured(f, test.labels, seed))
      for name, code in (post_hoc(f, seed) if method == "cl" else {}).items():
        one, both = namings(code, test.labels)
        row = {"features": name, "seed": seed, "dimensions": code.test.shape[1]}
        rows.append(row | {"naming": both, "naming_one_sign": one})
    jsonl.write(out / "data" / "scores.jsonl", rows)
  recipes = {method: dataclasses.asdict(best(out, method)) for method in BASE}
  (out / "data" / "recipes.json").write_text(json.dumps(recipes, indent=1) + "\n")


if __name__ == "__main__":
  main()
