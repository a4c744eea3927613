"""The explorer as one HTML file that asks for nothing else."""

import base64
import html
import importlib.resources
import json
import string
from typing import Any

import numpy as np

from ncl_jax.data.source import Images
from ncl_jax.report.explorer import data, thumbnails
from ncl_jax.report.explorer.data import Exploration

# Names that the page's script knows; little-endian, as all browsers are.
_TYPES = {"u1": "u1", "i2": "<i2", "i4": "<i4", "f4": "<f4"}


def as_html(exploration: Exploration) -> str:
  """The page: style, script, data and thumbnails in one text.

  It has 30 MB at most for 10,000 images and two sides of 2,048 dimensions.
  """
  sprite = thumbnails.sprite(pictures(exploration))
  sheets = "\n".join(
    f'<script type="text/plain" id="sheet{i}">{base64.b64encode(s).decode()}</script>'
    for i, s in enumerate(sprite.sheets)
  )
  return string.Template(_file("explorer.html")).substitute(
    title=html.escape(exploration.title),
    style=_file("explorer.css"),
    script=_file("explorer.js"),
    data=as_json(content(exploration, sprite)),
    sheets=sheets,
  )


def pictures(exploration: Exploration) -> Images:
  """What the thumbnails show: the images, and after them the partners."""
  if exploration.texts:
    return np.zeros((1, 1, 1, 1), np.uint8)  # texts stand for themselves
  images = exploration.images
  if exploration.partners is None:
    return images
  return np.concatenate([images[np.arange(len(images))], exploration.partners])


def content(exploration: Exploration, sprite: thumbnails.Sprite) -> dict[str, Any]:
  """What the page's script reads: texts, numbers, and arrays as {"type", "data"}."""
  labels = np.asarray(exploration.labels)
  names = [str(name) for name in exploration.class_names]
  most = int(labels.max(initial=-1)) + 1
  names += [str(k) for k in range(len(names), most)]
  # A caption that stands at several images is one text.
  captions, rows, caption = np.unique(
    np.array([]) if exploration.captions is None else exploration.captions,
    return_index=True,
    return_inverse=True,
  )
  return {
    "title": exploration.title,
    "note": exploration.note,
    "images": len(labels),
    "threshold": exploration.threshold,
    "classes": names,
    "labels": _pack(labels, "i4"),
    "texts": list(exploration.texts),
    "files": list(exploration.files),
    "words": list(exploration.words),
    "captions": [str(text) for text in captions],
    "caption": _pack(caption, "i4"),
    "partners": exploration.partners is not None,
    "sprite": {k: v for k, v in vars(sprite).items() if k != "sheets"},
    "sides": [
      _side(side, labels, rows, len(names), exploration.threshold)
      for side in exploration.sides
    ],
  }


def _side(
  side: data.Side,
  labels: np.ndarray,
  captions: np.ndarray,
  num_classes: int,
  threshold: float,
) -> dict[str, Any]:
  """Of one method; `captions` are rows at which each of the texts stands."""
  f = np.asarray(side.f, np.float32)
  table = data.dimensions(f, labels, num_classes, threshold)
  found = table | data.codes(f, threshold) | data.neighbours(f)
  of_captions = None if side.captions is None else side.captions[captions]
  for name, g, count in (
    ("words", side.words, data.TEXTS),
    ("captions", of_captions, data.TEXTS),
    ("partners", side.partners, data.TOP),
  ):
    if g is not None and len(g):
      best = data.strongest(np.asarray(g, np.float32), count, threshold)
      found |= {f"top_{name}": best[0], f"top_{name}_values": best[1]}
  arrays = {
    key: _pack(np.rint(array * data.SCALE), "i2")
    if key.endswith("_values")
    else _pack(array, "f4" if array.dtype.kind == "f" else "i4")
    for key, array in found.items()
  }
  if side.sepin is not None:
    arrays["sepin"] = _pack(side.sepin, "f4")
  shown = {"label": side.label, "dimensions": f.shape[1], "arrays": arrays}
  if side.attention is not None:
    maps = data.looked_at(side.attention)
    arrays["attention"] = _pack(maps.reshape(len(maps), -1), "u1")
    # The grid of an attention map, and which part of the image it covers.
    shown |= {"grid": list(maps.shape[2:]), "seen": side.seen}
  return shown


def _pack(array: np.ndarray, kind: str) -> dict[str, Any]:
  values = np.ascontiguousarray(array, _TYPES[kind])
  return {
    "type": kind,
    "width": values.shape[-1] if values.ndim > 1 else 1,
    "data": base64.b64encode(values.tobytes()).decode(),
  }


def as_json(value: Any) -> str:
  r"""JSON that can stand inside a script element, whatever its texts hold.

  >>> as_json("</script>")
  '"\\u003c/script>"'
  """
  return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _file(name: str) -> str:
  return (importlib.resources.files(__package__) / name).read_text("utf-8")
