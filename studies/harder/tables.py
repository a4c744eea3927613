"""Tables and verdicts of the README, from what `run` measured."""

import json
import pathlib
import statistics

from benchmarks import measure
from benchmarks.measure import table

SETS = {
  "emoji": "Emoji: category and subcategory",
  "fashion": "Fashion-MNIST: coarse and fine classes",
  "two": "Two digits in one image",
}
# Set -> what its wide and its narrow groups are called.
NAMES = {
  "emoji": ("category", "subcategory"),
  "fashion": ("coarse class", "fine class"),
  "two": ("digit", "pair"),
}
RIVALS = ("CL", "CL + transform", "untrained + transform")
LAYERS = ("h", "f")

Rows = list[dict]


def tables(out: pathlib.Path) -> list[str]:
  """Of each set: the figures, the seeds that decide, the verdicts; in Markdown.

  Args:
    out: with a file for each set.
  """
  lines: list[str] = []
  for name in SETS:
    file = out / f"{name}.json"
    if file.exists():
      rows = json.loads(file.read_text())["rows"]
      for part in (
        stands_for(name, rows),
        further(name, rows),
        seeds(name, rows),
        verdicts(name, rows),
      ):
        lines += ["", *table(part)]
  return lines[1:]


def arms(rows: Rows) -> dict[str, Rows]:
  """Rows by arm, each by seed."""
  found: dict[str, Rows] = {}
  for row in sorted(rows, key=lambda row: row["seed"]):
    found.setdefault(row["arm"], []).append(row)
  return found


def stands_for(name: str, rows: Rows) -> Rows:
  """Means over seeds, in per cent: purities, and what dimensions stand for."""
  wide, narrow = NAMES[name]
  columns = {
    f"{wide}": "wide",
    f"{wide} by chance": "wide_chance",
    f"{narrow}": "narrow",
    f"{narrow} by chance": "narrow_chance",
    f"{narrow} within {wide}": "inner",
    "within by chance": "inner_chance",
    "stands for nothing": "nothing",
    f"for a {wide}": "wide_group",
    f"for a {narrow}": "narrow_group",
    "for one of a kind": "single",
  }
  if name == "two":
    columns.pop("for one of a kind")  # each digit is in nine pairs
  lines = []
  for arm, of in arms(rows).items():
    line = {name: arm, "live": statistics.mean(row["live"] for row in of)}
    for column, key in columns.items():
      line[column] = 100 * statistics.mean(row[key] for row in of)
    lines.append(line)
  return lines


def further(name: str, rows: Rows) -> Rows:
  """Sparsity with class consistency at both levels, or with what a probe reads."""
  lines = []
  for arm, of in arms(rows).items():
    columns = {"sparsity": "sparsity"}
    if name == "two":
      columns |= {f"both digits read from {x}": f"both_right_{x}" for x in LAYERS}
    else:
      for rule, shown in (("abs", "\\|f\\| > 1e-5"), ("positive", "f > 0")):
        for level, group in zip(("wide", "narrow"), NAMES[name], strict=True):
          key = f"consistency_{rule}_{level}"
          columns[f"{group}, {shown}"] = key
          columns[f"{group}, {shown}, by chance"] = f"{key}_chance"
    line: dict = {f"{name}, consistency" if name != "two" else name: arm}
    for column, key in columns.items():
      known = [row[key] for row in of if row.get(key) is not None]
      line[column] = 100 * statistics.mean(known) if known else None
    lines.append(line)
  return lines


def beyond(row: dict) -> float:
  """By how much `inner` is above what permuting within the wide group gives."""
  return row["inner"] - row["inner_chance"]


def seeds(name: str, rows: Rows) -> Rows:
  """The figures that decide, seed by seed."""
  wide, narrow = NAMES[name]
  figures = {
    wide: lambda row: row["wide"],
    narrow: lambda row: row["narrow"],
    f"{narrow} within {wide}, beyond chance": beyond,
  }
  return [
    {f"{name}, seeds": arm}
    | {
      title: ", ".join(measure.shown(100.0 * figure(row)) for row in of)
      for title, figure in figures.items()
    }
    for arm, of in arms(rows).items()
  ]


def verdicts(name: str, rows: Rows) -> Rows:
  """The preregistered verdicts, from the rows alone."""
  wide, narrow = NAMES[name]
  of = arms(rows)
  if name == "two":
    asked = {
      f"holds for two objects ({wide})": compared(of, lambda row: row["wide"]),
      f"knows the {narrow} beyond the {wide}": compared(of, beyond),
    }
  else:
    asked = {
      f"holds for finer classes ({narrow})": compared(of, lambda row: row["narrow"]),
      f"knows the {narrow} beyond the {wide}": compared(of, beyond),
    }
  lines: Rows = [{name: claim, "verdict": verdict} for claim, verdict in asked.items()]
  for arm in ("NCL", "CL"):
    lines.append(
      {name: f"what a dimension of {arm} stands for", "verdict": kind(name, of[arm])}
    )
  return lines


def compared(of: dict[str, Rows], figure) -> str:
  """Whether NCL's figure is above every rival's in each seed."""
  values = {arm: [figure(row) for row in of[arm]] for arm in ("NCL", *RIVALS)}
  if all(
    own > other
    for rival in RIVALS
    for own, other in zip(values["NCL"], values[rival], strict=True)
  ):
    return "seen"
  if statistics.mean(values["NCL"]) <= statistics.mean(values["CL"]):
    return "not seen"
  return "undecided"


def kind(name: str, rows: Rows) -> str:
  """What more than half of the dimensions stand for in each seed, if anything."""
  wide, narrow = NAMES[name]
  titles = {
    "nothing": "nothing",
    "wide_group": f"a {wide}",
    "narrow_group": f"a {narrow}",
  }
  for key, title in titles.items():
    if all(row[key] > 0.5 * (1 - row["single"]) for row in rows):
      return title
  return "no one kind"
