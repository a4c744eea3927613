"""Classifiers compared: accuracy against steps in one figure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ncl_jax.report.figures import drawing

# (step, top-1 on the test set) of one run, steps ascending.
Curve = Sequence[tuple[int, float]]
COLORS = (drawing.BASELINE, drawing.METHOD, drawing.AGREES, drawing.DIFFERS)


def points(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
  """(step, top-1) of the rows of a metrics.jsonl that have one.

  >>> points([{"step": 1}, {"step": 2, "test_top1": 0.5}])
  [(2, 0.5)]
  """
  return [
    (row["step"], row["test_top1"]) for row in rows if row.get("test_top1") is not None
  ]


def draw(panels: Mapping[str, Mapping[str, Sequence[Curve]]]) -> drawing.Picture:
  """Accuracy against steps: one line each, with its range over seeds.

  Args:
    panels: heading -> name -> curves, one a seed, all tested at the same steps.
  """

  def figure_of(narrow: bool) -> Figure:
    figure, axes = drawing.panels(len(panels), 3.7, 2.9, 1 if narrow else 2)
    for ax, (title, lines) in zip(axes, panels.items(), strict=True):
      for (name, runs), color in zip(lines.items(), COLORS, strict=False):
        steps = [step for step, _ in runs[0]]
        values = 100 * np.array([[top1 for _, top1 in run] for run in runs])
        ax.plot(steps, values.mean(0), color=color, label=drawing.plain(name, 24))
        ax.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.15)
      ax.set(xlabel="steps", ylabel="top-1 on the test set, %")
      ax.set_title(drawing.plain(title, 40))
      ax.legend(loc="lower right")
    return figure

  ends = []
  for title, lines in panels.items():
    last = {name: np.mean([run[-1][1] for run in runs]) for name, runs in lines.items()}
    shown = ", ".join(f"{name} {100 * top1:.1f} %" for name, top1 in last.items())
    ends.append(f"{title}: {shown}")
  return drawing.Picture(
    figure_of,
    "classifiers",
    "Classifiers while they train",
    "Mean over seeds of the accuracy on the whole test set; behind it the range.",
    f"Lines over steps that end at: {'; '.join(ends)}.",
  )
