"""Figures of dimensions: expected activation, and correlation with each other."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from ncl_jax import metrics
from ncl_jax.report.comparison import Comparison
from ncl_jax.report.figures import drawing, selection

BINS = 40
LOG_FROM = 30  # ratio of the highest to the lowest bar from which log y helps
LOWEST = 0.6  # bottom of a logarithmic axis: a single dimension still has a height


def _histogram(
  ax: Axes, counts: np.ndarray, dead: int, edges: np.ndarray, color: str
) -> None:
  """Draws the bars of one method, that of its dead dimensions apart."""
  step = edges[1] - edges[0]
  ax.bar(edges[:-1], counts, step, align="edge", color=color, linewidth=0)
  # Apart from the scale, so that it is not read as a value of it.
  left = edges[0] - 6 * step
  look: dict[str, Any] = {
    "color": "white",
    "edgecolor": color,
    "hatch": "////",
    "linewidth": 1,
  }
  ax.bar(left, dead, 3 * step, **look)
  ax.axvline(edges[0] - 2 * step, color="#AAAAAA", linewidth=0.8, linestyle=":")
  above: dict[str, Any] = {
    "xytext": (0, 3),
    "textcoords": "offset points",
    "ha": "center",
  }
  ax.annotate(f"{dead} dead", (left, max(dead, LOWEST)), fontsize=7.5, **above)
  ax.set_xlim(edges[0] - 12 * step, edges[-1] + step)
  ax.ticklabel_format(axis="x", scilimits=(-2, 3))
  ticks = MaxNLocator(4).tick_values(edges[0], edges[-1])
  ax.set_xticks(ticks[(ticks >= edges[0] - step / 2) & (ticks <= edges[-1])])


def expected_activation(comparison: Comparison) -> drawing.Picture:
  """Histograms of the expected activation of the dimensions, one panel a method."""
  methods, totals = (
    comparison.methods,
    [m.features.shape[1] for m in comparison.methods],
  )
  activation = []
  for method in methods:
    live = selection.active_dimensions(method.features, comparison.threshold)
    mean = np.asarray(metrics.expected_activation(method.features), np.float64)
    activation.append(mean[live])
  every = np.concatenate([*activation, np.zeros(1)])
  low, high = every.min(), every.max()
  edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
  counts = [np.histogram(a, edges)[0] for a in activation]
  dead = [total - len(a) for a, total in zip(activation, totals, strict=True)]
  bars = np.concatenate([*counts, dead])
  log = bars.max() >= LOG_FROM * bars[bars > 0].min()

  def draw(narrow: bool) -> Figure:
    width = 3.7 if len(methods) < 3 or narrow else 3.1
    figure, axes = drawing.panels(len(methods), width, 2.5, 1 if narrow else 3)
    for i, (ax, color) in enumerate(zip(axes, drawing.colors(comparison), strict=True)):
      _histogram(ax, counts[i], dead[i], edges, color)
      name, live = drawing.plain(methods[i].label, 24), len(activation[i])
      ax.set_title(f"{name}: {live} of {totals[i]} active")
      ax.set(xlabel="expected activation E[f]", ylabel="dimensions")
      if log:
        ax.set_yscale("log")
        ax.minorticks_off()
        ax.yaxis.set_major_formatter("{x:.0f}")
        ax.set_ylim(LOWEST, 2.2 * bars.max())
      else:
        ax.set_ylim(0, 1.15 * bars.max())
    return figure

  return drawing.Picture(
    draw,
    "expected_activation",
    "How active the dimensions are",
    "Number of dimensions by expected activation: the mean of f, rows of unit length,"
    " over the test images of the first seed. Hatched bar at the left: dimensions that"
    f" no image activates (|f| > {comparison.threshold:g}). The bins are the same in"
    " every panel" + ("; the vertical axis is logarithmic." if log else "."),
    "Histograms, one a method. "
    + " ".join(
      f"{method.label}: {len(a)} of {total} dimensions are active"
      + (f", the largest expected activation is {a.max():.3g}." if len(a) else ".")
      for method, a, total in zip(methods, activation, totals, strict=True)
    ),
  )


def _heat_map(
  ax: Axes, comparison: Comparison, c: np.ndarray, dominant: np.ndarray
) -> AxesImage:
  """Draws C of one method, with its dominant classes [M] at the left."""
  image = ax.imshow(c, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
  ax.grid(False)
  ax.set(xticks=[], yticks=[])
  for spine in ax.spines.values():
    spine.set_visible(True)
  # Runs of equal classes.
  starts = np.append(0, np.flatnonzero(np.diff(dominant)) + 1)
  stops = np.append(starts[1:], len(dominant))
  # Of more than 40 the lines would hide the picture, and most have no name.
  if dominant[0] >= 0 and len(starts) <= 40:
    for start in starts[1:]:
      ax.axhline(start - 0.5, color=drawing.INK, linewidth=0.35, alpha=0.6)
      ax.axvline(start - 0.5, color=drawing.INK, linewidth=0.35, alpha=0.6)
    named = stops - starts >= 0.04 * len(c)  # room for a name
    names = [comparison.class_name(dominant[start]) for start in starts[named]]
    middles = ((starts + stops - 1) / 2)[named]
    ax.set_yticks(middles, [drawing.plain(x, 10) for x in names], fontsize=6.5)
  ax.tick_params(length=0, pad=2)
  return image


def correlation(comparison: Comparison) -> drawing.Picture:
  """Heat maps of the correlation of active dimensions, one panel a method."""
  maps = []  # C in order, classes, mean |C - I| of all active dimensions
  for method in comparison.methods:
    c = np.asarray(metrics.correlation(method.features), np.float64)
    order, dominant = selection.correlation_order(
      method.features, comparison.labels, c, comparison.threshold
    )
    mean = float(metrics.orthogonality(method.features))
    maps.append((c[np.ix_(order, order)], dominant, mean))

  def draw(narrow: bool) -> Figure:
    figure, axes = drawing.panels(len(maps), 3.1, 3.0, 1 if narrow else 3)
    image = None
    for ax, method, (c, dominant, mean) in zip(
      axes, comparison.methods, maps, strict=True
    ):
      title = drawing.plain(method.label, 24)
      if len(c):
        image = _heat_map(ax, comparison, c, dominant)
        title += f"\nmean |C - I| = {mean:.3f}"
      else:
        drawing.say(ax, "no active dimension")
        ax.set_box_aspect(1)
      ax.set_title(title)
    if image:
      where = "bottom" if narrow else "right"
      bar = figure.colorbar(image, ax=axes, location=where, shrink=0.8, aspect=30)
      bar.set_label("C, cosine")
      bar.set_ticks([-1, -0.5, 0, 0.5, 1])
    return figure

  by = (
    "by the class for which their mean is largest (named at the left where there is"
    " room, lines between classes)"
    if (comparison.labels >= 0).any()
    else "so that similar ones lie together (average linkage on 1 - |C|)"
  )
  return drawing.Picture(
    draw,
    "correlation",
    "Correlation of dimensions",
    "C = the cosine of two dimensions' values over the test images (columns of unit"
    " norm, not centred), first seed; active dimensions only, at most the 256 with the"
    f" largest mean |f|, ordered {by}. Above: the mean of |C - I| over all active"
    " dimensions.",
    "Heat maps on a common scale from -1 to 1, one a method. "
    + " ".join(
      f"{method.label}: {len(c)} dimensions, mean |C - I| {mean:.3f}."
      for method, (c, _, mean) in zip(comparison.methods, maps, strict=True)
      if len(c)
    ),
  )
