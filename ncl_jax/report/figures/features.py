"""Figures of dimensions: expected activation, and correlation with each other."""

import dataclasses

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from ncl_jax import metrics
from ncl_jax.report.comparison import Comparison, Method
from ncl_jax.report.figures import drawing, selection

BINS = 40
LOG_FROM = 30  # ratio of the highest to the lowest bar from which log y helps
LOWEST = 0.6  # bottom of a logarithmic axis: a single dimension still has a height


def _histogram(
  ax: Axes, activation: np.ndarray, dead: int, edges: np.ndarray, color: str
) -> None:
  """Draws the bars of one method, that of its dead dimensions apart."""
  counts, _ = np.histogram(activation, edges)
  step = edges[1] - edges[0]
  ax.bar(edges[:-1], counts, step, align="edge", color=color, linewidth=0)
  # Apart from the scale, so that it is not read as a value of it.
  left = edges[0] - 6 * step
  ax.bar(
    left, dead, 3 * step, color="white", edgecolor=color, hatch="////", linewidth=1
  )
  ax.axvline(edges[0] - 2 * step, color="#AAAAAA", linewidth=0.8, linestyle=":")
  ax.annotate(
    f"{dead} dead",
    (left, max(dead, LOWEST)),
    (0, 3),
    textcoords="offset points",
    ha="center",
    fontsize=7.5,
  )
  ax.set_xlim(edges[0] - 12 * step, edges[-1] + step)
  ax.ticklabel_format(axis="x", scilimits=(-2, 3))
  ticks = MaxNLocator(4).tick_values(edges[0], edges[-1])
  ax.set_xticks(ticks[(ticks >= edges[0] - step / 2) & (ticks <= edges[-1])])


def expected_activation(comparison: Comparison) -> drawing.Picture:
  """Histograms of the expected activation of the dimensions, one panel a method."""
  live = [
    selection.active_dimensions(method.features, comparison.threshold)
    for method in comparison.methods
  ]
  activation = [
    np.asarray(metrics.expected_activation(method.features), np.float64)[alive]
    for method, alive in zip(comparison.methods, live, strict=True)
  ]
  every = np.concatenate(activation) if any(map(len, activation)) else np.zeros(1)
  low, high = min(0.0, every.min()), max(every.max(), 0.0)
  edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
  totals = [method.features.shape[1] for method in comparison.methods]
  bars = np.concatenate(
    [
      [*np.histogram(a, edges)[0], total - len(a)]
      for a, total in zip(activation, totals, strict=True)
    ]
  )
  log = bars.max() >= LOG_FROM * bars[bars > 0].min()

  def draw(narrow: bool) -> Figure:
    width = 3.7 if len(live) < 3 or narrow else 3.1
    figure, axes = drawing.panels(len(live), width, 2.5, 1 if narrow else 3)
    for ax, method, a, total, color in zip(
      axes,
      comparison.methods,
      activation,
      totals,
      drawing.colors(comparison),
      strict=True,
    ):
      _histogram(ax, a, total - len(a), edges, color)
      ax.set_title(f"{drawing.plain(method.label, 24)}: {len(a)} of {total} active")
      ax.set(xlabel="expected activation E[f]", ylabel="dimensions")
      if log:
        ax.set_yscale("log")
        ax.minorticks_off()
        ax.yaxis.set_major_formatter("{x:.0f}")
        ax.set_ylim(LOWEST, 2.2 * bars.max())
      else:
        ax.set_ylim(0, 1.15 * bars.max())
    return figure

  return drawing.picture(
    draw,
    "expected_activation",
    "How active the dimensions are",
    "Number of dimensions by expected activation: the mean of f, rows of unit length,"
    " over the test images of the first seed. Hatched bar at the left: dimensions that"
    f" no image activates (|f| > {comparison.threshold:g}). The bins are the same in"
    " every panel" + ("; the vertical axis is logarithmic." if log else "."),
    "Histograms, one a method. "
    + " ".join(
      f"{method.label}: {len(a)} of {method.features.shape[1]} dimensions are active"
      + (f", the largest expected activation is {a.max():.3g}." if len(a) else ".")
      for method, a in zip(comparison.methods, activation, strict=True)
    ),
  )


