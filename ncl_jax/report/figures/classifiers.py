"""Classifiers compared: accuracy against steps in one figure, time to accuracy."""

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ncl_jax.errors import InputError
from ncl_jax.host import paths
from ncl_jax.report.figures import drawing
from ncl_jax.runtime import jsonl

# (step, top-1 on the test set) of one run, steps ascending.
Curve = Sequence[tuple[int, float]]
SHARES = (0.5, 0.8, 0.95)
COLORS = (drawing.BASELINE, drawing.METHOD, drawing.AGREES, drawing.DIFFERS)


def curve(workdir: str | pathlib.Path) -> list[tuple[int, float]]:
  """The accuracy of a run while it trained.

  Args:
    workdir: of a classifier that was tested on the way.

  Returns:
    (step, top-1 in [0, 1]), steps ascending.

  Raises:
    InputError: if its metrics.jsonl has no such rows.
  """
  file = paths.local(workdir).resolve() / "metrics.jsonl"
  found = points(jsonl.read(file))
  if not found:
    raise InputError(
      f"no test accuracy in {file}: allowed are runs of classifiers with "
      "eval.test_every_epochs above 0"
    )
  return found


def points(rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, float]]:
  """(step, top-1) of the rows of a metrics.jsonl that have one.

  >>> points([{"step": 1}, {"step": 2, "test_top1": 0.5}])
  [(2, 0.5)]
  """
  return [
    (row["step"], row["test_top1"]) for row in rows if row.get("test_top1") is not None
  ]


def steps_to(run: Curve, level: float) -> int | None:
  """The first tested step with an accuracy of at least `level`; None without one.

  >>> steps_to([(10, 0.4), (20, 0.7), (30, 0.6)], 0.6)
  20
  """
  return next((step for step, top1 in run if top1 >= level), None)


def rows(
  cells: Mapping[str, Sequence[Curve]], references: Mapping[str, str]
) -> list[dict[str, float | int | str | None]]:
  """A row a cell: final accuracy, and steps to shares of the reference's.

  Args:
    cells: name -> curves, one a seed.
    references: name -> the cell whose final accuracy, the mean over seeds, counts.

  Returns:
    "cell", "seeds", "final", "lowest" and "highest" in percent, and for each of
    `SHARES` "steps to N %", the mean over seeds; None where a seed never got there.
  """
  final = {name: [run[-1][1] for run in runs] for name, runs in cells.items()}
  table = []
  for name, runs in cells.items():
    row: dict[str, float | int | str | None] = {
      "cell": name,
      "seeds": len(runs),
      "final": 100 * float(np.mean(final[name])),
      "lowest": 100 * min(final[name]),
      "highest": 100 * max(final[name]),
    }
    for share in SHARES:
      level = share * float(np.mean(final[references[name]]))
      taken = [steps_to(run, level) for run in runs]
      reached = [steps for steps in taken if steps is not None]
      whole = len(reached) == len(runs)
      row[f"steps to {share:.0%}"] = float(np.mean(reached)) if whole else None
    table.append(row)
  return table


def draw(panels: Mapping[str, Mapping[str, Sequence[Curve]]]) -> drawing.Picture:
  """Accuracy against steps: a line a cell, its range over seeds behind it.

  Args:
    panels: heading -> cell -> curves, one a seed, all tested at the same steps.

  Returns:
    The figure.
  """

  def figure_of(narrow: bool) -> Figure:
    figure, axes = drawing.panels(len(panels), 3.7, 2.9, 1 if narrow else 2)
    for ax, (title, cells) in zip(axes, panels.items(), strict=True):
      for (name, runs), color in zip(cells.items(), COLORS, strict=False):
        steps = [step for step, _ in runs[0]]
        values = 100 * np.array([[top1 for _, top1 in run] for run in runs])
        ax.plot(steps, values.mean(0), color=color, label=drawing.plain(name, 24))
        ax.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.15)
      ax.set(xlabel="steps", ylabel="top-1 on the test set, %")
      ax.set_title(drawing.plain(title, 40))
      ax.legend(loc="lower right")
    return figure

  last = "; ".join(
    f"{title}: "
    + ", ".join(
      f"{name} {100 * np.mean([run[-1][1] for run in runs]):.1f} %"
      for name, runs in cells.items()
    )
    for title, cells in panels.items()
  )
  return drawing.picture(
    figure_of,
    "classifiers",
    "Classifiers while they train",
    "Mean over seeds of the accuracy on the whole test set; behind it the range.",
    f"Lines over steps that end at: {last}.",
  )
