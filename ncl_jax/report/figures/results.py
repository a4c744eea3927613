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

from ncl_jax.report import statistics
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


def _number(row: dict, key: str) -> float:
  value = row.get(key)
  return math.nan if value is None else float(value)


def _series(rows: tuple[dict, ...], axis: str, key: str) -> np.ndarray:
  """Points (x, y) of one curve, rows without the key or with NaN left out, [P, 2]."""
  points = np.array([(_number(row, axis), _number(row, key)) for row in rows])
  points = points.reshape(-1, 2)
  return points[np.isfinite(points).all(axis=1)]


def _time_axis(methods: list[Method]) -> str:
  """ "epoch" where each row has its own, else "step": whole epochs would overlap."""
  for method in methods:
    epochs = [_number(row, "epoch") for row in method.curve]
    rising = all(a < b for a, b in zip(epochs, epochs[1:], strict=False))
    if not (rising and all(map(math.isfinite, epochs))):
      return "step"
  return "epoch"


def curves(comparison: Comparison) -> drawing.Picture | None:
  """Training curves of the methods that were trained; None where none was."""
  methods = [method for method in comparison.methods if method.curve]
  color = dict(
    zip((a.key for a in comparison.methods), drawing.colors(comparison), strict=True)
  )
  axis = _time_axis(methods) if methods else "step"
  shown = [
    curve
    for curve in CURVES
    if any(len(_series(method.curve, axis, curve[0])) for method in methods)
  ]
  if not shown:
    return None

  def draw(narrow: bool) -> Figure:
    figure, axes = drawing.panels(len(shown), 3.7, 2.4, columns=1 if narrow else 2)
    for ax, (key, title, label, factor) in zip(axes, shown, strict=True):
      for method in methods:
        x, y = _series(method.curve, axis, key).T
        marker = "o" if len(x) < 3 else ""
        ax.plot(x, factor * y, color=color[method.key], linewidth=1.6, marker=marker)
      ax.set(title=title, ylabel=label, xlabel=axis)
      if key == "sparsity":
        ax.set_ylim(-2, 102)  # CL lies on the 0 line: keep it in sight
      if key in ("active_dimensions", "effective_rank"):
        ax.set_ylim(bottom=0)
    handles = [
      Line2D([], [], color=color[method.key], linewidth=1.6) for method in methods
    ]
    labels = [drawing.plain(method.label, 30) for method in methods]
    drawing.legend(figure, handles, labels)
    return figure

  names = " and ".join(method.label for method in methods)
  return drawing.picture(
    draw,
    "curves",
    "Training",
    f"{names} as they train, first seed ({comparison.seeds[0]}); all numbers are those"
    " of the training batches, whose augmented views are harder than test images and"
    " too few to activate every dimension. The loss has the same formula in both, but a"
    " lower loss is not a better representation. The probe is a linear classifier"
    " trained along on the backbone features h; its gradient does not reach the"
    " network. Accuracy and loss axes need not start at 0.",
    f"{len(shown)} line charts over {axis}s: "
    + ", ".join(title for _, title, _, _ in shown)
    + ".",
  )


def _shares(comparison: Comparison, group: str) -> list[Metric]:
  """The percentages of a group that at least one method has a number for."""
  return [
    metric
    for metric in comparison.metrics
    if metric.group == group
    and metric.unit == "%"
    and any(
      np.isfinite(method.values.get(metric.key, ())).any()
      for method in comparison.methods
    )
  ]


def _rows(
  comparison: Comparison,
  shown: list[Metric],
  ax: Axes,
  narrow: bool,
  draw: Callable[[int, Method, str, float, np.ndarray, float], None],
) -> None:
  """Lays out one line a method under each metric, and marks chance by a dotted line.

  Args:
    narrow: whether labels take more lines and less width.
    draw: called with the method's index, the method, its colour, the line's height on y
      axis, its values in percent, and their mean.
  """
  count = len(comparison.methods)
  for i, metric in enumerate(shown):
    for j, (method, color) in enumerate(
      zip(comparison.methods, drawing.colors(comparison), strict=True)
    ):
      values = 100 * np.asarray(method.values.get(metric.key, ()), np.float64)
      values = values[np.isfinite(values)]
      if values.size:
        y = i + 0.8 * ((j + 0.5) / count - 0.5)
        draw(j, method, color, y, values, values.mean())
    chance = comparison.chance.get(metric.key, math.nan)
    if math.isfinite(chance):
      ax.plot([100 * chance] * 2, [i - 0.46, i + 0.46], color=drawing.INK, ls=":")
  width = 18 if narrow else 30
  labels = ["\n".join(textwrap.wrap(drawing.plain(m.label), width)) for m in shown]
  ax.set_yticks(range(len(shown)), labels)
  ax.set_ylim(len(shown) - 0.48, -0.52)
  ax.tick_params(axis="y", length=0)
  ax.grid(False, axis="y")


