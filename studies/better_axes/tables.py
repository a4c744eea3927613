"""The README's tables and the verdict, from the data of studies.better_axes.run."""

import pathlib
from typing import Any

import numpy as np

from ncl_jax.runtime import jsonl
from studies import scores
from studies.better_axes.projectors import BASE

GOAL = 0.02


def value(row: dict[str, Any]) -> float:
  """What a search raises: NCL's own naming, or the best made of CL's features."""
  return max(row["post_hoc"].values()) if "post_hoc" in row else row["naming"]


def tables(folder: pathlib.Path) -> list[str]:
  """The README's tables and the verdict, from the data."""
  searched = jsonl.read(folder / "search.jsonl")
  lines = [
    "| ideas | NCL: naming | neighbours on f | active | CL: naming | best post hoc | "
    "neighbours on f |",
    "|---|--:|--:|--:|--:|--:|--:|",
  ]
  for names in dict.fromkeys(tuple(row["ideas"]) for row in searched):
    of = {row["method"]: row for row in searched if tuple(row["ideas"]) == names}
    cells = ["–"] * 6
    if "ncl" in of:
      row = of["ncl"]
      cells[:3] = [
        f"{100 * row['naming']:.1f}",
        f"{100 * row['neighbours']:.1f}",
        f"{row['active']:.0f}",
      ]
    if "cl" in of:
      row = of["cl"]
      name = max(row["post_hoc"], key=row["post_hoc"].get)
      cells[3:] = [
        f"{100 * row['naming']:.1f}",
        f"{100 * value(row):.1f} ({name})",
        f"{100 * row['neighbours']:.1f}",
      ]
    lines.append(f"| {' + '.join(names) or 'base'} | " + " | ".join(cells) + " |")
  made = ["\n".join(lines), "", found(searched)]
  rows = jsonl.read(folder / "scores.jsonl")
  return [*made, "", scored(rows), "", verdict(rows)] if rows else made


def found(searched: list[dict[str, Any]]) -> str:
  """Both best rows of the search, in a sentence."""
  named = {}
  for method in BASE:
    row = max((row for row in searched if row["method"] == method), key=value)
    named[method] = f"{100 * value(row):.1f} % ({' + '.join(row['ideas']) or 'base'})"
  return f"Best on held-out images: NCL {named['ncl']}, post hoc {named['cl']}."


SCORED = {
  key: scores.COLUMNS[key]
  for key in ("naming", "naming_one_sign", "axis_gain", "ewp", "neighbours", "l0")
}


def scored(rows: list[dict[str, Any]]) -> str:
  """Means over seeds on the test images, as Markdown."""
  lines = [
    "| f | dimensions | " + " | ".join(SCORED.values()) + " |",
    "|---|" + "--:|" * (1 + len(SCORED)),
  ]
  for name in dict.fromkeys(row["features"] for row in rows):
    mine = [row for row in rows if row["features"] == name]
    cells = [f"{np.mean([row['dimensions'] for row in mine]):.0f}"]
    for key in SCORED:
      if key not in mine[0]:
        cells.append("–")
        continue
      mean = np.mean([row[key] for row in mine])
      cells.append(f"{mean:.1f}" if key == "l0" else f"{100 * mean:.1f}")
    lines.append(f"| {name} | " + " | ".join(cells) + " |")
  return "\n".join(lines)


def verdict(rows: list[dict[str, Any]]) -> str:
  """The preregistered sentence."""

  def values(name, key):
    found = {row["seed"]: row[key] for row in rows if row["features"] == name}
    return [found[seed] for seed in sorted(found)]

  names = {row["features"] for row in rows} - {"CL", "NCL"}
  rival, key = max(
    ((name, key) for name in sorted(names) for key in ("naming", "naming_one_sign")),
    key=lambda which: float(np.mean(values(*which))),
  )
  difference = scores.paired(values("NCL", "naming"), values(rival, key))
  word = "undecided"
  if difference.interval:
    low, high = difference.interval
    if difference.mean >= GOAL and low > 0:
      word = "reached"
    elif high < GOAL:
      word = "refuted"
  return (
    f"{100 * GOAL:g} points above the best post-hoc method ({rival}): {word}. NCL "
    f"minus rival {scores.points(difference)}."
  )
