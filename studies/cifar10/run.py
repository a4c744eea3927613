r"""CL and NCL on CIFAR-10 from scratch: learning rates, then five seeds of each.

  python -m studies.cifar10.run --source=arrays:cifar10.npz --out=runs/cifar10-study

Chooses each method's learning rate on held-out training images, then trains the seeds,
CL and NCL in turn. Finished runs are not repeated and an interrupted run resumes, so
repeat the command until it prints that all runs are finished. No test image is read.
OUT/data/ gets a line for each finished run; README.md says what is asked of them.
"""

import argparse
import dataclasses
import pathlib
import subprocess
import time
from typing import Any

import jax
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from ncl_jax import metrics
from ncl_jax.config import recipes
from ncl_jax.data.source import Source
from ncl_jax.data.subset import stratified, take
from ncl_jax.evaluators.run import LAYERS, Run, open_run
from ncl_jax.runtime import compile_cache, jsonl
from ncl_jax.training import loop
from ncl_jax.training import workdir as workdir_lib
from studies import scores

METHODS = ("cl", "ncl")
RATES = (0.2, 0.4, 0.8)
TUNING_SEED = 100
TUNING_EPOCHS = 4
WIDTH = 8  # of the backbone's first stage
HELD_OUT = 0.1  # of the training images, for choosing the learning rate


@dataclasses.dataclass(frozen=True)
class Plan:
  """The runs of a study.

  Attributes:
    recipe: name of a config file.
    seeds: of the runs that count, one of each method.
    epochs: of these runs.
    rates: learning rate of each method; None chooses them on held-out images.
    kept_every: epochs between the checkpoints that stay; 0 keeps the newest two.
  """

  recipe: str
  seeds: tuple[int, ...]
  epochs: int
  rates: dict[str, float] | None = None
  kept_every: int = 0

  def settings(self, method: str, source: str) -> ConfigDict:
    """The config file's settings with the data's source."""
    config = recipes.load(self.recipe, method)
    config.data.source = source
    config.model.width = WIDTH
    return config


# Found for each method on CIFAR-10's held-out images.
CHOSEN = {"cl": 0.2, "ncl": 0.4}
PLAN = Plan("cifar10_small", (11, 12, 13, 14, 15), 12)


def main() -> None:
  """Tunes, then trains."""
  run(PLAN, __doc__)


def run(plan: Plan, description: str | None) -> None:
  """The command of a study: tunes, then trains."""
  parser = argparse.ArgumentParser(
    description=description, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--source", required=True, help="the data, FORM:PATH")
  parser.add_argument("--out", required=True, help="folder for all runs")
  flags = parser.parse_args()
  logging.set_verbosity(logging.INFO)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  (out / "data").mkdir(parents=True, exist_ok=True)
  source = workdir_lib.load_source(plan.settings("cl", flags.source))
  # Whatever goes wrong below, nothing can look at a test image.
  split = source.split("train")
  held_out = stratified(split.labels, round(HELD_OUT * len(split)))
  kept = np.setdiff1d(np.arange(len(split)), held_out)
  tuning = of_splits(source, take(split, kept), take(split, held_out))
  chosen = plan.rates
  if chosen is None:
    for rate in RATES:
      for method in METHODS:
        tune(plan, method, rate, tuning, out, flags.source)
    chosen = best(jsonl.read(out / "data" / "tuning.jsonl"))
  whole = of_splits(source, split, take(split, held_out))
  for seed in plan.seeds:
    for method in METHODS:
      fit(plan, method, chosen[method], seed, whole, out, flags.source)
  print("all runs are finished", flush=True)


def of_splits(source: Source, training, test) -> Source:
  """The source with other images in its two splits."""
  return dataclasses.replace(source, splits={"train": training, "test": test})


def tune(plan: Plan, method: str, rate: float, source: Source, out, name: str):
  """Trains at a learning rate and scores it on the held-out training images."""
  file = out / "data" / "tuning.jsonl"
  key = {"method": method, "rate": rate, "seed": TUNING_SEED}
  if scores.has_row(file, key):
    return
  config = plan.settings(method, name)
  config.seed = TUNING_SEED
  config.optimizer.learning_rate = rate
  config.train.epochs = TUNING_EPOCHS
  config.optimizer.warmup_epochs = 0.1 * TUNING_EPOCHS
  begun = time.monotonic()
  path = out / "tuning" / f"{method}-rate{rate:g}"
  row: dict[str, Any] = dict(key)
  try:
    loop.train(config, path, source)
  except FloatingPointError as error:
    row["diverged"] = str(error)
  else:
    run = open_run(path, source=source)
    row |= neighbours(run)
    row |= {f"untrained_{k}": v for k, v in neighbours(run.untrained()).items()}
  jsonl.append(file, row | about(begun))


def fit(plan: Plan, method, rate, seed, source: Source, out, name: str) -> None:
  """Trains one of the runs that the verdicts are about; scores nothing."""
  file = out / "data" / "runs.jsonl"
  key = {"method": method, "rate": rate, "seed": seed}
  if scores.has_row(file, key):
    return
  config = plan.settings(method, name)
  config.seed = seed
  config.optimizer.learning_rate = rate
  config.train.epochs = plan.epochs
  config.optimizer.warmup_epochs = 0.1 * plan.epochs
  if plan.kept_every:
    config.train.checkpoint_every_epochs = plan.kept_every
    config.train.checkpoint_every_minutes = 0.0
    config.train.keep_checkpoints = plan.epochs // plan.kept_every
  begun = time.monotonic()
  path = out / f"seed{seed}" / method
  row: dict[str, Any] = dict(key)
  try:
    loop.train(config, path, source)
  except FloatingPointError as error:
    row["diverged"] = str(error)
  last = jsonl.read(path / "metrics.jsonl")[-1]
  row["last"] = {k: v for k, v in last.items() if isinstance(v, int | float)}
  jsonl.append(file, row | about(begun))


def neighbours(run: Run) -> dict[str, float]:
  """Nearest-neighbour accuracy on h and f, as `launch.knn` has it."""
  config = run.config
  bank, asked = run.extract("train"), run.extract("test")
  found = {}
  for layer in LAYERS:
    guess = metrics.knn_predict(
      bank.layer(layer, config.loss.transform),
      bank.labels,
      asked.layer(layer, config.loss.transform),
      run.source.num_classes,
      k=config.eval.knn_k,
      temperature=config.eval.knn_temperature,
    )
    found[f"knn_{layer}"] = float(np.mean(np.asarray(guess) == asked.labels))
  return found


def best(rows: list[dict[str, Any]]) -> dict[str, float]:
  """Method -> the rate with the best neighbours on h; the smaller of equals."""
  scored = [row for row in rows if "knn_h" in row]
  return {
    method: max(
      (row for row in scored if row["method"] == method),
      key=lambda row: (row["knn_h"], -row["rate"]),
    )["rate"]
    for method in METHODS
  }


def about(begun: float) -> dict[str, Any]:
  """What a row needs beside it: time (since the last start), code and versions."""
  root = pathlib.Path(__file__).parent.parent.parent
  command = ["git", "rev-parse", "HEAD"]
  done = subprocess.run(command, cwd=root, capture_output=True, text=True)
  return {
    "seconds_since_start": round(time.monotonic() - begun),
    "commit": done.stdout.strip(),
    "jax": jax.__version__,
  }


if __name__ == "__main__":
  main()
