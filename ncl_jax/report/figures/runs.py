"""Figures that a comparison has no numbers for: values of f, maps, selection curves."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ncl_jax.report import tables
from ncl_jax.report.comparison import Comparison
from ncl_jax.report.figures import drawing
from ncl_jax.report.sweep import number

BINS = 60
MAPPED = 1000  # images of a t-SNE map: more take minutes and hide each other
# Okabe and Ito's, but for the yellow that vanishes on white; further classes take other
# marks.
CLASS_COLORS = (
  *(drawing.METHOD, drawing.BASELINE, drawing.AGREES, drawing.DIFFERS),
  *("#E69F00", "#56B4E9", "#000000"),
)
# Key of a selection's rule, its label and the dashes of its line.
RULES = {
  "random": ("random dimensions", ":"),
  "ea_signed": ("largest EA, signed", "-"),
  "ea_relu": ("largest EA, rectified", "--"),
}


def activations(comparison: Comparison) -> drawing.Picture:
  """Histogram of the single values of f, exact zeros apart."""
  labels = [method.label for method in comparison.methods[:2]]
  every = [method.features for method in comparison.methods[:2]]
  values = [f[np.abs(f) > comparison.threshold] for f in every]
  zeros = [100 * (1 - len(v) / f.size) for v, f in zip(values, every, strict=True)]
  ends = np.concatenate([*values, np.zeros(1)])
  low, high = ends.min(), ends.max()
  edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
  shares = [
    100 * np.histogram(v, edges)[0] / f.size for v, f in zip(values, every, strict=True)
  ]
  drawn = np.concatenate(shares)
  drawn = drawn[drawn > 0]

  def draw(narrow: bool) -> Figure:
    figure, axes = drawing.panels(2, 3.7, 2.5, 1 if narrow else 2)
    colors = drawing.colors(comparison)
    for i, ax in enumerate(axes):
      ax.stairs(shares[i], edges, fill=True, color=colors[i])
      ax.set(xlabel="value of f", ylabel="share of the values, %")
      ax.set_title(f"{drawing.plain(labels[i], 24)}: {zeros[i]:.0f} % zeros")
      if len(drawn):
        ax.set_yscale("log")
        ax.set_ylim(0.6 * drawn.min(), 2 * drawn.max())
    return figure

  return drawing.Picture(
    draw,
    "activations",
    "The values of f",
    "Histogram of all values of all test images; zeros"
    f" (|f| < {comparison.threshold:g}) are not drawn but counted in the headings."
    " Shares are of all values; the vertical axis is"
    " logarithmic, and the same in both.",
    "Two histograms. "
    + " ".join(
      f"{label}: {zero:.1f} % of the values are zero, the others between"
      f" {v.min() if len(v) else 0:.2f} and {v.max() if len(v) else 0:.2f}."
      for label, v, zero in zip(labels, values, zeros, strict=True)
    ),
  )


def map_of(x: np.ndarray, seed: int) -> np.ndarray:
  """t-SNE of the rows of x, [N, 2]; of at least 4 rows."""
  import threadpoolctl
  from sklearn.manifold import TSNE  # two seconds that few programs need

  # Fewer neighbours than rows; 30 is van der Maaten's and scikit-learn's choice.
  perplexity = min(30.0, (len(x) - 1) / 3)
  unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
  # Rows alike to the bit (empty codes) would lie on one point, whose spread is 0.
  noise = np.random.default_rng(seed).normal(size=unit.shape) * 1e-4
  tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=seed)
  # Its threads meet a thousand times; where cores are shared that takes minutes.
  with threadpoolctl.threadpool_limits(1):
    return tsne.fit_transform((unit + noise).astype(np.float32))


def maps(
  comparison: Comparison, layers: Sequence[tuple[str, np.ndarray]], seed: int = 0
) -> drawing.Picture:
  """t-SNE maps of features, coloured by class.

  Args:
    layers: a panel each: heading and features [N, W] of the comparison's images.
    seed: of the choice of images and of t-SNE.
  """
  order = np.random.default_rng(seed).permutation(len(comparison.labels))[:MAPPED]
  labels = comparison.labels[order]
  points = [map_of(np.asarray(x, np.float32)[order], seed) for _, x in layers]
  classes = [int(k) for k in np.unique(labels[labels >= 0])]
  looks: list[dict[str, Any]] = [
    {"color": CLASS_COLORS[i % len(CLASS_COLORS)], "marker": drawing.MARKERS[j]}
    for j in range(len(drawing.MARKERS))
    for i in range(len(CLASS_COLORS))
  ][: len(classes)]
  named = dict(zip(classes, looks, strict=False))

  def draw(narrow: bool) -> Figure:
    figure, axes = drawing.panels(len(layers), 3.6, 3.4, 1 if narrow else 2)
    for ax, (title, _), xy in zip(axes, layers, points, strict=True):
      rest = ~np.isin(labels, list(named))
      ax.scatter(xy[rest, 0], xy[rest, 1], s=5, color="#BBBBBB", linewidths=0)
      for k, look in named.items():
        x, y = xy[labels == k].T
        ax.scatter(x, y, s=7, linewidths=0, alpha=0.8, **look)
      ax.set(xticks=[], yticks=[])
      # In the panel's own shape, so that all panels are of one size.
      ax.set_aspect("equal", adjustable="datalim")
      ax.set_title(drawing.plain(title, 40))
      ax.grid(False)
    handles = [Line2D([], [], ls="", ms=4, **look) for look in named.values()]
    names = [drawing.plain(comparison.class_name(k), 14) for k in named]
    if handles:
      drawing.legend(figure, handles, names)
    return figure

  return drawing.Picture(
    draw,
    "maps",
    "Maps of the test images",
    f"t-SNE of {len(order)} test images, rows at unit length, seed {seed}; colour and"
    " mark are the class. Distances between groups, their sizes and their order mean"
    " nothing: t-SNE keeps neighbours together, no more.",
    f"{len(layers)} scatter plots, t-SNE of: "
    + ", ".join(title for title, _ in layers)
    + ".",
  )


def selection_curve(
  comparison: Comparison, results: Sequence[dict[str, Any] | None]
) -> drawing.Picture | None:
  """Probe accuracy over the number of dimensions kept; None without any result.

  Args:
    results: for each, the last result of the program `selection`; None without.
  """
  methods = [
    (method, color, result["curve"])
    for method, color, result in zip(
      comparison.methods[:2], drawing.colors(comparison), results, strict=False
    )
    if result
  ]
  if not methods:
    return None

  def draw(narrow: bool) -> Figure:
    figure, (ax,) = drawing.panels(1, 4.1 if narrow else 6.4, 3.6)
    for _, color, curve in methods:
      for name, (_, dashes) in RULES.items():
        x = [row["k"] for row in curve]
        # Matplotlib leaves out what is undefined.
        y = [100 * number(row, (name, "probe")) for row in curve]
        ax.plot(x, y, dashes, color=color, linewidth=1.6, marker="o", ms=3)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:.0f}")
    ax.set(xlabel="dimensions kept", ylabel="linear probe, %")
    handles = [Line2D([], [], color=color) for _, color, _ in methods]
    handles += [Line2D([], [], color="#555555", ls=ls) for _, ls in RULES.values()]
    names = [drawing.plain(method.label, 24) for method, _, _ in methods]
    columns = 2 if narrow else 3
    names += [text for text, _ in RULES.values()]
    figure.legend(handles, names, loc="outside upper center", ncols=columns)
    return figure

  best = ", ".join(
    f"{method.label} {tables.number(number(curve[-1], ('random', 'probe')), '%', 1)} % "
    f"with all {curve[-1]['k']}"
    for method, _, curve in methods
  )
  return drawing.Picture(
    draw,
    "selection",
    "Keeping few dimensions",
    "Accuracy of a linear probe on some dimensions of the projector's output, chosen on"
    " training images: at random, or those of the largest expected activation (EA).",
    f"Lines over the number of dimensions kept: {best}.",
  )
