"""Source `arrays:FILE.npz`: images and labels as numpy arrays in one file."""

import difflib
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np

from ncl_jax.data import depth
from ncl_jax.data import labels as labels_lib
from ncl_jax.data.decode import square
from ncl_jax.data.source import UNLABELLED, Source, Split
from ncl_jax.data.subset import divide
from ncl_jax.errors import InputError
from ncl_jax.host import npz

# Names of (train images, train labels, test images, test labels); labels are optional.
LAYOUTS = (
  ("train_images", "train_labels", "test_images", "test_labels"),
  ("x_train", "y_train", "x_test", "y_test"),
)
UNDIVIDED = ("images", "labels")


def load(path: pathlib.Path, image_size: int = 0) -> Source:
  """Reads an .npz file.

  Its arrays are `train_images, train_labels, test_images, test_labels`, or Keras's
  `x_train, y_train, x_test, y_test`, or `images, labels`, from which a fixed stratified
  fifth becomes the test split. Labels may be missing. `train_labels_NAME` and
  `test_labels_NAME` (or `labels_NAME`) are labels at another level, such as coarser
  classes, which `feature_stats` also evaluates.

  Images are [N, H, W] or [N, H, W, C] with C 1 or 3, of the types and depths in
  `depth`. Labels are [N] or [N, 1], see `labels`: whole numbers from 0 to K-1, or class
  names. Other levels may also hold measured factors. Python objects are refused,
  because reading them could run code from the file.

  Args:
    image_size: side in pixels; 0 = unchanged.
  """
  name = f"arrays:{path}"
  arrays = npz.read(path)
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

  used = sum(parts.values(), ())
  for _, key in parts.values():
    others = [k for k in arrays if k not in used and not k.startswith(f"{key}_")]
    near = difflib.get_close_matches(key, others, 1, 0.8)
    if key not in arrays and near:
      # Otherwise the set would be treated as unlabelled.
      raise InputError(f"{path} has no {key} but {near[0]}: rename or remove that")
  splits, class_names, level_names = read_splits(arrays, parts, f"{path}", image_size)
  divided = "all" in splits
  if divided:
    splits = divide(splits["all"], name)
  return Source(name, splits, class_names, divided, level_names)


def levels_of(arrays: Iterable[str], keys: Iterable[str]) -> dict[str, list[str]]:
  """The label arrays by level: "" for `keys` themselves, "_NAME" for KEY_NAME."""
  levels: dict[str, list[str]] = {}
  for key in keys:
    for found in arrays:
      if found == key or found.startswith(f"{key}_"):
        levels.setdefault(found.removeprefix(key), []).append(found)
  return levels


def read_splits(
  arrays: Mapping[str, np.ndarray],
  parts: Mapping[str, tuple[str, str]],
  place: str,
  image_size: int,
) -> tuple[dict[str, Split], tuple[str, ...], dict[str, tuple[str, ...]]]:
  """The splits, the class names, and those of other levels.

  `parts` has the names of the images and of the labels of each split.
  """
  levels = levels_of(arrays, [labels for _, labels in parts.values()])
  numbers: dict[str, np.ndarray] = {}
  names: dict[str, tuple[str, ...]] = {}
  for level, keys in levels.items():
    number = labels_lib.factors if level else labels_lib.numbered
    found, names[level] = number({key: arrays[key] for key in keys}, place)
    numbers |= found
  images = checked_images({key: arrays[key] for key, _ in parts.values()}, place)
  splits = {}
  for split, (images_key, labels_key) in parts.items():
    pixels = images[images_key]
    labels = {"": np.full(len(pixels), UNLABELLED, np.int32)}
    for level in levels:
      if (key := labels_key + level) in numbers:
        labels[level] = numbers[key]
        if len(numbers[key]) != len(pixels):
          raise InputError(
            f"{place}: {len(pixels)} examples but {len(numbers[key])} labels in {key}"
          )
    classes = labels.pop("")
    further = {level[1:]: values for level, values in labels.items()}
    splits[split] = Split(square(pixels, image_size), classes, further)
  class_names = names.pop("", ())
  return splits, class_names, {level[1:]: found for level, found in names.items()}


def checked_images(
  arrays: Mapping[str, np.ndarray], place: str
) -> dict[str, np.ndarray]:
  """Converts the images of a data set to uint8 [N, H, W, C] with a common depth.

  They are [N, H, W] or [N, H, W, C] with C 1 or 3, of a type in `depth`, and come from
  `place`.
  """
  checked = {}
  for key, images in arrays.items():
    if images.ndim == 3:
      images = images[..., None]
    if images.ndim != 4 or images.shape[3] not in (1, 3) or 0 in images.shape:
      channels_first = images.ndim == 4 and images.shape[1] in (1, 3)
      hint = "; move the channels to the end" if channels_first else ""
      raise InputError(
        f"{key} in {place} has the shape {images.shape}; allowed: [N, H, W] or "
        f"[N, H, W, C] with C 1 or 3, none of them 0{hint}"
      )
    depth.check(images, f"{key} in {place}")
    checked[key] = images
  white = depth.white(checked.values(), f"{', '.join(checked)} in {place}")
  return {key: depth.to_bytes(images, white) for key, images in checked.items()}