def _blocks(dominant: np.ndarray) -> list[tuple[int, int, int]]:
  """Runs of equal classes as (class, start, stop)."""
  edges = [0, *(np.flatnonzero(np.diff(dominant)) + 1), len(dominant)]
  return [
    (int(dominant[a]), int(a), int(b)) for a, b in zip(edges, edges[1:], strict=False)
  ]


@dataclasses.dataclass(frozen=True)
class _Map:
  """One heat map: C in order [M, M], classes [M], mean |C - I| of all active ones."""

  c: np.ndarray
  dominant: np.ndarray
  mean: float


def _heat_map_data(comparison: Comparison, method: Method) -> _Map:
  c = np.asarray(metrics.correlation(method.features), np.float64)
  order, dominant = selection.correlation_order(
    method.features, comparison.labels, c, comparison.threshold
  )
  mean = float(metrics.orthogonality(method.features))
  return _Map(c[np.ix_(order, order)], dominant, mean)


def _heat_map(ax: Axes, comparison: Comparison, data: _Map) -> AxesImage:
  """Draws C of one method, with its classes at the left."""
  image = ax.imshow(data.c, cmap="RdBu_r", vmin=-1, vmax=1, interpolation="nearest")
  ax.grid(False)
  ax.set(xticks=[], yticks=[])
  for spine in ax.spines.values():
    spine.set_visible(True)
  blocks = _blocks(data.dominant) if data.dominant[0] >= 0 else []
  if len(blocks) > 40:  # so many lines would hide the picture, and most have no name
    blocks = []
  for _, start, _ in blocks[1:]:
    ax.axhline(start - 0.5, color=drawing.INK, linewidth=0.35, alpha=0.6)
    ax.axvline(start - 0.5, color=drawing.INK, linewidth=0.35, alpha=0.6)
  named = [b for b in blocks if b[2] - b[1] >= 0.04 * len(data.c)]  # room for a name
  ax.set_yticks(
    [(start + stop - 1) / 2 for _, start, stop in named],
    [drawing.plain(comparison.class_name(label), 10) for label, _, _ in named],
    fontsize=6.5,
  )
  ax.tick_params(length=0, pad=2)
  return image


def correlation(comparison: Comparison) -> drawing.Picture:
  """Heat maps of the correlation of active dimensions, one panel a method."""
  by_class = bool((comparison.labels >= 0).any())
  maps = [_heat_map_data(comparison, method) for method in comparison.methods]

  def draw(narrow: bool) -> Figure:
    columns = 1 if narrow else 3
    figure, axes = drawing.panels(len(maps), 3.1, 3.0, columns)
    image = None
    for ax, method, data in zip(axes, comparison.methods, maps, strict=True):
      title = drawing.plain(method.label, 24)
      if data.dominant.size:
        image = _heat_map(ax, comparison, data)
        title += f"\nmean |C - I| = {data.mean:.3f}"
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

  order = (
    "by the class for which their mean is largest (named at the left where there is"
    " room, lines between classes)"
    if by_class
    else "so that similar ones lie together (average linkage on 1 - |C|)"
  )
  return drawing.picture(
    draw,
    "correlation",
    "Correlation of dimensions",
    "C = the cosine of two dimensions' values over the test images (columns of unit"
    " norm, not centred), first seed; active dimensions only, at most the 256 with the"
    f" largest mean |f|, ordered {order}. Above: the mean of |C - I| over all active"
    " dimensions.",
    "Heat maps on a common scale from -1 to 1, one a method. "
    + " ".join(
      f"{method.label}: {len(data.c)} dimensions, mean |C - I| {data.mean:.3f}."
      for method, data in zip(comparison.methods, maps, strict=True)
      if data.dominant.size
    ),
  )
