r"""Harder classes: two levels of labels, and two objects in one image.

  python -m studies.harder.run --out=runs/harder

Trains CL and NCL on images of two digits, and opens the runs of two other studies:
Fashion-MNIST (`studies/fashion`; a coarse grouping, its classes) and emoji by two
drawers (`studies/emoji`; category, subcategory). Asks of each dimension of f what it
stands for. A run that is complete is not made again. Some ten minutes on two cores.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import subprocess
from typing import Any

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from benchmarks import measure
from benchmarks.measure import ROOT, machine
from configs import digits
from ncl_jax.errors import InputError
from ncl_jax.evaluators import feature_stats
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.experiments import baseline_features, result_cache
from ncl_jax.runtime import compile_cache
from ncl_jax.training import fingerprints, loop
from studies.harder import meaning, sets
from studies.harder.tables import SETS, tables

SEEDS = {"two": 3, "fashion": 5, "emoji": 2}


def main() -> None:
  """Trains, evaluates, reports."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--fashion", default="runs/fashion", help="of launch.compare")
  parser.add_argument("--emoji", default="runs/emoji", help="of studies.emoji.run")
  parser.add_argument("--out", default="runs/harder", help="folder for all of it")
  parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
  parser.add_argument("--seeds", nargs="+", type=int, help="default: as reported")
  flags = parser.parse_args()
  logging.set_verbosity(logging.WARNING)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  out.mkdir(parents=True, exist_ok=True)
  for name in flags.sets:
    seeds = flags.seeds or range(SEEDS[name])
    try:
      document = measured(name, list(seeds), out, flags)
    except (InputError, FileNotFoundError) as error:
      parser.error(str(error))
    (out / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
  text = "\n".join(tables(out))
  (out / "tables.md").write_text(text + "\n")
  print(f"\n{text}\nwritten: {out}")


def measured(
  name: str, seeds: list[int], out: pathlib.Path, flags: argparse.Namespace
) -> dict[str, Any]:
  """What the file of a set holds: its rows, and the config of the last run."""
  rows: list[dict[str, Any]] = []
  config: dict[str, Any] = {}
  known = result_cache.ResultCache(out / "measured.jsonl")
  for seed in seeds:
    cl, ncl = (
      opened(name, fit(name, method, seed, out, flags)) for method in ("cl", "ncl")
    )
    # Measured anew for other weights, settings, data or code.
    runs = [fingerprints.network(run.config, run.variables) for run in (cl, ncl)]
    of = {"set": name, "seed": seed, "commit": commit(), "runs": runs}
    of |= {"data": fingerprints.data(cl.source)}
    rows += known.get(of, functools.partial(evaluated, name, cl, ncl))["rows"]
    config = json.loads((ncl.path / "config.json").read_text())
  # Where the file lies is nobody's concern.
  kind, _, path = config["data"]["source"].partition(":")
  config["data"]["source"] = f"{kind}:{pathlib.Path(path).name}"
  measure.finish(SETS[name], rows, "")
  return {
    "title": SETS[name],
    "machine": machine(),
    "commit": commit(),
    "config": config,
    "rows": rows,
  }


def commit() -> str:
  """Of the code that runs; "" outside a repository."""
  command = ["git", "rev-parse", "HEAD"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
  return done.stdout.strip()


def fit(
  name: str, method: str, seed: int, out: pathlib.Path, flags: argparse.Namespace
) -> pathlib.Path:
  """Trains a run, where the set has none; returns its work directory."""
  if name == "fashion":
    return pathlib.Path(flags.fashion).resolve() / f"seed{seed}" / method
  if name == "emoji":
    return pathlib.Path(flags.emoji).resolve() / f"drawers-{method}-seed{seed}"
  file = out / "two.npz"
  if not file.exists():
    sets.two_digits(file)
  config = digits.get_config(method)
  config.name = "two digits"
  config.seed = seed
  config.data.source = f"pairs:{file}"
  config.augment.crop_scale = (0.6, 1.0)
  config.train.epochs = 8
  config.train.checkpoint_every_epochs = 4
  config.optimizer.warmup_epochs = 1.0
  return loop.train(config, out / f"{name}-{method}-seed{seed}")


def opened(name: str, run: pathlib.Path) -> Run:
  """A run with its data, of emoji with fewer test images."""
  found = open_run(run)
  if name == "emoji":
    folder = pathlib.Path(found.config.data.source.partition(":")[2]).parent
    found = dataclasses.replace(found, source=sets.emoji(folder, found.source))
  return found


def evaluated(name: str, cl: Run, ncl: Run) -> dict[str, Any]:
  """{"rows": what `evaluate` gives}."""
  return {"rows": evaluate(name, cl, ncl)}


def evaluate(name: str, cl: Run, ncl: Run) -> list[dict[str, Any]]:
  """What the dimensions of two runs of one seed, and of the controls, stand for."""
  seed = ncl.config.seed
  mapped = ncl.config.loss.transform
  fresh = ncl.untrained()
  pixels = baseline_features.fitted(
    baseline_features.Pixels(cl.config, cl.source, cl.mesh), "pca"
  )
  arms = {
    "CL": (cl, "identity"),
    "NCL": (dataclasses.replace(ncl, source=cl.source), mapped),
    "CL + transform": (cl, mapped),
    "untrained + transform": (dataclasses.replace(fresh, source=cl.source), mapped),
    "PCA of pixels": (pixels, "identity"),
  }
  groups = sets.groups(name, cl.source)
  tested, read = {}, {}
  for arm, (seen, transform) in arms.items():

    def features(split, layer, seen=seen, transform=transform):
      return seen.extract(split).layer(layer, transform)

    tested[arm] = features("test", "f")
    if name == "two" and arm != "CL + transform":
      marks = sets.groups(name, cl.source, "train").wide
      read[arm] = {
        f"both_right_{layer}": both_right(
          features("train", layer), marks, features("test", layer), groups.wide
        )
        for layer in ("h", "f")
      }
  f, signed = tested["NCL"], tested["CL"]
  # Not the generator of the chance levels, whose first permutation would undo this one.
  order = np.random.default_rng([seed, 1]).permutation(len(f))
  tested["NCL, images shuffled"] = f[order]
  activity = (np.abs(f) > ncl.config.eval.threshold).mean(0)
  frequent = activity >= ncl.config.eval.activation_rate
  widest = np.argsort(-signed.var(0))[: frequent.sum()]
  tested["NCL, active on 3 % or more"] = f[:, frequent]
  tested["CL, as many of largest variance"] = signed[:, widest]
  return [
    {"arm": arm, "seed": seed, "images": len(f)}
    | described(name, f, groups, ncl.config)
    | read.get(arm, {})
    for arm, f in tested.items()
  ]


def described(
  name: str, f: np.ndarray, groups: meaning.Groups, config: ConfigDict
) -> dict[str, float]:
  """The figures of one feature matrix."""
  options = {"activation_rate": config.eval.activation_rate, "seed": config.seed}
  found = meaning.figures(f, groups, **options)
  found["sparsity"] = float(np.mean(np.abs(f) < config.eval.threshold))
  if name != "two":
    # Class consistency asks for one label an image.
    for level, marks in (("wide", groups.wide), ("narrow", groups.narrow)):
      labels = np.argmax(marks, axis=1)
      values = feature_stats.by_class(
        f, labels, marks.shape[1], threshold=config.eval.threshold, **options
      )
      for rule in ("abs", "positive"):
        for end in ("", "_chance"):
          found[f"consistency_{rule}_{level}{end}"] = values[f"consistency_{rule}{end}"]
  return found


def both_right(
  train_x: np.ndarray, train_marks: np.ndarray, x: np.ndarray, marks: np.ndarray
) -> float:
  """Share of the images of two objects whose classes a linear probe names, both.

  The probe is a ridge regression of the marks on standardised features; it names the
  two classes of the highest values.

  Args:
    train_x: [N, F] features to fit.
    train_marks: bool [N, K], the classes in each image.
    x: [n, F] features to score.
    marks: bool [n, K], two in each row.
  """
  from sklearn.linear_model import Ridge  # seconds that the tables do not need

  mean, std = train_x.mean(0), train_x.std(0) + 1e-6
  probe = Ridge(alpha=1.0).fit((train_x - mean) / std, train_marks.astype(float))
  named = np.argsort(-probe.predict((x - mean) / std), axis=1)[:, :2]
  return float(np.take_along_axis(marks, named, axis=1).all(1).mean())


if __name__ == "__main__":
  main()
