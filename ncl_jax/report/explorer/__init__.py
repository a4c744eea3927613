"""A page to look around in: dimensions, images, and from one to the other."""

import html
import os
import pathlib

from ncl_jax.host import paths
from ncl_jax.report.explorer import page
from ncl_jax.report.explorer.data import Exploration, Side
from ncl_jax.runtime import jsonl

__all__ = ["Exploration", "Side", "as_frame", "write"]


def write(file: str | os.PathLike, exploration: Exploration) -> pathlib.Path:
  """Writes the explorer, one HTML file that needs no other and no network.

  Args:
    file: where to; its folder is made if missing.
  """
  path = paths.absolute(file)
  paths.make(path.parent)
  jsonl.replace(path, page.as_html(exploration))
  return path


def as_frame(file: str | os.PathLike, height: int = 760) -> str:
  """An explorer as a part of another page, such as a notebook: whole, not its address.

  Args:
    file: what `write` wrote.
    height: of the frame, in pixels; it is as wide as there is room.

  Returns:
    HTML of one element, as large as the file.
  """
  text = html.escape(paths.local(file).read_text(encoding="utf-8"))
  style = f"width: 100%; height: {height}px; border: 1px solid #8888"
  return (
    f'<div><iframe title="explorer" style="{style}" srcdoc="{text}"></iframe></div>'
  )
