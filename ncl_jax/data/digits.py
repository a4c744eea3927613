"""Source `digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

import importlib.util
import pathlib

import numpy as np

from ncl_jax.data.decode import square
from ncl_jax.data.source import Source, Split
from ncl_jax.data.subset import divide

_FILE = "datasets/data/digits.csv.gz"


def load(image_size: int = 0) -> Source:
  """1,438 train and 359 test images in 10 classes, without a download.

  Grey values 0..16 are scaled to 0..255; the split is made by `subset.divide`. An
  `image_size` of 0 means 8 pixels.
  """
  pixels, labels = _read()
  images = np.round(pixels * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
  whole = Split(square(images, image_size), labels.astype(np.int32))
  splits = divide(whole, "digits")
  return Source("digits", splits, tuple(str(digit) for digit in range(10)))


def _read() -> tuple[np.ndarray, np.ndarray]:
  """Pixels [1797, 64] and labels [1797]."""
  # Reads the table directly, because importing scikit-learn takes seconds and new users
  # wait for this first.
  package = importlib.util.find_spec("sklearn")
  for folder in (package.submodule_search_locations if package else None) or ():
    file = pathlib.Path(folder) / _FILE
    if file.is_file():
      table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
      return table[:, :-1], table[:, -1]
  import sklearn.datasets

  return sklearn.datasets.load_digits(return_X_y=True)
