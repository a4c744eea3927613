r"""Every method with and without the transform, on few images.

  python -m studies.families.run --out=runs/families --stage=tune
  python -m studies.families.run --out=runs/families --stage=train
  python -m studies.families.run --out=runs/families --stage=report

First each method's learning rate is chosen by the nearest neighbours of training
images that no run trains on. Then it trains with that one, and the test images ask.
Then the tables. A run that is complete is not made again; --only takes some of the
cells, so that several processes can share the work.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from benchmarks import measure
from configs import fashion_mnist
from ncl_jax import features, methods, metrics
from ncl_jax.data.source import Source
from ncl_jax.data.subset import stratified, take
from ncl_jax.evaluators import feature_stats
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.experiments import baseline_features
from ncl_jax.runtime import compile_cache, jsonl
from ncl_jax.training import loop
from ncl_jax.training import workdir as workdir_lib
from studies.families.tables import WIDTH, best, tables

_NAMES = ("spectral", "moco_v3", "byol", "dino", "barlow_twins", "vicreg")
METHODS = ("cl", "ncl", *(name + end for name in _NAMES for end in ("", "_ncl")))
HELD_OUT = 5000  # training images that choose the learning rate


def main() -> None:
  """Tunes, trains or reports."""
  flags = parse()
  logging.set_verbosity(logging.WARNING)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  cells = [c for c in METHODS if not flags.only or c in flags.only]
  if flags.stage == "report":
    report(out)
    return
  test = halves(flags)
  if flags.stage == "tune":
    for rate in flags.rates:
      for cell in cells:
        measured(cell, rate, 0, out / "tuning", test["tune"], flags)
    return
  chosen = best(tuning(out))
  for seed in range(1, 1 + flags.seeds):
    for cell in cells:
      measured(cell, chosen[cell], seed, out / "final", test["final"], flags)


def parse() -> argparse.Namespace:
  """The flags; their defaults are the study's budget."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--out", default="runs/families", help="folder for all of it")
  parser.add_argument("--stage", choices=("tune", "train", "report"), required=True)
  parser.add_argument("--only", nargs="+", choices=METHODS, default=[])
  parser.add_argument("--source", default="", help="data; default: the config's")
  parser.add_argument("--examples", type=int, default=1000, help="training images")
  parser.add_argument("--labelled", type=int, default=200, help="of them, the bank")
  parser.add_argument("--image_size", type=int, default=8, help="pixels a side")
  parser.add_argument("--width", type=int, default=8, help="of the network")
  parser.add_argument("--batch", type=int, default=128, help="images a step")
  parser.add_argument("--epochs", type=int, default=50)
  # Decay of the momentum encoder for hundreds of steps; recipes have 100,000.
  parser.add_argument("--momentum", type=float, default=0.95)
  parser.add_argument("--rates", type=float, nargs="+", default=(4e-3, 1e-3, 1.6e-2))
  parser.add_argument("--seeds", type=int, default=2)
  return parser.parse_args()


def base(cell: str, flags: argparse.Namespace) -> ConfigDict:
  """The settings of a cell but for its learning rate and seed: one budget for all."""
  config = fashion_mnist.get_config(cell)
  config.data.source = flags.source or config.data.source
  config.data.image_size = flags.image_size
  config.data.train_examples = flags.examples
  config.model.width = flags.width
  config.model.projector_hidden = config.model.projector_out = WIDTH
  if methods.of(config).prototypes:
    config.loss.prototypes = WIDTH
  if methods.of(config).momentum_encoder:
    config.loss.ema_decay = flags.momentum
  config.train.batch_size = flags.batch
  config.train.epochs = config.train.checkpoint_every_epochs = flags.epochs
  config.train.cpu_devices = 1
  config.optimizer.update(name="adamw", weight_decay=1e-4)
  config.optimizer.warmup_epochs = 0.1 * flags.epochs
  # Few grey pixels: what the usual crops and colours leave of them is too alike.
  config.augment.update(crop_scale=(0.3, 1.0), brightness=0.4, contrast=0.4, blur=0.0)
  return config


def halves(flags: argparse.Namespace) -> dict[str, Source]:
  """The training images, and who asks: others of them ("tune"), the test ("final")."""
  config = base("cl", flags)
  config.data.train_examples = 0
  whole = workdir_lib.load_source(config)
  split = whole.split("train")
  rows = stratified(split.labels, flags.examples)
  rest = np.setdiff1d(np.arange(len(split)), rows)
  count = min(HELD_OUT, len(rest))
  asked = {
    "tune": take(split, rest[stratified(split.labels[rest], count)]),
    "final": whole.split("test"),
  }
  return {
    name: dataclasses.replace(whole, splits={"train": take(split, rows), "test": test})
    for name, test in asked.items()
  }


