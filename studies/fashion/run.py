r"""The tables of CL beside NCL on Fashion-MNIST, from what was measured, into the page.

  python -m studies.fashion.run

Reads data/ (written by studies.fashion.collect) and renews, in this study's README,
what stands between the lines `<!-- fashion: NAME -->` and `<!-- / -->`.
"""

import pathlib
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks import measure
from benchmarks.measure import table as markdown
from ncl_jax.errors import InputError
from ncl_jax.report import statistics
from ncl_jax.report.sweep import number
from ncl_jax.runtime import jsonl
from studies.fashion.claims import Claim, claims, map_claims, temperature_claim
from studies.fashion.rows import (
  ACCURACY,
  ARMS,
  CONTROLS,
  PROPERTIES,
  ROBUSTNESS,
  SELECTION,
  STATS,
  SWEEP,
  Place,
)

DATA = pathlib.Path(__file__).parent / "data"
PAGE = DATA.parent / "README.md"
BLOCK = r"(<!-- fashion: {} -->\n).*?(\n<!-- / -->)"

SWEEPS = ("maps", "temperatures", "widths")

Results = dict[str, list[dict[str, Any]]]  # arm -> its results, seed by seed


def main() -> None:
  """Renews the page."""
  text = PAGE.read_text()
  for name, lines in blocks(DATA).items():
    body = "\n".join(lines)
    pattern = re.compile(BLOCK.format(name), re.DOTALL)
    if not pattern.search(text):
      raise SystemExit(f"{PAGE} has no place for <!-- fashion: {name} -->")
    text = pattern.sub(lambda found, body=body: f"{found[1]}\n{body}\n{found[2]}", text)
  PAGE.write_text(text)
  print(f"written: {PAGE}")


def tables(folder: pathlib.Path) -> list[str]:
  """All tables, one after the other, an empty line between them."""
  return "\n\n".join("\n".join(lines) for lines in blocks(folder).values()).split("\n")


def blocks(folder: pathlib.Path) -> dict[str, list[str]]:
  """Name of a place in the page -> its table in Markdown."""
  arms = results(folder)
  sweeps = {
    name: jsonl.read(folder / f"{name}.jsonl")
    for name in SWEEPS
    if (folder / f"{name}.jsonl").exists()
  }
  judged = claims(arms)
  if "maps" in sweeps:
    judged += map_claims(sweeps["maps"])
  if "temperatures" in sweeps:
    judged.append(temperature_claim(sweeps["temperatures"]))
  found = {
    "claims": markdown([claim_row(claim) for claim in judged]),
    "accuracy": paired(arms, ACCURACY),
    "properties": paired(arms, PROPERTIES),
    "controls": controls(arms),
    "axes": axes(arms),
    "selection": paired(arms, SELECTION),
    "curve": curve(arms),
    "robustness": paired(arms, ROBUSTNESS),
    "corruptions": paired(arms, corruptions(arms)),
    "cost": cost(folder),
  }
  return found | {name: sweep(cells) for name, cells in sweeps.items()}


def results(folder: pathlib.Path) -> Results:
  """The results of compare.jsonl, seeds in order.

  Raises:
    InputError: if the folder has none.
  """
  found: Results = {}
  lines = jsonl.read(folder / "compare.jsonl")
  if not lines:
    raise InputError(f"{folder / 'compare.jsonl'}: there are no results")
  for line in sorted(lines, key=lambda line: line["seed"]):
    found.setdefault(line["arm"], []).append(line["results"])
    selection = line["results"].get("selection")
    if selection:
      # What the rows of signed activations are chosen from.
      selection["signed"] = selection["curve"][-1]["ea_signed"]
  return found


def values(rows: Sequence[dict[str, Any]], place: Place) -> list[float]:
  """One number a seed, in the unit of the table; NaN where there is none."""
  _, path, factor = place
  return [factor * number(row, path) for row in rows]


def spread(x: Sequence[float]) -> str:
  """Mean and standard deviation over seeds."""
  found = statistics.summarize(x)
  if not found.count:
    return "–"
  if found.deviation is None:
    return measure.shown(found.mean)
  # What rounding left of a sum of equal numbers is no spread.
  return f"{measure.shown(found.mean)} ± {round(found.deviation, 9):.2g}"


def interval(x: Sequence[float], baseline: Sequence[float]) -> str:
  """Mean of the paired differences with its 95 % t interval."""
  found = statistics.paired_difference(x, baseline)
  if found.interval is None:
    return "–"
  low, high = found.interval
  return f"{found.mean:+.3g} [{low:+.3g}, {high:+.3g}]"


def paired(arms: Results, places: Sequence[Place]) -> list[str]:
  """A line a number: CL, NCL, their difference, the untrained network."""
  rows = []
  for place in places:
    cl, ncl = values(arms["cl"], place), values(arms["ncl"], place)
    if not np.isfinite([*cl, *ncl]).any():
      continue
    row = {"": place[0], "CL": spread(cl), "NCL": spread(ncl)}
    row["NCL - CL [95 %]"] = interval(ncl, cl)
    row["untrained + transform"] = spread(values(arms["untrained"], place))
    rows.append(row)
  return markdown(rows)


