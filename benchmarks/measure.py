"""Shared by benchmarks and studies: fair timing, tables, JSON, and the machine."""

import argparse
import datetime
import importlib.metadata
import json
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

from ncl_jax.host import resources

ROOT = pathlib.Path(__file__).parent.parent
PEERS = ("jax", "flax", "numpy", "scikit-learn", "torch", "torchvision", "pillow")


def arguments(doc: str) -> argparse.ArgumentParser:
  """A parser with the common flags, --repeats and --json."""
  parser = argparse.ArgumentParser(
    description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--repeats", type=int, default=7, help="rounds; the median counts"
  )
  parser.add_argument("--json", default="", help="file for the table as JSON")
  return parser


def interleaved(
  contestants: dict[str, Callable[[], Any]], repeats: int
) -> dict[str, dict[str, float]]:
  """Runs all contestants in turn, so that other load on the machine affects each.

  Args:
    contestants: name to function, which returns when its work is done.
    repeats: measured rounds, after an unmeasured one.

  Returns:
    For each name the median over rounds of "wall" and "cpu" seconds; the latter over
    all threads of this process.
  """
  seen: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
  for round_ in range(repeats + 1):
    for name, function in contestants.items():
      wall, cpu = time.perf_counter(), time.process_time()
      function()
      if round_:
        spent = (time.perf_counter() - wall, time.process_time() - cpu)
        seen[name].append(spent)
  return {
    name: {
      "wall": statistics.median(wall for wall, _ in rows),
      "cpu": statistics.median(cpu for _, cpu in rows),
    }
    for name, rows in seen.items()
  }


def finish(title: str, rows: list[dict[str, Any]], path: str, note: str = "") -> None:
  """Prints the rows as a table, and writes them as JSON if a path is given.

  `rows` hold cells by column, and some may lack a column. `note` explains the columns.
  """
  columns = list(dict.fromkeys(column for row in rows for column in row))
  cells = [columns, *([shown(row.get(column)) for column in columns] for row in rows)]
  widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
  print(f"\n{title}")
  for line in cells:
    pairs = enumerate(zip(line, widths, strict=True))
    print("  ".join(x.rjust(w) if i else x.ljust(w) for i, (x, w) in pairs))
  if note:
    print(note)
  if path:
    document = {"title": title, "note": note, "rows": rows}
    pathlib.Path(path).write_text(json.dumps(document, indent=2) + "\n")


def shown(value: Any) -> str:
  """A cell: a number with three digits, a dash for None."""
  if value is None:
    return "–"
  if isinstance(value, float):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
  return str(value)


def table(rows: list[dict]) -> list[str]:
  """Markdown lines of rows with cells by column."""
  columns = list(dict.fromkeys(column for row in rows for column in row))
  body = [[shown(row.get(column)) for column in columns] for row in rows]
  rule = ["---", *(["---:"] * (len(columns) - 1))]
  return [f"| {' | '.join(line)} |" for line in (columns, rule, *body)]


def machine() -> str:
  """The machine, package versions and date of a measurement."""
  cpu = platform.processor() or platform.machine()
  info = pathlib.Path("/proc/cpuinfo")
  if info.exists():
    lines = info.read_text().splitlines()
    names = [x.partition(":")[2].strip() for x in lines if x.startswith("model name")]
    cpu = names[0] if names else cpu
  cores = resources.cores()
  versions = []
  for package in PEERS:
    try:
      versions.append(f"{package} {importlib.metadata.version(package)}")
    except importlib.metadata.PackageNotFoundError:
      continue
  today = datetime.date.today().isoformat()
  return f"{cpu}, {cores} cores; {', '.join(versions)}; {today}"
