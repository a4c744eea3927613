"""Source `digits`: scikit-learn's 1,797 handwritten digits of 8 x 8 pixels."""

import numpy as np

from ncl_jax.data.decode import square
from ncl_jax.data.source import Source, Split


def load(image_size: int = 0) -> Source:
  """1,437 train and 360 test images, 10 classes; part of scikit-learn, no download.

  The grey values 0..16 are scaled to 0..255. The split is
  `train_test_split(test_size=360, random_state=0, stratify=labels)`, rows in the set's
  own order.

  Args:
    image_size: side in pixels; 0 = 8.
  """
  import sklearn.datasets  # Half a second that other sources need not spend.
  import sklearn.model_selection

  images, labels = sklearn.datasets.load_digits(return_X_y=True)
  images = np.round(images * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
  labels = labels.astype(np.int32)
  parts = sklearn.model_selection.train_test_split(
    np.arange(len(labels)), test_size=360, random_state=0, stratify=labels
  )
  splits = {
    name: Split(square(images[rows], image_size), labels[rows])
    for name, rows in zip(("train", "test"), map(np.sort, parts), strict=True)
  }
  return Source("digits", splits, tuple(str(digit) for digit in range(10)))
