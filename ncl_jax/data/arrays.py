"""Source `arrays:FILE.npz`: images and labels as numpy arrays in one file."""

import pathlib
import zipfile
import zlib

import numpy as np

from ncl_jax.data.decode import square
from ncl_jax.data.source import UNLABELLED, Source, Split
from ncl_jax.data.subset import divide
from ncl_jax.errors import InputError

# Names of (train images, train labels, test images, test labels); labels are optional.
LAYOUTS = (
  ("train_images", "train_labels", "test_images", "test_labels"),
  ("x_train", "y_train", "x_test", "y_test"),
)
UNDIVIDED = ("images", "labels")


def load(path: pathlib.Path, image_size: int = 0) -> Source:
  """Reads an .npz file.

  Its arrays: `train_images, train_labels, test_images, test_labels`, or Keras's
  `x_train, y_train, x_test, y_test`, or `images, labels`, from which a fixed stratified
  fifth becomes the test split. Labels may be missing. `train_labels_NAME` and
  `test_labels_NAME` (or `labels_NAME`) are labels of a further level, such as coarser
  classes, at which `feature_stats` looks too.

  Images are [N, H, W] or [N, H, W, C] with C 1 or 3: integers in 0..255, or floats in
  0..1, which are scaled to 0..255. Labels are integers [N] or [N, 1]: 0 to K-1, or -1.

  Args:
    path: the file.
    image_size: side in pixels; 0 = as they are.
  """
  name = f"arrays:{path}"
  arrays = _read(path)
  for layout in LAYOUTS:
    if layout[0] in arrays and layout[2] in arrays:
      parts = {"train": layout[:2], "test": layout[2:]}
      break
  else:
    if UNDIVIDED[0] not in arrays:
      known = "; ".join(", ".join(names) for names in (*LAYOUTS, UNDIVIDED))
      raise InputError(
        f"{path} holds the arrays {', '.join(arrays) or '(none)'}; allowed: {known}"
      )
    parts = {"all": UNDIVIDED}

  splits = {}
  for split, (images_name, labels_name) in parts.items():
    images = _images(arrays[images_name], f"{images_name} in {path}")
    levels = {}
    for key in arrays:
      if key == labels_name or key.startswith(f"{labels_name}_"):
        levels[key[len(labels_name) + 1 :]] = labels = _labels(
          arrays[key], f"{key} in {path}"
        )
        if len(labels) != len(images):
          raise InputError(
            f"{path}: {len(images)} images but {len(labels)} labels in {key}"
          )
    labels = levels.pop("", np.full(len(images), UNLABELLED, np.int32))
    splits[split] = Split(square(images, image_size), labels, levels)

  divided = "all" in splits
  if divided:
    splits = divide(splits["all"], name)

  num_classes = 1 + max(int(split.labels.max()) for split in splits.values())
  # Identifiers taken for labels would make a classifier that fills the memory.
  if num_classes > max(1000, len(splits["train"])):
    raise InputError(
      f"{path}: label {num_classes - 1} with {len(splits['train'])} train images;"
      " labels must be 0 to K-1 for K classes"
    )
  return Source(name, splits, tuple(str(k) for k in range(num_classes)), divided)


def _read(path: pathlib.Path) -> dict[str, np.ndarray]:
  if not path.is_file():
    raise InputError(f"no file {path}")
  if not zipfile.is_zipfile(path):
    raise InputError(f"{path} is not an .npz file, as numpy.savez makes them")
  try:
    with np.load(path) as file:
      return dict(file)
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    raise InputError(f"cannot read {path}: {error}") from error


def _images(images: np.ndarray, what: str) -> np.ndarray:
  if images.ndim == 3:
    images = images[..., None]
  if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape:
    channels_first = images.ndim == 4 and images.shape[1] in (1, 3)
    hint = "; move the channels to the end" if channels_first else ""
    raise InputError(
      f"{what} has the shape {images.shape}; allowed: [N, H, W] or [N, H, W, C] with"
      f" C 1 or 3, none of them 0{hint}"
    )
  if images.dtype == np.uint8:
    return images
  kind = images.dtype.kind
  if kind not in "iuf":
    raise InputError(f"{what} has the dtype {images.dtype}; allowed: uint8")
  top = 1 if kind == "f" else 255
  low, high = images.min(), images.max()
  # Written so that NaN fails.
  if not (low >= 0 and high <= top):
    raise InputError(
      f"{what} is {images.dtype} from {low} to {high}; allowed: integers in 0..255, or"
      " floats in 0..1"
    )
  return np.round(images * (255 / top)).astype(np.uint8)


def _labels(labels: np.ndarray, what: str) -> np.ndarray:
  if labels.ndim == 2 and labels.shape[1] == 1:
    labels = labels[:, 0]
  if labels.ndim != 1 or labels.dtype.kind not in "iu":
    raise InputError(
      f"{what} has the shape {labels.shape} and the dtype {labels.dtype}; allowed:"
      " integers, [N] or [N, 1]"
    )
  if len(labels) and not -1 <= int(labels.min()) <= int(labels.max()) < 2**31:
    raise InputError(
      f"{what} goes from {labels.min()} to {labels.max()}; allowed: 0 to K-1, or -1"
    )
  return labels.astype(np.int32)
