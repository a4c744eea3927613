r"""CL beside NCL on pairs of two kinds: pictures and names, pictures by two drawers.

  python -m studies.emoji.make_data --out=emoji
  python -m studies.emoji.run --data=emoji --out=runs/emoji

Trains both methods with two seeds on each kind and evaluates them on the concepts held
out; a run that is complete is not made again. Some ten minutes on two cores.
"""

import argparse
import json
import pathlib
import statistics
from typing import Any

from absl import logging

from benchmarks import measure
from benchmarks.measure import table
from configs import pairs as pairs_config
from ncl_jax.evaluators import execute, pairs
from ncl_jax.runtime import compile_cache, jsonl
from ncl_jax.training import loop

# File of studies.emoji.make_data -> the two towers' names in the result.
KINDS = {"text": ("image", "text"), "drawers": ("image", "partner")}
METHODS = {"cl": "CL", "ncl": "NCL"}
FIGURES = {
  "sparsity": 100.0,
  "live_dimensions": 1.0,
  "consistency_abs": 100.0,
  "consistency_abs_chance": 100.0,
  "purity": 100.0,
  "purity_chance": 100.0,
  "orthogonality": 1.0,
}

# A number's name in the stored data -> its key in a result, where they differ.
KEYS = {"live_dimensions": "active_dimensions"}


def main() -> None:
  """Trains, evaluates, reports."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--data", default="emoji", help="folder of studies.emoji.make_data"
  )
  parser.add_argument("--out", default="runs/emoji", help="folder for all of it")
  parser.add_argument("--seeds", type=int, default=2)
  parser.add_argument("--epochs", type=int, default=60)
  flags = parser.parse_args()
  logging.set_verbosity(logging.WARNING)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  rows = []
  for kind in KINDS:
    for method in METHODS:
      for seed in range(flags.seeds):
        run = fit(kind, method, seed, out, flags)
        rows.append(
          {"kind": kind, "method": method, "seed": seed}
          | numbers(KINDS[kind], result(run))
        )
  measure.finish("CL beside NCL, two towers", rows, str(out / "pairs.json"))
  text = "\n".join(tables(out))
  (out / "tables.md").write_text(text + "\n")
  print(f"\n{text}\nwritten: {out}")


def fit(kind: str, method: str, seed: int, out: pathlib.Path, flags) -> pathlib.Path:
  """Trains one run; returns its work directory."""
  config = pairs_config.get_config(method)
  config.seed = seed
  config.data.source = f"pairs:{pathlib.Path(flags.data).resolve() / kind}.npz"
  config.data.image_size = 16
  config.model.width = 8
  config.text.width = 64
  config.train.epochs = flags.epochs
  config.optimizer.learning_rate = 2e-3
  if kind == "drawers":
    config.loss.name = "nt_xent"
    config.loss.learn_temperature = False
  return loop.train(config, out / f"{kind}-{method}-seed{seed}")


def result(run: pathlib.Path) -> dict[str, Any]:
  """What `launch.pairs` says of a run, asked once."""
  file = run / "eval" / "pairs.jsonl"
  if not file.exists():
    execute.run(pairs.evaluate, run)
  return jsonl.read(file)[-1]


def numbers(towers: tuple[str, str], row: dict[str, Any]) -> dict[str, float]:
  """The numbers that are compared: shares in per cent.

  Args:
    towers: their names in the result.
    row: what `launch.pairs` wrote.
  """
  found = {name: 100 * value for name, value in row["recall"].items()}
  for name, value in row.get("zero_shot", {}).items():
    found[f"zero-shot {name}"] = 100 * value
  for tower in towers:
    for name, factor in FIGURES.items():
      found[f"{name}, {tower}"] = factor * row[tower][KEYS.get(name, name)]
  return found


def tables(out: pathlib.Path) -> list[str]:
  """A table a kind, in Markdown: a line a number, the mean and each seed.

  Args:
    out: with pairs.json.
  """
  rows = json.loads((out / "pairs.json").read_text())["rows"]
  lines: list[str] = []
  for kind in KINDS:
    lines += ["", *table(compared(kind, [row for row in rows if row["kind"] == kind]))]
  return lines[1:]


def compared(
  title: str, rows: list[dict[str, Any]], control: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
  """Lines of a table: of each number the methods' means, and their single seeds.

  Args:
    title: of the first column.
    rows: "method" and "seed" of each run, and its `numbers`.
    control: numbers that belong to no seed, and their "label".
  """
  of = {METHODS[m]: [row for row in rows if row["method"] == m] for m in METHODS}
  lines: list[dict[str, Any]] = []
  for name in of["CL"][0]:
    if name in ("kind", "method", "seed"):
      continue
    values = {m: [float(row[name]) for row in of[m]] for m in of}
    line: dict[str, Any] = {title: name}
    line |= {m: statistics.mean(x) for m, x in values.items()}
    if control:
      line[control["label"]] = control.get(name)
    seeds = {m: ", ".join(map(measure.shown, x)) for m, x in values.items()}
    lines.append(line | {f"{m}, seeds": text for m, text in seeds.items()})
  return lines


if __name__ == "__main__":
  main()
