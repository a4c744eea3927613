"""A sweep's trials as one table and one figure."""

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ncl_jax.report.figures import drawing
from ncl_jax.runtime import jsonl

# Heading, where the number is in a trial's row, what it is multiplied by, decimals.
COLUMNS: tuple[tuple[str, tuple[str, ...], float, int], ...] = (
  ("kNN h, %", ("knn", "h", "accuracy"), 100, 1),
  ("untrained, %", ("untrained", "h", "accuracy"), 100, 1),
  ("pixels, %", ("pixels", "h", "accuracy"), 100, 1),
  ("kNN f, %", ("knn", "f", "accuracy"), 100, 1),
  ("probe h, %", ("linear_probe", "h", "accuracy"), 100, 1),
  ("sparsity f, %", ("feature_stats", "f", "sparsity"), 100, 1),
  ("consistency f, %", ("feature_stats", "f", "consistency_abs"), 100, 1),
  ("active dimensions f", ("feature_stats", "f", "active_dimensions"), 1, 0),
)
PANELS = ("kNN h, %", "sparsity f, %", "consistency f, %", "active dimensions f")
SEED = "seed"


def number(row: dict[str, Any], place: Sequence[str]) -> float:
  """A number of a row by its path; NaN where there is none."""
  value: Any = row
  for key in place:
    value = value.get(key) if isinstance(value, dict) else None
  return float("nan") if value is None else float(value)


def table(rows: Sequence[dict[str, Any]]) -> str:
  """The trials as a table in Markdown, a line each, columns without a number left out.

  Args:
    rows: {"settings", EVALUATOR: result, ...} of each trial, or {"settings", "failed"}.
  """
  fields = list(rows[0]["settings"])
  shown = [c for c in COLUMNS if any(np.isfinite(number(row, c[1])) for row in rows)]
  headings = [heading for heading, *_ in shown] or ["measured"]
  lines = [[*fields, *headings]]
  for row in rows:
    words = [str(row["settings"][field]) for field in fields]
    if "failed" in row:
      words += ["failed", *[""] * (len(shown) - 1)]
    else:
      for _, place, factor, decimals in shown:
        value = factor * number(row, place)
        words.append(f"{value:.{decimals}f}" if np.isfinite(value) else "")
    lines.append(words)
  lines.insert(1, ["---"] * len(lines[0]))
  return "\n".join(f"| {' | '.join(words)} |" for words in lines)


def figure(rows: Sequence[dict[str, Any]]) -> drawing.Image:
  """A point for each trial, a line for each setting but the seed, a panel a measure."""
  names = [
    ", ".join(f"{k}={v}" for k, v in row["settings"].items() if k != SEED) or "all"
    for row in rows
  ]
  order = list(dict.fromkeys(names))
  place = np.array([order.index(name) for name in names])
  panels = [c for c in COLUMNS if c[0] in PANELS]

  def draw() -> Figure:
    height = 1.0 + 0.24 * len(order)
    made, axes = drawing.panels(len(panels), 2.6, height, columns=len(panels))
    for ax, (heading, path, factor, _) in zip(axes, panels, strict=True):
      x = factor * np.array([number(row, path) for row in rows])
      ax.plot(x, place, "o", ms=4, color=drawing.METHOD, label="trained")
      ax.set(title=heading, ylim=(len(order) - 0.5, -0.5), yticks=[])
    controls = {"untrained": drawing.INK, "pixels": drawing.BASELINE}
    for control, color in controls.items():
      x = 100 * np.array([number(row, (control, "h", "accuracy")) for row in rows])
      axes[0].plot(x, place, "|", ms=11, color=color, label=control)
    axes[0].set_yticks(range(len(order)), [drawing.plain(name, 48) for name in order])
    drawing.legend(made, *axes[0].get_legend_handles_labels())
    return made

  with drawing.style():
    return drawing.render(draw(), "sweep.png")


def write(folder: pathlib.Path, rows: Sequence[dict[str, Any]]) -> None:
  """Writes sweep.md and sweep.png: a reader sees the old ones or the new ones."""
  contents = {"sweep.md": f"{table(rows)}\n".encode(), "sweep.png": figure(rows).png}
  for name, content in contents.items():
    jsonl.replace(folder / name, content)
