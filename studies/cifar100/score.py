r"""Scores the six runs of `run.py` on the test images, once all of them are finished.

  python -m studies.cifar100.score --source=arrays:cifar100.npz \
      --other=arrays:cifar10.npz --out=runs/cifar100-study

Reads the test images for the first time. Writes OUT/data/scores.jsonl, scores.json,
coarse.jsonl and beyond.jsonl, and prints the README's tables and verdicts.
"""

import pathlib

import numpy as np

from ncl_jax.data.source import Source
from ncl_jax.evaluators.run import open_run
from ncl_jax.runtime import jsonl
from ncl_jax.training import workdir as workdir_lib
from studies import beyond, scores
from studies.cifar10 import score as shared
from studies.cifar10.run import METHODS
from studies.cifar100.run import PLAN

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
  beyond.measure(out, source, other, PLAN.seeds)
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


def tables(folder: pathlib.Path) -> list[str]:
  """The README's tables, gate and verdicts, from the data."""
  lines = shared.tables(folder)
  if coarse := jsonl.read(folder / "coarse.jsonl"):
    lines += ["", scores.table(coarse), "", *scores.verdicts(coarse)]
  if rows := jsonl.read(folder / "beyond.jsonl"):
    lines += ["", *beyond.table(rows, "CIFAR-10")]
  return lines


if __name__ == "__main__":
  main()
