"""What the augmentations make of a data set, as a picture: a row an image."""

import io
import os
import pathlib

import jax
import numpy as np
import PIL.Image
import PIL.ImageDraw
from ml_collections import ConfigDict

from ncl_jax import augment, checks, numerics
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.host import paths
from ncl_jax.runtime import jsonl

CELL = 96  # pixels of a cell's side
GAP = 6
HEAD = 22  # pixels of the line of headings
INK = (40, 40, 40)


def write(
  file: str | os.PathLike,
  config: ConfigDict,
  source: Source,
  *,
  images: int = 8,
  views: int = 8,
) -> pathlib.Path:
  """Writes the picture as PNG.

  Args:
    file: where to; its folder is made if missing.
    config: of a run, resolved or not; its seed chooses images and views.
    images: rows, fewer if there are fewer training images.
    views: columns of training views.
  """
  path = paths.absolute(file)
  pixels = picture(config, source, images=images, views=views)
  drawn = io.BytesIO()
  PIL.Image.fromarray(pixels).save(drawn, "png")
  paths.make(path.parent)
  jsonl.replace(path, drawn.getvalue())
  return path


def picture(
  config: ConfigDict, source: Source, *, images: int = 8, views: int = 8
) -> np.ndarray:
  """Draws training images as they are, as tests see them, and as training does.

  The views are made by the functions of training, then the normalisation is undone. A
  pixel of a small view is a square of the picture. The arguments are those of `write`.

  Returns:
    uint8 [height, width, 3]: a line of headings, then a row for each image.

  Raises:
    InputError: if a count is below 1, or the recipe does not fit the data.
  """
  checks.whole("images", images, 1)
  checks.whole("views", views, 1)
  config = config_lib.resolve(config, source)
  recipe = config_lib.augmentation(config)
  order = np.random.default_rng(config.seed).permutation(source.num_examples("train"))
  chosen = source.split("train").images[order[:images]]
  u = augment.view_parameters(numerics.key(config.seed), len(chosen), views)
  make = jax.jit(augment.make_views, static_argnames="config")
  trained = _pixels(make(u, chosen, config=recipe), recipe)
  test = _pixels(jax.jit(augment.eval_view, static_argnums=1)(chosen, recipe), recipe)
  step = CELL + GAP
  size = (GAP + (2 + views) * step, HEAD + len(chosen) * step)
  paper = PIL.Image.new("RGB", size, "white")
  for i, row in enumerate(zip(chosen, test, trained, strict=True)):
    for j, image in enumerate((*row[:2], *row[2])):
      paper.paste(_cell(image), (GAP + j * step, HEAD + i * step))
  pen = PIL.ImageDraw.Draw(paper)
  for j, head in enumerate(("image", "test view", "training views")):
    pen.text((GAP + j * step, HEAD // 4), head, fill=INK)
  return np.asarray(paper)


def _pixels(x: jax.Array, recipe: augment.AugmentConfig) -> np.ndarray:
  """Undoes the normalisation: uint8 again."""
  std, mean = (np.asarray(v, np.float32) for v in (recipe.std, recipe.mean))
  scaled = np.asarray(x) * std + mean
  return np.rint(255 * np.clip(scaled, 0, 1)).astype(np.uint8)


def _cell(image: np.ndarray) -> PIL.Image.Image:
  """The image, enlarged by a whole number without smoothing, or reduced to fit."""
  rgb = PIL.Image.fromarray(np.array(np.broadcast_to(image, (*image.shape[:2], 3))))
  longest = max(rgb.size)
  scale = CELL // longest or CELL / longest
  width, height = (max(1, round(side * scale)) for side in rgb.size)
  cell = PIL.Image.new("RGB", (CELL, CELL), "white")
  resized = rgb.resize((width, height), PIL.Image.Resampling.BOX)
  cell.paste(resized, ((CELL - width) // 2, (CELL - height) // 2))
  return cell
