"""A page to look around in: dimensions, images, and from one to the other."""

import os
import pathlib

from ncl_jax.explorer import page
from ncl_jax.explorer.data import Exploration, Side

__all__ = ["Exploration", "Side", "write"]


def write(file: str | os.PathLike, exploration: Exploration) -> pathlib.Path:
  """Writes the explorer, one HTML file that needs no other and no network.

  Args:
    file: where to; its folder is made if missing.
    exploration: what to show.

  Returns:
    The absolute path.
  """
  path = pathlib.Path(file).expanduser().resolve()
  path.parent.mkdir(parents=True, exist_ok=True)
  draft = path.with_name(f".{path.name}.draft")
  draft.write_text(page.as_html(exploration), encoding="utf-8")
  draft.replace(path)
  return path
