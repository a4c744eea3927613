"""The paper's first figure: test images that activate single dimensions most."""

import re
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ncl_jax.report.comparison import Comparison
from ncl_jax.report.figures import drawing, selection

CELL = 0.43  # inches of one image
LETTERS = 9  # of a name below it, in a line


def _grid(
  ax: Axes, comparison: Comparison, top: selection.TopImages, pitch: float
) -> None:
  """Draws one method's top images: a row a dimension, one unit a column."""
  for r, (dimension, images) in enumerate(zip(top.dimensions, top.images, strict=True)):
    y = r * pitch
    lines = [f"dim {dimension}"]
    if top.majority[r] >= 0:
      known = int((comparison.labels[images[images >= 0]] >= 0).sum())
      name = comparison.class_name(top.majority[r])
      lines += [drawing.wrapped(name, 13), f"{round(top.share[r] * known)} of {known}"]
    ax.text(-0.15, y + 0.5, "\n".join(lines), ha="right", va="center", fontsize=6.5)
    shown = images[images >= 0]
    for c, (n, image) in enumerate(zip(shown, comparison.images[shown], strict=True)):
      height, width = np.array(image.shape[:2]) / max(image.shape[:2]) * 0.86
      left, top_edge = c + (1 - width) / 2, y + (1 - height) / 2
      box = (left, left + width, top_edge + height, top_edge)
      pixels = image[..., 0] if image.shape[-1] == 1 else image
      # Pixels of a small image as squares; of a large one, none is left out.
      small = max(image.shape[:2]) <= CELL * drawing.DPI
      how = "nearest" if small else "antialiased"
      ax.imshow(pixels, "gray", vmin=0, vmax=255, extent=box, interpolation=how)
      label = comparison.labels[n]
      if label < 0:
        continue
      agrees = label == top.majority[r]
      look: dict[str, Any] = {"ec": drawing.DIFFERS, "lw": 2.2, "ls": (0, (2, 1))}
      if agrees:
        look = {"ec": drawing.AGREES, "lw": 1.1, "ls": "-"}
      ax.add_patch(Rectangle((left, top_edge), width, height, fill=False, **look))
      name = comparison.class_name(label)
      # A long word is written smaller, so that it is not broken.
      word = max(map(len, re.split("[ _-]", name)))
      letters = min(max(LETTERS, word), 2 * LETTERS)
      font = {"size": 5.5 * LETTERS / letters, "weight": "normal" if agrees else "bold"}
      center = {"ha": "center", "va": "top", "linespacing": 0.95}
      ax.text(c + 0.5, y + 1.0, drawing.wrapped(name, letters), font, **center)


def top_images(
  comparison: Comparison, rows: int = 8, columns: int = 8
) -> drawing.Picture:
  """The images that activate the most active dimensions most, CL next to NCL."""
  known = bool((comparison.labels >= 0).any())
  tops = [
    selection.top_images(
      method.features, comparison.labels, comparison.threshold, rows, columns
    )
    for method in comparison.methods
  ]
  long = any(len(str(name)) > LETTERS for name in comparison.class_names)
  pitch = 1.0 + known * (0.42 if long else 0.26)
  lines = max(1, *(len(top.dimensions) for top in tops[:2]))
  width = max(3, *(top.images.shape[1] for top in tops[:2]))
  margin = 1.75
  across, down = (width + margin) * CELL, lines * pitch * CELL

  def draw(narrow: bool) -> Figure:
    figure, axes = drawing.panels(2, across + 0.15, down + 0.35, 1 if narrow else 2)
    for ax, method, top, color in zip(
      axes, comparison.methods, tops, drawing.colors(comparison), strict=False
    ):
      if len(top.dimensions):
        _grid(ax, comparison, top, pitch)
        ax.set(xlim=(-margin, width), ylim=(lines * pitch, 0), aspect="equal")
        ax.set_anchor("N")
        ax.set_axis_off()
      else:
        drawing.say(ax, "no active dimension")
      ax.set_title(drawing.plain(method.label, 30), color=color)
    return figure

  caption = (
    "Each row is one dimension of f, from the top those with the largest expected"
    " activation E[f]; its columns are the test images with the highest value in that"
    f" dimension, highest first (only values above {comparison.threshold:g}). First"
    " seed."
  )
  found = ""
  if known:
    caption += (
      " Green frame: the image is of the row's most frequent class, named at the left"
      " with its count; dashed pink frame: it is not."
    )
    shares = [
      f"{method.label} {100 * np.nanmean(top.share):.0f} %"
      for method, top in zip(comparison.methods, tops, strict=True)
      if np.isfinite(top.share).any()
    ]
    if shares:
      found = (
        f" Share of the most frequent class, mean over the rows: {', '.join(shares)}."
      )
  names = " and ".join(method.label for method in comparison.methods[:2])
  return drawing.Picture(
    draw,
    "top_images",
    "What single dimensions respond to",
    caption + found,
    f"Two grids of test images, {names}, a row for each of the most active dimensions."
    + found,
  )
