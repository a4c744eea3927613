"""Turns a comparison of CL and NCL into files that a person reads."""

import json
import os
import pathlib
from typing import Any

from ncl_jax.report import figures, page, results, tables
from ncl_jax.report.comparison import Arm, Comparison, Metric

__all__ = ["Arm", "Comparison", "Metric", "table", "write"]


def _replace(path: pathlib.Path, content: bytes) -> None:
  """Writes a file so that a reader sees the old one or the new one, never half."""
  draft = path.with_name(f".{path.name}.draft")
  draft.write_bytes(content)
  os.replace(draft, path)


def write(directory: str | os.PathLike, comparison: Comparison) -> dict[str, Any]:
  """Writes `report.json`, `report.md`, `index.html` and `figures/*.png`.

  Args:
    directory: where to; made if missing, an older report in it is replaced.
    comparison: what was measured.

  Returns:
    The content of `report.json`.
  """
  folder = pathlib.Path(directory)
  (folder / "figures").mkdir(parents=True, exist_ok=True)
  pictures = figures.draw(comparison)
  report = results.document(comparison, pictures)
  images = [image for drawn in pictures for image in (drawn.wide, drawn.narrow)]
  for image in images:
    _replace(folder / image.file, image.png)
  texts = {
    "report.json": json.dumps(report, indent=2, allow_nan=False) + "\n",
    "report.md": page.as_markdown(comparison, pictures),
    "index.html": page.as_html(comparison, pictures),
  }
  for name, text in texts.items():
    _replace(folder / name, text.encode())
  for name in figures.NAMES:  # what an older report drew and this one does not
    for file in (f"figures/{name}.png", f"figures/{name}_narrow.png"):
      if file not in {image.file for image in images}:
        (folder / file).unlink(missing_ok=True)
  return report


def table(comparison: Comparison) -> str:
  """The table of results for a terminal: aligned columns, a line a metric.

  Args:
    comparison: what was measured.

  Returns:
    Text without a trailing newline.
  """
  return tables.text(comparison)