def _lines(comparison: Comparison, shown: list[Metric], narrow: bool):
  """An empty figure with room for one line a method and metric."""
  height = 1.2 + len(shown) * (0.18 + 0.21 * len(comparison.methods))
  figure, (ax,) = drawing.panels(1, 4.1 if narrow else 7.4, height)
  return figure, ax


def _definitions(shown: list[Metric]) -> str:
  labels: dict[str, list[str]] = {}
  for metric in shown:
    if metric.note:
      labels.setdefault(metric.note, []).append(metric.label)
  return " ".join(f"{'; '.join(same)}: {note}" for note, same in labels.items())


def _active(comparison: Comparison, method: Method) -> str:
  """Number of active dimensions, the mean over seeds where the table has it."""
  values = method.values.get("active_dimensions", ())
  mean = statistics.summarize(values).mean
  if not math.isfinite(mean):
    mean = len(selection.active_dimensions(method.features, comparison.threshold))
  return f"{mean:.0f}"


def interpretability(comparison: Comparison) -> drawing.Picture | None:
  """Bars of the interpretability percentages; None where there are none."""
  shown = _shares(comparison, "Interpretability")
  if not shown:
    return None
  colors = drawing.colors(comparison)
  thickness = 0.72 / len(comparison.methods)

  def draw(narrow: bool) -> Figure:
    figure, ax = _lines(comparison, shown, narrow)

    def bar(_, method, color, y, values, mean):
      ax.barh(y, mean, thickness, color=color)
      if values.size > 1:
        ax.plot(values, [y] * values.size, "o", color=drawing.INK, ms=2.6, alpha=0.75)
      end = (max(values.max(), mean), y)
      label = f"{mean:.1f} %  ·  {_active(comparison, method)} active"
      box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
      ax.annotate(label, end, (6, 0), **NEXT_TO, bbox=box)

    _rows(comparison, shown, ax, narrow, bar)
    # Beyond 100 % lies room for the last label.
    ax.set(xlim=(0, 145 if narrow else 124), xticks=range(0, 101, 20), xlabel="%")
    ax.spines["bottom"].set_bounds(0, 100)
    handles: list = [Patch(color=color) for color in colors]
    labels = [drawing.plain(method.label, 30) for method in comparison.methods]
    if any(metric.key in comparison.chance for metric in shown):
      handles.append(Line2D([], [], color=drawing.INK, ls=":"))
      labels.append("chance")
    drawing.legend(figure, handles, labels)
    return figure

  count = len(comparison.seeds)
  seeds = "One seed." if count == 1 else f"Dark points: the {count} seeds."
  return drawing.picture(
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

  def draw(narrow: bool) -> Figure:
    figure, ax = _lines(comparison, shown, narrow)
    spans: list[float] = []

    def dot(j, _, color, y, values, mean):
      ax.axhline(y, color="#EEEEEE", linewidth=0.8, zorder=0)
      if values.size > 1:
        ax.plot(values, [y] * values.size, "|", color=color, ms=8, alpha=0.8)
      ax.plot(mean, y, markers[j], color=color, ms=6.5)
      end = (max(values.max(), mean), y)
      ax.annotate(f"{mean:.1f}", end, (8, 0), **NEXT_TO)
      spans.extend([values.min(), values.max()])

    _rows(comparison, shown, ax, narrow, dot)
    pad = max(0.5, 0.08 * (max(spans) - min(spans)))
    low, high = max(0, min(spans) - pad), max(spans) + pad
    ax.set_xlim(low, high + 0.06 * (high - low))  # room for the last number
    start = f"{low:.1f}, not at 0" if low > 0 else "0"
    ax.set_xlabel(f"accuracy, %  (the axis starts at {start})")
    handles = [
      Line2D([], [], ls="", marker=marker, color=color)
      for marker, color in zip(markers, colors, strict=True)
    ]
    labels = [drawing.plain(method.label, 30) for method in comparison.methods]
    drawing.legend(figure, handles, labels)
    return figure

  ticks = "" if len(comparison.seeds) == 1 else " Small strokes: the single seeds."
  chance = {comparison.chance.get(metric.key) for metric in shown} - {None}
  level = (
    f" Chance is {100 * min(chance):.1f} %."  # type: ignore[type-var, operator]
    if len(chance) == 1
    else ""
  )
  return drawing.picture(
    draw,
    "accuracy",
    "Accuracy",
    f"Dots: means over {len(comparison.seeds)} seed"
    f"{'s' if len(comparison.seeds) > 1 else ''}.{ticks}{level} h: backbone features;"
    " f: projector output after the transform. The axis is fitted to the values, which"
    f" is why these are dots and not bars. {_definitions(shown)}",
    _values_in_words(comparison, shown),
  )


def _values_in_words(comparison: Comparison, shown: list[Metric]) -> str:
  lines = []
  for metric in shown:
    cells = [
      f"{method.label} {100 * mean:.1f}"
      for method in comparison.methods
      if math.isfinite(
        mean := statistics.summarize(method.values.get(metric.key, ())).mean
      )
    ]
    lines.append(f"{metric.label}, %: {', '.join(cells)}.")
  return " ".join(lines)