def measured(
  cell: str,
  rate: float,
  seed: int,
  folder: pathlib.Path,
  source: Source,
  flags: argparse.Namespace,
) -> None:
  """Trains and evaluates a run, unless it was; folder/RUN.json gets what was found."""
  file = folder / f"{cell.replace(' ', '-')}-{rate:g}-seed{seed}.json"
  if file.exists():
    return
  config = base(cell, flags)
  config.seed = seed
  config.optimizer.learning_rate = rate
  row = {"cell": cell, "learning rate": rate, "seed": seed}
  try:
    run = loop.train(config, file.with_suffix(""), source)
    row |= look(open_run(run, source=source), flags.labelled)
  except FloatingPointError:
    row["diverged"] = True
  # Whole or not at all: another process may be reading.
  draft = file.with_suffix(".draft")
  draft.write_text(json.dumps(row, indent=1) + "\n")
  os.replace(draft, file)
  print(f"{file.name}: {row.get('h, few')} of {row.get('untrained, few')}", flush=True)


def look(run: Run, labelled: int) -> dict[str, float]:
  """Neighbours with few and all labels, also of the controls; the state of f and h."""
  config = run.config
  sources = {
    "h": run,
    "untrained": run.untrained(),
    "pixels": baseline_features.Pixels(config, run.source, run.mesh),
  }
  row = {}
  for name, seen in sources.items():
    bank, test = seen.extract("train"), seen.extract("test")
    few = stratified(bank.labels, labelled)
    for layer in ("h", "f") if name == "h" else ("h",):
      shown = layer if name == "h" else name
      for word, rows in (("few", few), ("all", np.arange(len(bank.labels)))):
        row[f"{shown}, {word}"] = neighbours(config, bank, test, rows, layer)
    if name == "h":
      for layer in ("h", "f"):
        found = statistics_of(config, test, layer)
        row |= {f"{key}, {layer}": value for key, value in found.items()}
  rows = [r for r in jsonl.read(run.path / "metrics.jsonl") if "loss" in r]
  last = [r for r in rows if "epoch_live_dimensions" in r]
  row["loss"] = rows[-1]["loss"]
  row["loss, collapsed"] = collapsed_loss(config)
  row["live, by epoch"] = [int(r["epoch_live_dimensions"]) for r in last]
  row["rank, by epoch"] = [round(r["effective_rank"], 2) for r in last]
  return row


def neighbours(
  config: ConfigDict,
  bank: features.Features,
  test: features.Features,
  rows: np.ndarray,
  layer: str,
) -> float:
  """Top-1 in percent of the weighted neighbours among some rows of the bank."""
  x, asked = (f.layer(layer, config.loss.transform) for f in (bank, test))
  predicted = metrics.knn_predict(
    x[rows],
    bank.labels[rows],
    asked,
    int(bank.labels.max()) + 1,
    k=min(config.eval.knn_k, len(rows)),
    temperature=config.eval.knn_temperature,
  )
  return 100 * float(np.mean(np.asarray(predicted) == test.labels))


def statistics_of(
  config: ConfigDict, test: features.Features, layer: str
) -> dict[str, float]:
  """What the table says of a layer's dimensions; shares in percent."""
  found = feature_stats.statistics(
    test.layer(layer, config.loss.transform),
    test.labels,
    int(test.labels.max()) + 1,
    threshold=config.eval.threshold,
    activation_rate=config.eval.activation_rate,
    seed=config.seed,
  )
  return {
    "sparsity": 100 * found["sparsity"],
    "consistency": 100 * found["consistency_abs"],
    "live": found["active_dimensions"],
    "rank": found["effective_rank"],
  }


def collapsed_loss(config: ConfigDict) -> float:
  """The loss of features that are alike for all images, at its best."""
  settings, n = config.loss, config.train.batch_size
  loss = {
    "nt_xent": math.log(2 * n - 1),
    "moco_v3": 4 * settings.temperature * math.log(n),
    "byol": 0.0,
    "dino": math.log(max(settings.prototypes, 1)),  # a teacher that is centred
    "barlow_twins": config.model.projector_out,
    "vicreg": 2 * settings.variance * 0.99,
    "spectral": -1.0,
  }[settings.name]
  return settings.weight * loss


def tuning(out: pathlib.Path) -> list[dict[str, Any]]:
  """The learning rates that were tried, with the held-out accuracy on h."""
  rows = [json.loads(p.read_text()) for p in (out / "tuning").glob("*.json")]
  return [
    {k: row.get(k) for k in ("cell", "learning rate", "h, few", "rank, f")}
    for row in sorted(
      rows, key=lambda r: (METHODS.index(r["cell"]), r["learning rate"])
    )
  ]


def report(out: pathlib.Path) -> None:
  """Writes what was found into two small files, and the tables."""
  found = [json.loads(p.read_text()) for p in (out / "final").glob("*.json")]
  found.sort(key=lambda row: (METHODS.index(row["cell"]), row["seed"]))
  measure.finish("Held-out top-1, %", tuning(out), str(out / "tuning.json"))
  # A run a line: each has two lists as long as its training.
  lines = ",\n".join(json.dumps(row) for row in found)
  (out / "families.json").write_text(f'{{"rows": [\n{lines}\n]}}\n')
  (out / "tables.md").write_text("\n".join(tables(out)) + "\n")
  print(f"written: {out}")


if __name__ == "__main__":
  main()
