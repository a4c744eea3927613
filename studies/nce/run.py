r"""CE against NCE: with and without a projector, from scratch and from an NCL run.

  python -m studies.nce.run --out=runs/supervised

Each of the eight cells is tuned over learning rate and scale of the logits on a fifth
of the training images that is held out, with one seed; then trained on all of them with
three other seeds. The figure, the tables and every run are under --out; a run that is
complete is not made again. Time is counted in steps; what one takes stands beside them.
"""

import argparse
import dataclasses
import json
import pathlib
import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from absl import logging
from ml_collections import ConfigDict

from benchmarks import measure
from benchmarks.measure import table
from configs import fashion_mnist
from ncl_jax.data.source import Source
from ncl_jax.data.subset import divide
from ncl_jax.errors import InputError
from ncl_jax.host import paths
from ncl_jax.report.figures import classifiers, drawing
from ncl_jax.runtime import compile_cache, jsonl
from ncl_jax.training import loop
from ncl_jax.training import workdir as workdir_lib

METHODS = {
  "ce": "CE",
  "nce": "NCE",
  "ce_projector": "CE + projector",
  "nce_projector": "NCE + projector",
}
ORIGINS = ("from scratch", "finetuned")
SHARES = (0.5, 0.8, 0.95)  # of the reference's final accuracy


def main() -> None:
  """Tunes, trains, reports."""
  flags = parse()
  logging.set_verbosity(logging.WARNING)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  whole = workdir_lib.load_source(base("ncl", flags))
  held_out = dataclasses.replace(whole, splits=divide(whole.split("train"), whole.name))
  sweep, chosen = [], {}
  for origin in ORIGINS:
    for method in METHODS:
      rows = tune(origin, method, held_out, out / "tuning", flags)
      sweep += rows
      # A run that diverged has no accuracy.
      best = max(rows, key=lambda row: row["held out"] or 0.0)
      chosen[origin, method] = (best["learning rate"], best["scale"])
  measure.finish("Held-out top-1, %", sweep, str(out / "sweep.json"))

  panels: dict[str, dict[str, list]] = {origin: {} for origin in ORIGINS}
  rows = []
  seconds = {}
  for origin in ORIGINS:
    for method, label in METHODS.items():
      settings = chosen[origin, method]
      runs = [
        fit(origin, method, seed, settings, whole, out, flags)
        for seed in range(1, 1 + flags.seeds)
      ]
      panels[origin][label] = [curve(run) for run in runs]
      seconds[origin, method] = statistics.median(
        jsonl.read(run / "speed.jsonl")[-1]["step_seconds"] for run in runs
      )
    references = {label: label.replace("NCE", "CE") for label in METHODS.values()}
    rows += [
      {"cell": f"{row['cell']}, {origin}"}
      | dict(zip(("learning rate", "scale"), chosen[origin, method], strict=True))
      | {key: value for key, value in row.items() if key != "cell"}
      | {"ms a step": 1000 * seconds[origin, method]}
      for method, row in zip(METHODS, table_of(panels[origin], references), strict=True)
    ]
  note = (
    "Top-1 in percent on the whole test set after the last step; steps to a share of "
    "the final accuracy of CE in the same setting."
  )
  measure.finish("CE against NCE", rows, str(out / "supervised.json"), note)
  picture = classifiers.draw(panels)
  (out / "classifiers.png").write_bytes(picture.wide.png)
  (out / "classifiers.svg").write_bytes(drawing.as_svg(picture))
  (out / "curves.json").write_text(json.dumps(panels))
  (out / "live.json").write_text(json.dumps(live(out), indent=1) + "\n")
  (out / "tables.md").write_text("\n".join(tables(out)) + "\n")
  print(f"written: {out}")


def curve(workdir: str | pathlib.Path) -> list[tuple[int, float]]:
  """The accuracy of a run while it trained.

  Args:
    workdir: of a classifier that was tested on the way.

  Returns:
    (step, top-1 in [0, 1]), steps ascending.

  Raises:
    InputError: if its metrics.jsonl has no such rows.
  """
  file = paths.local(workdir).resolve() / "metrics.jsonl"
  found = classifiers.points(jsonl.read(file))
  if not found:
    raise InputError(
      f"no test accuracy in {file}: allowed are runs of classifiers with "
      "eval.test_every_epochs above 0"
    )
  return found


def steps_to(run: classifiers.Curve, level: float) -> int | None:
  """The first tested step with an accuracy of at least `level`; None without one.

  >>> steps_to([(10, 0.4), (20, 0.7), (30, 0.6)], 0.6)
  20
  """
  return next((step for step, top1 in run if top1 >= level), None)


def table_of(
  cells: Mapping[str, Sequence[classifiers.Curve]], references: Mapping[str, str]
) -> list[dict[str, float | int | str | None]]:
  """A row a cell: final accuracy, and steps to shares of the reference's.

  Args:
    cells: name -> curves, one a seed.
    references: name -> the cell whose final accuracy, the mean over seeds, counts.

  Returns:
    "cell", "seeds", "final", "lowest" and "highest" in percent, and for each of
    `SHARES` "steps to N %", the mean over seeds; None where a seed never got there.
  """
  final = {name: [run[-1][1] for run in runs] for name, runs in cells.items()}
  table = []
  for name, runs in cells.items():
    row: dict[str, float | int | str | None] = {
      "cell": name,
      "seeds": len(runs),
      "final": 100 * float(np.mean(final[name])),
      "lowest": 100 * min(final[name]),
      "highest": 100 * max(final[name]),
    }
    for share in SHARES:
      level = share * float(np.mean(final[references[name]]))
      taken = [steps_to(run, level) for run in runs]
      reached = [steps for steps in taken if steps is not None]
      whole = len(reached) == len(runs)
      row[f"steps to {share:.0%}"] = float(np.mean(reached)) if whole else None
    table.append(row)
  return table


