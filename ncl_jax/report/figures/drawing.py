"""How every figure looks: colours, fonts, panels, and the way to a PNG."""

import contextlib
import dataclasses
import functools
import io
import math
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
import PIL.Image
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ncl_jax.report.comparison import Comparison

# Okabe and Ito's palette: told apart in the common forms of colour blindness.
BASELINE = "#D55E00"
METHOD = "#0072B2"
CONTROLS = ("#7F7F7F", "#B3B3B3", "#4D4D4D")
AGREES = "#009E73"
DIFFERS = "#CC79A7"
INK = "#222222"
MARKERS = ("o", "s", "D", "^", "v", "P")
DPI = 150
MARGIN = 0.08  # inches of white around what is drawn
STYLE: dict[Any, Any] = {
  "font.family": "DejaVu Sans",  # ships with matplotlib: the same on every machine
  "font.size": 9,
  "text.color": INK,
  "axes.labelcolor": INK,
  "axes.edgecolor": "#888888",
  "axes.titlesize": 9.5,
  "axes.titleweight": "bold",
  "axes.titlelocation": "left",
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.axisbelow": True,
  "axes.grid": True,
  "grid.color": "#E4E4E4",
  "grid.linewidth": 0.7,
  "xtick.color": "#555555",
  "ytick.color": "#555555",
  "legend.frameon": False,
  "legend.columnspacing": 1.3,
  "legend.handlelength": 1.5,
  "legend.handletextpad": 0.5,
  "figure.constrained_layout.h_pad": 0.08,
  "figure.facecolor": "white",
}


@dataclasses.dataclass(frozen=True)
class Image:
  """One PNG file: its path in the report, its bytes, its width and height in pixels."""

  file: str
  png: bytes = dataclasses.field(repr=False)
  size: tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Picture:
  """One figure, drawn when one of its images is asked for.

  Attributes:
    draw: draws it, given whether the page is narrow.
    name: of its files.
    caption: what is seen and how it is defined.
    description: what the picture shows, for a reader who cannot see it.
  """

  draw: Callable[[bool], Figure] = dataclasses.field(repr=False, compare=False)
  name: str
  title: str
  caption: str
  description: str

  @functools.cached_property
  def wide(self) -> Image:
    """The figure, panels side by side."""
    with style():
      return render(self.draw(False), f"figures/{self.name}.png")

  @functools.cached_property
  def narrow(self) -> Image:
    """The same for a phone, panels one below the other."""
    with style():
      return render(self.draw(True), f"figures/{self.name}_narrow.png")


@contextlib.contextmanager
def style() -> Iterator[None]:
  """Draws in the report's style whatever the user's matplotlibrc says."""
  with matplotlib.rc_context(), warnings.catch_warnings():
    # Class names come in any script; a missing glyph is drawn as a box.
    warnings.filterwarnings("ignore", message="Glyph .* missing from font")
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(STYLE)
    yield


def colors(comparison: Comparison) -> list[str]:
  """One colour a method, the same in every figure."""
  controls = [CONTROLS[i % len(CONTROLS)] for i in range(len(comparison.methods) - 2)]
  return [BASELINE, METHOD, *controls]


def plain(string: str, most: int = 60) -> str:
  """Text that matplotlib draws as it stands, on one line, cut to `most` letters.

  >>> plain("a $b$  c", most=6)
  'a \\\\$b\\\\$…'
  """
  string = " ".join(string.split())
  if len(string) > most:
    string = string[: most - 1].rstrip() + "…"
  return string.replace("$", r"\$")  # a pair of dollars would start a formula


def wrapped(string: str, width: int) -> str:
  """As `plain`, on up to two lines of `width` letters, broken at spaces, - and _.

  >>> wrapped("sweet_pepper", 9)
  'sweet_\\npepper'
  """
  if len(string) <= width:
    return plain(string)
  lines = textwrap.wrap(string.replace("_", "_ "), width, max_lines=2, placeholder="…")
  return plain("\0".join(lines).replace("_ ", "_")).replace("\0", "\n")


def panels(
  count: int, width: float, height: float, columns: int = 3
) -> tuple[Figure, list[Axes]]:
  """A figure of `count` panels of the given size in inches, in rows of `columns`."""
  columns = min(columns, count)
  lines = -(-count // columns)
  figure = Figure((width * columns, height * lines), DPI, layout="constrained")
  axes = list(figure.subplots(lines, columns, squeeze=False).ravel())
  for ax in axes[count:]:
    ax.remove()
  return figure, axes[:count]


def legend(figure: Figure, handles: Sequence[Artist], labels: list[str]) -> None:
  """One legend for all panels, above them, in as many lines as the width asks for."""
  columns = max(1, min(len(labels), int(figure.get_figwidth() / 0.95)))
  figure.legend(handles, labels, loc="outside upper center", ncols=columns)


def say(ax: Axes, message: str) -> None:
  """Writes a message in the place of what a panel cannot show."""
  ax.set_axis_off()
  ax.text(0.5, 0.5, message, ha="center", va="center", transform=ax.transAxes)


def render(figure: Figure, file: str) -> Image:
  """A finished figure as a PNG, cut to what is drawn."""
  canvas = FigureCanvasAgg(figure)
  canvas.draw()
  box = figure.get_tightbbox(canvas.get_renderer()).padded(MARGIN)
  # Cut here: `savefig` would draw all of it twice to find where it ends.
  drawn = PIL.Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
  left, right = math.floor(box.x0 * DPI), math.ceil(box.x1 * DPI)
  top, bottom = (drawn.height - math.ceil(y * DPI) for y in (box.y1, box.y0))
  page = PIL.Image.new("RGB", (right - left, bottom - top), "white")
  page.paste(drawn, (-left, -top))
  buffer = io.BytesIO()
  page.save(buffer, "png", dpi=(DPI, DPI))
  return Image(file, buffer.getvalue(), page.size)


def as_svg(picture: Picture) -> bytes:
  """The wide figure, drawn again with lines in place of pixels."""
  buffer = io.BytesIO()
  fixed: dict[str, Any] = {"metadata": {"Date": None}}  # the same bytes each time
  with style(), matplotlib.rc_context({"svg.hashsalt": picture.title}):
    figure = picture.draw(False)
    figure.savefig(
      buffer, format="svg", bbox_inches="tight", pad_inches=MARGIN, **fixed
    )
  return buffer.getvalue()
