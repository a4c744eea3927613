"""Turns a comparison of CL and NCL into files that a person reads."""

import json
import os
from typing import Any

from ncl_jax.data.subset import some
from ncl_jax.host import paths
from ncl_jax.report import explorer, figures, json_report, page
from ncl_jax.report.comparison import Comparison, Method, Metric
from ncl_jax.report.explorer import data
from ncl_jax.report.tables import text as table
from ncl_jax.runtime import jsonl

__all__ = ["Method", "Comparison", "Metric", "table", "write"]


def write(directory: str | os.PathLike, comparison: Comparison) -> dict[str, Any]:
  """Writes `report.json`, `report.md`, `figures/*.png`, and two pages.

  The pages are `index.html`, the report, and `explorer.html`, to look around in.

  Args:
    directory: where to; made if missing, an older report in it is replaced.
  """
  folder = paths.absolute(directory)
  paths.make(folder / "figures")
  pictures = figures.draw(comparison)
  images = [image for drawn in pictures for image in (drawn.wide, drawn.narrow)]
  report = json_report.document(comparison, pictures)
  explorer.write(folder / page.EXPLORER, _exploration(comparison))
  for image in images:
    jsonl.replace(folder / image.file, image.png)
  texts = {
    "report.json": json.dumps(report, indent=2, allow_nan=False) + "\n",
    "report.md": page.as_markdown(comparison, pictures),
    "index.html": page.as_html(comparison, pictures),
  }
  for name, text in texts.items():
    jsonl.replace(folder / name, text)
  # What an older report drew and this one does not.
  older = {
    f"figures/{name}{form}.png" for name in figures.NAMES for form in ("", "_narrow")
  }
  for file in older - {image.file for image in images}:
    (folder / file).unlink(missing_ok=True)
  return report


def _exploration(comparison: Comparison) -> explorer.Exploration:
  """The two methods under comparison, to look around in."""
  count, methods = len(comparison.images), comparison.methods[:2]
  ids = data.some(count, data.IMAGES)
  things = "texts" if comparison.texts else "images"
  return explorer.Exploration(
    title=comparison.title,
    images=some(comparison.images, ids),
    labels=comparison.labels[ids],
    class_names=tuple(map(str, comparison.class_names)),
    sides=tuple(explorer.Side(m.label, m.features[ids]) for m in methods),
    note="" if len(ids) == count else f"{len(ids)} of {count} test {things}",
    texts=tuple(comparison.texts[n] for n in ids) if comparison.texts else (),
    files=tuple(comparison.files[n] for n in ids) if comparison.files else (),
  )
