r"""Small, lasting copies of what a comparison and sweeps measured, to be committed.

  python -m benchmarks.collect --compare=runs/fashion --commit=HASH \
      --sweeps runs/maps runs/temperatures --out=docs/data/fashion

A line of compare.jsonl is one arm or control with one seed, a line of SWEEP.jsonl one
cell: every result that the programs gave, without the grids of nearest neighbours, with
the settings that differ from the config file's and the commit that was run.
"""

import argparse
import pathlib
from typing import Any

from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import workdir as workdir_lib
from ncl_jax import writer

# What does not differ between lines, or is looked up by nobody.
LEFT_OUT = frozenset({"settings", "versions", "program", "grid", "grid_euclidean"})
DIGITS = 5  # significant: a share of 10,000 images has 4


def main() -> None:
  """Copies."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--compare", default="", help="work directory of launch.compare")
  parser.add_argument("--sweeps", nargs="*", default=[], help="those of launch.sweep")
  parser.add_argument("--commit", required=True, help="of the code that was run")
  parser.add_argument("--out", required=True, help="folder for the files")
  flags = parser.parse_args()
  out = pathlib.Path(flags.out)
  out.mkdir(parents=True, exist_ok=True)
  if flags.compare:
    writer.write(out / "compare.jsonl", comparison(flags.compare, flags.commit))
  for folder in flags.sweeps:
    name = pathlib.Path(folder).name
    writer.write(out / f"{name}.jsonl", sweep(folder, flags.commit))
  print(f"written: {out}")


def comparison(workdir: str, commit: str) -> list[dict[str, Any]]:
  """A line an arm or control and seed.

  Args:
    workdir: of `launch.compare`.
    commit: of the code that was run.
  """
  root = pathlib.Path(workdir)
  found: dict[tuple[int, str], dict[str, Any]] = {}
  for row in writer.read(root / "measured.jsonl"):
    of = row["of"]
    results = found.setdefault((of["seed"], of["arm"]), {})
    results[of["program"]] = shortened(row["result"])
  lines = []
  for (seed, arm), results in found.items():
    line: dict[str, Any] = {"arm": arm, "seed": seed, "commit": commit}
    run = root / f"seed{seed}" / arm
    if (run / "config.json").exists():
      line["changed"] = changed(workdir_lib.read_config(run))
      line["speed"] = writer.read(run / "speed.jsonl")
    lines.append(line | {"results": results})
  return lines


def sweep(workdir: str, commit: str) -> list[dict[str, Any]]:
  """A line a cell.

  Args:
    workdir: of `launch.sweep`.
    commit: of the code that was run.
  """
  root = pathlib.Path(workdir)
  lines = []
  for row in writer.read(root / "sweep.jsonl"):
    settings = changed(workdir_lib.read_config(root / row["cell"]))
    lines.append(shortened(row) | {"settings": row["settings"]})
    lines[-1] |= {"commit": commit, "changed": settings}
  return lines


def changed(config: ConfigDict) -> dict[str, Any]:
  """The settings of a run that are not the defaults: field -> value."""
  return config_lib.overrides(config_lib.defaults(), config)


def shortened(value: Any) -> Any:
  """A result without what is left out, its numbers to a few digits."""
  if isinstance(value, dict):
    return {k: shortened(v) for k, v in value.items() if k not in LEFT_OUT}
  if isinstance(value, list):
    return [shortened(v) for v in value]
  return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


if __name__ == "__main__":
  main()
