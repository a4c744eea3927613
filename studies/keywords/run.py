r"""CL beside NCL on pairs of texts: names of symbols and their keywords.

  python -m studies.keywords.make_data --out=symbols
  python -m studies.keywords.run --data=symbols --out=runs/texts

Trains both methods with two seeds and evaluates them on the concepts held out; a run
that is complete is not made again, one that was stopped goes on. Minutes on two cores.
"""

import argparse
import json
import pathlib
import statistics
from typing import Any

import numpy as np
from absl import logging
from sklearn.feature_extraction.text import TfidfVectorizer

from benchmarks import measure
from benchmarks.measure import table
from configs import texts as texts_config
from ncl_jax import metrics
from ncl_jax.evaluators import pairs as evaluator
from ncl_jax.runtime import compile_cache
from ncl_jax.training import loop
from studies.emoji import run as pairs

SIDES = ("text", "caption")


def main() -> None:
  """Trains, evaluates, reports."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--data", default="symbols", help="folder of studies.keywords.make_data"
  )
  parser.add_argument("--out", default="runs/texts", help="folder for all of it")
  parser.add_argument("--seeds", default="0,1", help="with commas between them")
  parser.add_argument("--epochs", type=int, default=20)
  flags = parser.parse_args()
  logging.set_verbosity(logging.WARNING)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  data = pathlib.Path(flags.data).expanduser().resolve() / "names.npz"
  rows: list[dict[str, Any]] = [{"method": "words"} | words_in_common(data)]
  for seed in map(int, flags.seeds.split(",")):
    for method in pairs.METHODS:
      run = fit(method, seed, out, data, flags.epochs)
      rows.append(
        {"method": method, "seed": seed} | pairs.numbers(SIDES, pairs.result(run))
      )
  measure.finish("CL beside NCL, two text towers", rows, str(out / "texts.json"))
  text = "\n".join(tables(out))
  (out / "tables.md").write_text(text + "\n")
  print(f"\n{text}\nwritten: {out}")


def fit(
  method: str, seed: int, out: pathlib.Path, data: pathlib.Path, epochs: int
) -> pathlib.Path:
  """Trains one run; returns its work directory."""
  config = texts_config.get_config(method)
  config.seed = seed
  config.data.source = f"pairs:{data}"
  config.text.length = 40
  config.text.width = 48
  config.text.layers = 1
  config.train.epochs = epochs
  config.train.checkpoint_every_epochs = 5
  # On one device no core waits for another.
  config.train.cpu_devices = 1
  return loop.train(config, out / f"{method}-seed{seed}")


def words_in_common(data: pathlib.Path) -> dict[str, float]:
  """Recall in per cent without learning: cosines of words, rare ones counting more."""
  with np.load(data) as file:
    of = {key: file[key] for key in file if key.endswith(("_texts", "_captions"))}
  words = TfidfVectorizer().fit(np.concatenate(list(of.values())))
  f, g = (
    words.transform(of[f"test_{kind}"]).toarray() for kind in ("texts", "captions")
  )
  groups = np.unique(of["test_captions"], return_inverse=True)[1]
  found = {}
  for (one, two), (x, y) in ((SIDES, (f, g)), (SIDES[::-1], (g, f))):
    recall = metrics.pair_recall(x, y, groups, evaluator.KS)
    found |= {f"{one}_to_{two}@{k}": 100 * value for k, value in recall.items()}
  return found


def tables(out: pathlib.Path) -> list[str]:
  """A line a number, the mean and each seed; and the verdicts. In Markdown.

  Args:
    out: with texts.json.
  """
  rows = json.loads((out / "texts.json").read_text())["rows"]
  of = {m: [row for row in rows if row["method"] == m] for m in pairs.METHODS}
  control = next(row for row in rows if row["method"] == "words")
  control = control | {"label": "words in common"}
  body = pairs.compared("names and keywords", rows, control)
  verdict = [
    {"by what was written down before": name, "verdict": verdict}
    for name, verdict in verdicts(of["cl"], of["ncl"]).items()
  ]
  return [*table(body), "", *table(verdict)]


def verdicts(cl: list[dict[str, Any]], ncl: list[dict[str, Any]]) -> dict[str, str]:
  """The preregistered verdicts, from the rows of both methods, seed by seed."""
  recall = [
    statistics.mean(
      b[f"{one}_to_{two}@10"] - a[f"{one}_to_{two}@10"]
      for one, two in (SIDES, SIDES[::-1])
    )
    for a, b in zip(cl, ncl, strict=True)
  ]
  # How far the worse of the two towers is above CL's.
  sparse = [min(row[f"sparsity, {side}"] for side in SIDES) for row in ncl]
  pure = [
    min(b[f"consistency_abs, {s}"] - a[f"consistency_abs, {s}"] for s in SIDES)
    for a, b in zip(cl, ncl, strict=True)
  ]
  return {
    "costs nothing": _verdict(min(recall) >= -1, max(recall) < -1, recall, "recall@10"),
    "sparse": _verdict(min(sparse) > 50, max(sparse) <= 50, sparse, "zeros, %"),
    "more consistent": _verdict(min(pure) >= 5, max(pure) <= 0, pure, "points"),
  }


def _verdict(seen: bool, not_seen: bool, values: list[float], what: str) -> str:
  word = "seen" if seen else "not seen" if not_seen else "undecided"
  return f"{word} ({what}: {', '.join(f'{x:.1f}' for x in values)})"


if __name__ == "__main__":
  main()
