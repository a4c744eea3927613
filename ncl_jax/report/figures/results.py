"""Figures of numbers: training curves, interpretability bars, accuracy dots."""

import math
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ncl_jax.report.comparison import Comparison, Method, Metric
from ncl_jax.report.figures import drawing, selection

# key of a logged row, title, label of the y axis, factor
CURVES = (
  ("loss", "Training loss", "loss, nats", 1),
  ("probe_accuracy", "Online linear probe on h", "accuracy, %", 100),
  ("class_consistency", "Class consistency of f", "consistency, %", 100),
  ("sparsity", "Sparsity of f", "zeros, %", 100),
  ("active_dimensions", "Active dimensions of f", "dimensions", 1),
  ("effective_rank", "Effective rank of f", "rank", 1),
)
NEXT_TO: dict[str, Any] = {
  "textcoords": "offset points",
  "va": "center",
  "fontsize": 7.5,
}


def _series(method: Method, *keys: str) -> np.ndarray:
  """Points [P, keys] of a curve, without rows in which one is missing or NaN."""
  rows = [[row.get(key) for key in keys] for row in method.curve]
  points = np.array(rows, np.float64).reshape(-1, len(keys))
  return points[np.isfinite(points).all(axis=1)]


def curves(comparison: Comparison) -> drawing.Picture | None:
  """Training curves of the methods that were trained; None where none was."""
  colored = zip(comparison.methods, drawing.colors(comparison), strict=True)
  colors = {method.key: color for method, color in colored}
  methods = [method for method in comparison.methods if method.curve]
  # By epochs where each row has its own: whole ones would overlap.
  epochs = [(_series(method, "epoch"), len(method.curve)) for method in methods]
  rising = all(len(e) == rows and (np.diff(e, axis=0) > 0).all() for e, rows in epochs)
  axis = "epoch" if rising else "step"
  shown = [c for c in CURVES if any(len(_series(m, axis, c[0])) for m in methods)]
  if not shown:
    return None

  def draw(narrow: bool) -> Figure:
    figure, axes = drawing.panels(len(shown), 3.7, 2.4, columns=1 if narrow else 2)
    for ax, (key, title, label, factor) in zip(axes, shown, strict=True):
      for method in methods:
        x, y = _series(method, axis, key).T
        marker = "o" if len(x) < 3 else ""
        color = colors[method.key]
        ax.plot(x, factor * y, color=color, linewidth=1.6, marker=marker)
      ax.set(title=title, ylabel=label, xlabel=axis)
      if key == "sparsity":
        ax.set_ylim(-2, 102)  # CL lies on the 0 line: keep it in sight
      if key in ("active_dimensions", "effective_rank"):
        ax.set_ylim(bottom=0)
    handles = [Line2D([], [], color=colors[m.key], linewidth=1.6) for m in methods]
    drawing.legend(figure, handles, [drawing.plain(m.label, 30) for m in methods])
    return figure

  names = " and ".join(method.label for method in methods)
  return drawing.Picture(
    draw,
    "curves",
    "Training",
    f"{names} as they train, first seed ({comparison.seeds[0]}); all numbers are those"
    " of the training batches, whose augmented views are harder than test images and"
    " too few to activate every dimension. The loss has the same formula in both, but a"
    " lower loss is not a better representation. The probe is a linear classifier"
    " trained along on the backbone features h; its gradient does not reach the"
    " network. Accuracy and loss axes need not start at 0.",
    f"{len(shown)} line charts over {axis}s: {', '.join(c[1] for c in shown)}.",
  )


def _shares(comparison: Comparison, group: str) -> list[Metric]:
  """The percentages of a group that at least one method has a number for."""
  return [
    metric
    for metric in comparison.metrics
    if metric.group == group
    and metric.unit == "%"
    and any(method.summary(metric).count for method in comparison.methods)
  ]


def _lines(
  comparison: Comparison,
  shown: list[Metric],
  narrow: bool,
  draw: Callable[[Axes, int, float, np.ndarray], None],
) -> tuple[Figure, Axes]:
  """A figure with one line a method under each metric, and dotted lines at chance.

  `draw` gets the axes, the method's index, the line's height on the y axis, and the
  method's values in percent.
  """
  count = len(comparison.methods)
  height = 1.2 + len(shown) * (0.18 + 0.21 * count)
  figure, (ax,) = drawing.panels(1, 4.1 if narrow else 7.4, height)
  for i, metric in enumerate(shown):
    for j, method in enumerate(comparison.methods):
      values = 100 * np.asarray(method.values.get(metric.key, ()), np.float64)
      values = values[np.isfinite(values)]
      if values.size:
        draw(ax, j, i + 0.8 * ((j + 0.5) / count - 0.5), values)
    chance = comparison.chance.get(metric.key, math.nan)
    if math.isfinite(chance):
      ax.plot([100 * chance] * 2, [i - 0.46, i + 0.46], color=drawing.INK, ls=":")
  width = 18 if narrow else 30
  labels = ["\n".join(textwrap.wrap(drawing.plain(m.label), width)) for m in shown]
  ax.set_yticks(range(len(shown)), labels)
  ax.set_ylim(len(shown) - 0.48, -0.52)
  ax.tick_params(axis="y", length=0)
  ax.grid(False, axis="y")
  return figure, ax