def corruptions(arms: Results) -> list[Place]:
  """Mean over the severities of each kind, put beside the results."""
  places: list[Place] = []
  for rows in arms.values():
    for row in rows:
      for layer in ("h", "f"):
        part = row.get("robustness", {}).get(layer, {})
        part["kinds"] = {
          kind: float(np.mean(x)) for kind, x in part.get("corruptions", {}).items()
        }
  for layer in ("h", "f"):
    kinds = number_of(arms["cl"][0], ("robustness", layer, "kinds"))
    places += [
      (
        f"{kind.replace('_', ' ')}, {layer}, %",
        ("robustness", layer, "kinds", kind),
        100,
      )
      for kind in kinds
    ]
  return places


def number_of(row: dict[str, Any], path: Sequence[str]) -> dict[str, Any]:
  """What lies at a path, {} if nothing."""
  for key in path:
    row = row.get(key, {})
  return row


def controls(arms: Results) -> list[str]:
  """A line an arm or control, means over seeds."""
  rows = []
  for arm, label in ARMS.items():
    if arm in arms:
      means = {p[0]: float(np.mean(values(arms[arm], p))) for p in CONTROLS}
      rows.append({"": label} | {k: v for k, v in means.items() if np.isfinite(v)})
  columns = ["", *(place[0] for place in CONTROLS)]
  return markdown([{name: row.get(name) for name in columns} for row in rows])


def axes(arms: Results) -> list[str]:
  """The agreement of each seed's dimensions with the next seed's."""
  rows = []
  for layer in ("h", "f"):
    for arm in ("cl", "ncl"):
      row: dict[str, Any] = {"": f"{ARMS[arm]}, {layer}"}
      for seed, found in enumerate(arms[arm]):
        other = (seed + 1) % len(arms[arm])
        row[f"{seed}, {other}"] = number(found, ("axes", layer, "correlation"))
      row |= {
        name: float(np.mean([number(x, ("axes", layer, key)) for x in arms[arm]]))
        for name, key in (
          ("axes rotated", "correlation_rotated"),
          ("images shuffled", "correlation_chance"),
          ("dimensions matched", "matched"),
        )
      }
      rows.append(row)
  return markdown(rows)


def curve(arms: Results) -> list[str]:
  """Accuracy of the probe over the number of dimensions kept, means over seeds."""
  rows = []
  for i, point in enumerate(arms["cl"][0]["selection"]["curve"]):
    row: dict[str, Any] = {"dimensions kept": point["k"]}
    for key in ("probe", "retrieval"):
      for order, label in (("random", "random"), ("ea_signed", "EA signed")):
        for arm in ("cl", "ncl"):
          seen = [x["selection"]["curve"][i][order][key] for x in arms[arm]]
          name = f"{ARMS[arm]}, {label}, {'probe' if key == 'probe' else 'P@10'}"
          row[name] = 100 * float(np.mean(seen))
    rows.append(row)
  return markdown(rows)


def cost(folder: pathlib.Path) -> list[str]:
  """What a training took: each seed's step, the rest medians over seeds."""
  rows = []
  lines = sorted(jsonl.read(folder / "compare.jsonl"), key=lambda line: line["seed"])
  for arm in ("cl", "ncl"):
    speed = [line["speed"][-1] for line in lines if line["arm"] == arm]
    steps = [x["step_seconds"] for x in speed]
    rows.append(
      {
        "": ARMS[arm],
        "s a step": float(np.median(steps)),
        # No "fastest": the seeds were trained while the machine did other work.
        "s a step, each seed": ", ".join(map(measure.shown, steps)),
        "s of training": float(
          np.median([x["steps"] * x["step_seconds"] for x in speed])
        ),
        "images/s": float(np.median([x["images_per_second"] for x in speed])),
        "peak memory, MiB": float(np.median([x["peak_memory_bytes"] for x in speed]))
        / 2**20,
      }
    )
  return markdown(rows)


def sweep(cells: Sequence[dict[str, Any]]) -> list[str]:
  """A line a setting: means over its seeds, and the range of purity."""
  groups: dict[tuple, list[dict[str, Any]]] = {}
  for row in cells:
    key = tuple(v for k, v in row["settings"].items() if k != "seed")
    groups.setdefault(key, []).append(row)
  rows = []
  for key, found in groups.items():
    trained = [cell for cell in found if "failed" not in cell]
    seeds = "" if trained == found else f" ({len(trained)} of {len(found)} seeds)"
    row: dict[str, Any] = {"": ", ".join(map(str, key)) + seeds}
    means = {p[0]: float(np.mean(values(trained, p))) for p in SWEEP}
    row |= {name: mean for name, mean in means.items() if np.isfinite(mean)}
    purity = values(trained, ("", (*STATS, "purity"), 100))
    row["purity, each seed"] = ", ".join(map(measure.shown, purity))
    rows.append(row)
  return markdown(rows)


def claim_row(claim: Claim) -> dict[str, str]:
  """A line of the checklist."""
  return {
    "claim": claim.name,
    "verdict": f"**{claim.verdict}**",
    "figures": claim.figures,
  }


if __name__ == "__main__":
  main()
