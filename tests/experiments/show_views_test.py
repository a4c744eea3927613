"""The picture of the augmentations: the pixels of training, a row an image."""

import numpy as np
import PIL.Image
import pytest
import tiny

from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError
from ncl_jax.experiments import show_views


def cells(picture, rows, columns):
  """The cells cut out, [rows, columns, side, side, 3]."""
  step = show_views.CELL + show_views.GAP
  body = picture[show_views.HEAD :, show_views.GAP :]
  body = body[: rows * step, : columns * step].reshape(rows, step, columns, step, 3)
  return body.swapaxes(1, 2)[:, :, : show_views.CELL, : show_views.CELL]


def plain(config):
  """The recipe with every random step off."""
  config.augment.crop_scale = config.augment.crop_ratio = (1.0, 1.0)
  for key in ("flip", "jitter", "grayscale", "blur", "solarize"):
    config.augment[key] = 0.0
  return config


@pytest.mark.parametrize("channels", [1, 3])
def test_without_augmentation_every_cell_is_the_image(channels):
  source = tiny.source(train=20, channels=channels)
  config = plain(tiny.config())
  found = cells(show_views.picture(config, source, images=3, views=2), 3, 4)
  chosen = np.random.default_rng(config.seed).permutation(20)[:3]
  images = source.split("train").images[chosen]
  # 96 / 8 = 12 squares of the picture for each pixel.
  expected = np.broadcast_to(images, (3, 8, 8, 3)).repeat(12, 1).repeat(12, 2)
  for column in found.swapaxes(0, 1):
    np.testing.assert_array_equal(column, expected)


def test_with_augmentation_the_training_views_differ():
  config = tiny.config()
  source = tiny.source(train=20)
  found = cells(show_views.picture(config, source, images=3, views=4), 3, 6)
  np.testing.assert_array_equal(found[:, 0], found[:, 1])
  views = found[:, 2:].astype(int)
  for i in range(4):
    for j in range(i):
      assert (np.abs(views[:, i] - views[:, j]).max(axis=(1, 2, 3)) > 10).all()
  # Each view is a picture of 8 x 8 squares, without smoothing.
  corners = views[:, :, ::12, ::12]
  np.testing.assert_array_equal(corners.repeat(12, 2).repeat(12, 3), views)
  again = show_views.picture(config, source, images=3, views=4)
  np.testing.assert_array_equal(cells(again, 3, 6), found)


def test_large_and_oblong_images_are_reduced(tmp_path):
  images = np.zeros((4, 100, 200, 3), np.uint8)
  images[:, :, :100] = (200, 0, 0)
  split = Split(images, np.zeros(4, np.int32))
  source = Source("oblong", {"train": split, "test": split}, ("a",))
  config = plain(tiny.config())
  config.train.batch_size = 2
  config.augment.size = 64
  file = show_views.write(tmp_path / "new" / "v.png", config, source, views=1)
  with PIL.Image.open(file) as image:
    first = cells(np.asarray(image), 4, 3)[0, 0]
  row = first[48]
  np.testing.assert_array_equal(row[:40], np.broadcast_to([200, 0, 0], (40, 3)))
  np.testing.assert_array_equal(row[56:], np.zeros((40, 3)))
  assert (first[:24] == 255).all() and (first[72:] == 255).all()


def test_counts_below_one_are_refused():
  with pytest.raises(InputError, match="images"):
    show_views.picture(tiny.config(), tiny.source(), images=0)
  with pytest.raises(InputError, match="views"):
    show_views.picture(tiny.config(), tiny.source(), views=0)