def _definitions(shown: list[Metric]) -> str:
  labels: dict[str, list[str]] = {}
  for metric in shown:
    if metric.note:
      labels.setdefault(metric.note, []).append(metric.label)
  return " ".join(f"{'; '.join(same)}: {note}" for note, same in labels.items())


def _active(comparison: Comparison, method: Method) -> str:
  """Number of active dimensions, the mean over seeds where the table has it."""
  values = np.array(method.values.get("active_dimensions", ()))
  if np.isfinite(values).any():
    return f"{np.nanmean(values):.0f}"
  return str(len(selection.active_dimensions(method.features, comparison.threshold)))


def interpretability(comparison: Comparison) -> drawing.Picture | None:
  """Bars of the interpretability percentages; None where there are none."""
  shown = _shares(comparison, "Interpretability")
  if not shown:
    return None
  methods, colors = comparison.methods, drawing.colors(comparison)

  def bar(ax: Axes, j: int, y: float, values: np.ndarray) -> None:
    mean = values.mean()
    ax.barh(y, mean, 0.72 / len(methods), color=colors[j])
    if values.size > 1:
      ax.plot(values, [y] * values.size, "o", color=drawing.INK, ms=2.6, alpha=0.75)
    label = f"{mean:.1f} %  ·  {_active(comparison, methods[j])} active"
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
    ax.annotate(label, (max(values.max(), mean), y), (6, 0), **NEXT_TO, bbox=box)

  def draw(narrow: bool) -> Figure:
    figure, ax = _lines(comparison, shown, narrow, bar)
    # Beyond 100 % lies room for the last label.
    ax.set(xlim=(0, 145 if narrow else 124), xticks=range(0, 101, 20), xlabel="%")
    ax.spines["bottom"].set_bounds(0, 100)
    handles: list = [Patch(color=color) for color in colors]
    labels = [drawing.plain(method.label, 30) for method in methods]
    if any(metric.key in comparison.chance for metric in shown):
      handles.append(Line2D([], [], color=drawing.INK, ls=":"))
      labels.append("chance")
    drawing.legend(figure, handles, labels)
    return figure

  count = len(comparison.seeds)
  seeds = "One seed." if count == 1 else f"Dark points: the {count} seeds."
  return drawing.Picture(
    draw,
    "interpretability",
    "Sparsity and consistency",
    "Bars: means; at their ends the value and the number of active dimensions (|f| >"
    f" {comparison.threshold:g} for at least one image). {seeds}"
    f" {_definitions(shown)}",
    _values_in_words(comparison, shown),
  )


def accuracy(comparison: Comparison) -> drawing.Picture | None:
  """Dots of the accuracies on an axis fitted to them; None where there are none."""
  shown = _shares(comparison, "Accuracy")
  if not shown:
    return None
  colors = drawing.colors(comparison)
  markers = [drawing.MARKERS[j % len(drawing.MARKERS)] for j in range(len(colors))]

  def dot(ax: Axes, j: int, y: float, values: np.ndarray) -> None:
    mean = values.mean()
    ax.axhline(y, color="#EEEEEE", linewidth=0.8, zorder=0)
    if values.size > 1:
      ax.plot(values, [y] * values.size, "|", color=colors[j], ms=8, alpha=0.8)
    ax.plot(mean, y, markers[j], color=colors[j], ms=6.5)
    ax.annotate(f"{mean:.1f}", (max(values.max(), mean), y), (8, 0), **NEXT_TO)

  def draw(narrow: bool) -> Figure:
    figure, ax = _lines(comparison, shown, narrow, dot)
    every = [m.values.get(x.key, ()) for x in shown for m in comparison.methods]
    values = 100 * np.concatenate(every)
    low, high = np.nanmin(values), np.nanmax(values)
    pad = max(0.5, 0.08 * (high - low))
    low, high = max(0, low - pad), high + pad
    ax.set_xlim(low, high + 0.06 * (high - low))  # room for the last number
    start = f"{low:.1f}, not at 0" if low > 0 else "0"
    ax.set_xlabel(f"accuracy, %  (the axis starts at {start})")
    looks = zip(markers, colors, strict=True)
    handles = [Line2D([], [], ls="", marker=m, color=color) for m, color in looks]
    labels = [drawing.plain(method.label, 30) for method in comparison.methods]
    drawing.legend(figure, handles, labels)
    return figure

  count = len(comparison.seeds)
  ticks = "s. Small strokes: the single seeds." if count > 1 else "."
  chance = {comparison.chance.get(metric.key) for metric in shown} - {None}
  level = ""
  if len(chance) == 1:
    level = f" Chance is {100 * min(chance):.1f} %."  # type: ignore[type-var, operator]
  return drawing.Picture(
    draw,
    "accuracy",
    "Accuracy",
    f"Dots: means over {count} seed{ticks}{level} h: backbone features;"
    " f: projector output after the transform. The axis is fitted to the values, which"
    f" is why these are dots and not bars. {_definitions(shown)}",
    _values_in_words(comparison, shown),
  )


def _values_in_words(comparison: Comparison, shown: list[Metric]) -> str:
  lines = []
  for metric in shown:
    means = {m.label: m.summary(metric).mean for m in comparison.methods}
    cells = [f"{k} {100 * x:.1f}" for k, x in means.items() if math.isfinite(x)]
    lines.append(f"{metric.label}, %: {', '.join(cells)}.")
  return " ".join(lines)