def live(out: pathlib.Path) -> dict[str, int | None]:
  """Dimensions of f that some image of the last epoch activated: run -> number."""
  found = {}
  for file in sorted(out.rglob("metrics.jsonl")):
    rows = [row.get("epoch_live_dimensions") for row in jsonl.read(file)]
    seen = [row for row in rows if row is not None]
    found[str(file.parent.relative_to(out))] = seen[-1] if seen else None
  return found


def tables(out: pathlib.Path) -> list[str]:
  """The comparison, the seeds behind it and the sweep, in Markdown.

  Args:
    out: with supervised.json, curves.json and sweep.json.
  """
  rows = json.loads((out / "supervised.json").read_text())["rows"]
  lines = table([{k: v for k, v in row.items() if k != "ms a step"} for row in rows])
  seeds = []
  for origin, cells in json.loads((out / "curves.json").read_text()).items():
    final = {name: [100 * runs[-1][1] for runs in cells[name]] for name in cells}
    for name, runs in cells.items():
      reference = name.replace("NCE", "CE")
      level = 0.8 * statistics.mean(final[reference]) / 100
      steps = [steps_to(curve, level) for curve in runs]
      one = {"cell": f"{name}, {origin}"}
      one |= {f"seed {i}": value for i, value in enumerate(final[name], 1)}
      one["steps to 80% of CE's final"] = ", ".join(map(str, steps))
      seeds.append(one)
  sweep: dict[str, dict] = {}
  for row in json.loads((out / "sweep.json").read_text())["rows"]:
    cells = sweep.setdefault(row["cell"], {"cell": row["cell"]})
    cells[f"{row['learning rate']:g} x {row['scale']:g}"] = row["held out"]
  return [*lines, "", *table(seeds), "", *table(list(sweep.values()))]


def parse() -> argparse.Namespace:
  """The flags."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--out", default="runs/supervised", help="folder for all of it")
  parser.add_argument("--source", default="", help="data; default: the config's")
  parser.add_argument("--examples", type=int, default=5000, help="training images")
  parser.add_argument("--epochs", type=int, default=15, help="of a classifier")
  parser.add_argument("--pretrain_epochs", type=int, default=50, help="of NCL")
  parser.add_argument("--batch", type=int, default=128, help="images a step")
  parser.add_argument("--width", type=int, default=8, help="of the network")
  parser.add_argument("--image_size", type=int, default=16, help="pixels a side")
  parser.add_argument("--seeds", type=int, default=3, help="of each cell, tuned")
  rates, scales = (0.03, 0.1, 0.3, 1.0), (1.0, 4.0, 16.0)
  parser.add_argument("--rates", type=float, nargs="+", default=rates)
  parser.add_argument("--scales", type=float, nargs="+", default=scales)
  return parser.parse_args()


def base(method: str, flags: argparse.Namespace) -> ConfigDict:
  """The settings that all runs of a method share."""
  config = fashion_mnist.get_config(method)
  config.data.source = flags.source or config.data.source
  config.data.train_examples = flags.examples
  config.data.image_size = flags.image_size
  config.model.width = flags.width
  config.train.batch_size = flags.batch
  pretraining = method == "ncl"
  config.train.epochs = flags.pretrain_epochs if pretraining else flags.epochs
  config.train.checkpoint_every_epochs = config.train.epochs
  config.optimizer.warmup_epochs = min(5.0, 0.1 * config.train.epochs)
  return config


def fit(
  origin: str,
  method: str,
  seed: int,
  settings: tuple[float, float],
  source: Source,
  out: pathlib.Path,
  flags: argparse.Namespace,
) -> pathlib.Path:
  """Trains a classifier, and what it starts from; returns its work directory."""
  config = base(method, flags)
  config.seed = seed
  config.optimizer.learning_rate, config.loss.logit_scale = settings
  if origin == "finetuned":
    before = base("ncl", flags)
    before.seed = seed
    start = loop.train(before, out / f"ncl-seed{seed}", source)
    config.train.init_from = str(start)
  rate, scale = settings
  name = f"{origin.replace(' ', '-')}-{method}-{rate:g}-{scale:g}-seed{seed}"
  return loop.train(config, out / name, source)


def tune(
  origin: str,
  method: str,
  source: Source,
  out: pathlib.Path,
  flags: argparse.Namespace,
) -> list[dict]:
  """The last held-out accuracy at every setting of the grid, seed 0."""
  rows = []
  for rate in flags.rates:
    for scale in flags.scales:
      try:
        run = fit(origin, method, 0, (rate, scale), source, out, flags)
        top1 = 100 * curve(run)[-1][1]
      except FloatingPointError:
        top1 = None
      cell = f"{METHODS[method]}, {origin}"
      rows.append(
        {"cell": cell, "learning rate": rate, "scale": scale, "held out": top1}
      )
  return rows


if __name__ == "__main__":
  main()
