"""Source `digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

import importlib.util
import pathlib

import numpy as np

from ncl_jax.data.decode import square
from ncl_jax.data.source import Source, Split
from ncl_jax.data.subset import divide


def load(image_size: int = 0) -> Source:
  """1,438 train and 359 test images in 10 classes, without a download.

  Grey values 0..16 are scaled to 0..255; the split is made by `subset.divide`. An
  `image_size` of 0 means 8 pixels.
  """
  # Reads scikit-learn's file directly, because importing it takes more than a second
  # and new users wait for this first.
  package = importlib.util.find_spec("sklearn")
  assert package and package.origin
  file = pathlib.Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
  table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
  pixels, labels = table[:, :-1], table[:, -1]
  images = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
  whole = Split(square(images, image_size), labels.astype(np.int32))
  splits = divide(whole, "digits")
  return Source("digits", splits, tuple(str(digit) for digit in range(10)))
