"""What studies.families.run found as tables: accuracy, dimensions, places, rates."""

import json
import pathlib
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import measure
from benchmarks.measure import table
from ncl_jax import methods as methods_lib

WIDTH = 256  # of every projector's layers, and the number of DINO's prototypes
MARGIN = 3.0  # points above the untrained network that learning asks for
COLLAPSED = 2.0  # effective rank of f below which nothing tells images apart


def best(rows: list[dict[str, Any]]) -> dict[str, float]:
  """Cell -> the learning rate with the highest held-out accuracy."""
  chosen: dict[str, dict[str, Any]] = {}
  for row in rows:
    before = chosen.get(row["cell"])
    # A run that diverged has no accuracy.
    if before is None or (row["h, few"] or 0) > (before["h, few"] or 0):
      chosen[row["cell"]] = row
  return {cell: row["learning rate"] for cell, row in chosen.items()}


def learns(row: dict[str, Any]) -> bool:
  """Whether a run has learnt: above the untrained network by `MARGIN`, above pixels."""
  if row.get("diverged"):
    return False
  h = row["h, few"]
  return h >= row["untrained, few"] + MARGIN and h > row["pixels, few"]


def tables(out: pathlib.Path) -> list[str]:
  """The methods and their ends in Markdown, the transform's places and the learning
  rates.

  The last two where there are any; the transform's other places were cells of an
  earlier version of `benchmarks.families`.

  Args:
    out: with families.json and tuning.json.
  """
  rows = json.loads((out / "families.json").read_text())["rows"]
  tried = json.loads((out / "tuning.json").read_text())["rows"]
  runs: dict[str, list[dict[str, Any]]] = {}
  for row in rows:
    runs.setdefault(row["cell"], []).append(row)
  methods = {cell: runs[cell] for cell in runs if cell in methods_lib.VARIANTS}
  lines = table([_accuracy(cell, found) for cell, found in methods.items()])
  lines += ["", *table([_dimensions(cell, found) for cell, found in methods.items()])]
  places = {"CL: nowhere": "cl", "NCL: everywhere": "ncl"}
  places |= {cell: cell for cell in runs if cell not in methods}
  body = [_place(name, runs[cell]) for name, cell in places.items() if cell in runs]
  if len(runs) > len(methods):
    lines += ["", *table(body)]
  chosen = best(tried)
  if len({row["learning rate"] for row in tried}) < 2:
    return lines
  grid: dict[str, dict[str, Any]] = {}
  for row in tried:
    cells = grid.setdefault(row["cell"], {"method": row["cell"]})
    cells[f"{row['learning rate']:g}"] = row["h, few"]
  rates = [cells | {"chosen": f"{chosen[cell]:g}"} for cell, cells in grid.items()]
  return [*lines, "", *table(rates)]


def _mean(found: list[dict[str, Any]], key: str) -> float | None:
  values = [row[key] for row in found if row.get(key) is not None]
  return float(statistics.mean(values)) if values else None


def _accuracy(cell: str, found: list[dict[str, Any]]) -> dict[str, Any]:
  names = ("h", "untrained", "pixels", "f")
  return (
    {"method": cell}
    | {f"{name}, few": _mean(found, f"{name}, few") for name in names}
    | {"h, few, seeds": ", ".join(measure.shown(r.get("h, few")) for r in found)}
    | {f"{name}, all": _mean(found, f"{name}, all") for name in names[:3]}
    | {"learns": "yes" if all(learns(row) for row in found) else "no"}
  )


def _dimensions(cell: str, found: list[dict[str, Any]]) -> dict[str, Any]:
  shown = {"method": cell}
  for key in ("sparsity, f", "consistency, f", "live, f", "rank, f", "rank, h"):
    shown[key] = _mean(found, key)
  lived = [row["live, by epoch"] for row in found if "live, by epoch" in row]
  half = [_first(counts, lambda count: count < WIDTH / 2) for counts in lived]
  return shown | {
    "half dead from epoch": ", ".join(map(measure.shown, half)) or None,
    "loss": _mean(found, "loss"),
    "loss, collapsed": _mean(found, "loss, collapsed"),
    "state": state(found),
  }


def _first(values: list[int], holds: Callable[[int], bool]) -> int | None:
  """The epoch from which on something holds to the end; None if it does not."""
  epoch = None
  for number, value in enumerate(values, 1):
    epoch = (epoch or number) if holds(value) else None
  return epoch


def state(found: list[dict[str, Any]]) -> str:
  """How a cell's runs ended, in the preregistered words."""
  if any(row.get("diverged") for row in found):
    return "diverged"
  if all(row["rank, f"] < COLLAPSED for row in found):
    return "collapsed"
  return "half dead" if all(row["live, f"] < WIDTH / 2 for row in found) else "alive"


def _place(name: str, found: list[dict[str, Any]]) -> dict[str, Any]:
  keys = ("h, few", "f, few")
  keys += tuple(f"{k}, f" for k in ("sparsity", "consistency", "live", "rank"))
  keys += tuple(f"{k}, h" for k in ("sparsity", "consistency", "live"))
  keys += ("slopes", "slopes of 0")
  return {"the transform": name} | {key: _mean(found, key) for key in keys}
