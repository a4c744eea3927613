r"""Small, lasting copies of what a comparison and sweeps measured, to be committed.

  python -m studies.fashion.collect --compare runs/fashion --commit HASH \
      --sweeps runs/maps runs/temperatures --out=studies/fashion/data

A line of compare.jsonl is one arm or control with one seed, a line of SWEEP.jsonl one
cell: every result that the programs gave, without the grids of nearest neighbours, with
the settings that differ from the defaults and the commit that was run. Where programs
were run again by another commit, give both folders and both commits, the newer last.
"""

import argparse
import pathlib
from typing import Any

from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.runtime import jsonl
from ncl_jax.training import workdir as workdir_lib

# What does not differ between lines, or is looked up by nobody.
# A result's key -> its name in the stored data, where they differ.
NAMES = {
  "active_dimensions": "live_dimensions",
  "sparsity_active": "sparsity_live",
  "random_active": "random_live",
}
LEFT_OUT = frozenset({"settings", "versions", "evaluator", "grid", "grid_euclidean"})
DIGITS = 5  # significant: a share of 10,000 images has 4


def main() -> None:
  """Copies."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--compare", nargs="*", default=[], help="of launch.compare")
  parser.add_argument("--sweeps", nargs="*", default=[], help="those of launch.sweep")
  parser.add_argument(
    "--commit",
    nargs="+",
    required=True,
    help="of each --compare; of the sweeps the first",
  )
  parser.add_argument("--out", required=True, help="folder for the files")
  flags = parser.parse_args()
  out = pathlib.Path(flags.out)
  out.mkdir(parents=True, exist_ok=True)
  if flags.compare:
    commits = dict(zip(flags.compare, flags.commit, strict=True))
    jsonl.write(out / "compare.jsonl", comparison(commits))
  for folder in flags.sweeps:
    name = pathlib.Path(folder).name
    jsonl.write(out / f"{name}.jsonl", sweep(folder, flags.commit[0]))
  print(f"written: {out}")


def comparison(commits: dict[str, str]) -> list[dict[str, Any]]:
  """A line an arm or control and seed.

  Args:
    commits: work directory of `launch.compare` -> commit of the code that was run; a
      program that several have is taken from the last.

  Raises:
    InputError: if a directory has no results.
  """
  found: dict[tuple[int, str], dict[str, Any]] = {}
  for folder, commit in commits.items():
    rows = jsonl.read(pathlib.Path(folder) / "measured.jsonl")
    if not rows:
      raise InputError(f"{folder} has no results in measured.jsonl")
    for row in rows:
      of = row["of"]
      results = found.setdefault((of["seed"], of["method"]), {})
      results[of["evaluator"]] = {"commit": commit} | shortened(row["result"])
  lines = []
  for (seed, arm), results in found.items():
    line: dict[str, Any] = {"arm": arm, "seed": seed}
    run = pathlib.Path(next(iter(commits))) / f"seed{seed}" / arm
    if (run / "config.json").exists():
      line["changed"] = changed(workdir_lib.read_config(run))
      line["speed"] = jsonl.read(run / "speed.jsonl")
    lines.append(line | {"results": results})
  return lines


def sweep(workdir: str, commit: str) -> list[dict[str, Any]]:
  """A line a cell.

  Args:
    workdir: of `launch.sweep`.
    commit: of the code that was run.

  Raises:
    InputError: if the directory has no results.
  """
  root = pathlib.Path(workdir)
  lines = []
  for row in jsonl.read(root / "sweep.jsonl"):
    line = shortened(row) | {"settings": row["settings"], "commit": commit}
    if (root / row["trial"] / "config.json").exists():
      line["changed"] = changed(workdir_lib.read_config(root / row["trial"]))
    lines.append(line)
  if not lines:
    raise InputError(f"{workdir} has no results in sweep.jsonl")
  return lines


def changed(config: ConfigDict) -> dict[str, Any]:
  """The settings of a run that are not the defaults: field -> value."""
  return config_lib.overrides(config_lib.defaults(), config)


def shortened(value: Any) -> Any:
  """A result without what is left out, its numbers to a few digits."""
  if isinstance(value, dict):
    kept = {k: v for k, v in value.items() if k not in LEFT_OUT}
    return {NAMES.get(k, k): shortened(v) for k, v in kept.items()}
  if isinstance(value, list):
    return [shortened(v) for v in value]
  return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


if __name__ == "__main__":
  main()
