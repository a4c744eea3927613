"""Source `arrays:FILE.npz`: images and labels as numpy arrays in one file."""

import difflib
import pathlib
import zipfile
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
from absl import logging

from ncl_jax.data import classes as class_names
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
  0..1, which are scaled to 0..255. Labels are [N] or [N, 1]: whole numbers from 0 to
  K-1, also as floats, or names of classes, which are numbered in the order of people
  (1, 2, 10); -1 and the empty name mean unlabelled. Numbers that no image has are
  reported. Python objects are refused: to read them would run what is in the file.

  Args:
    path: the file.
    image_size: side in pixels; 0 = as they are.
  """
  name = f"arrays:{path}"
  arrays = read(path)
  for layout in LAYOUTS:
    if layout[0] in arrays and layout[2] in arrays:
      parts = {"train": layout[:2], "test": layout[2:]}
      break
  else:
    if UNDIVIDED[0] not in arrays:
      known = "; ".join(", ".join(names) for names in (*LAYOUTS, UNDIVIDED))
      raise InputError(
        f"{path} holds the arrays {', '.join(arrays) or '(none)'}; allowed: {known}"
        f"{_nearest(arrays)}"
      )
    parts = {"all": UNDIVIDED}

  label_names = [names[1] for names in parts.values()]
  used = sum(parts.values(), ())
  for key in label_names:
    others = [k for k in arrays if k not in used and not k.startswith(f"{key}_")]
    near = difflib.get_close_matches(key, others, 1, 0.8)
    if key not in arrays and near:
      # Else the set would pass for an unlabelled one.
      raise InputError(f"{path} has no {key} but {near[0]}: rename or remove that")
  classes = number_names(arrays, label_names, path)
  splits = {}
  for split, (images_name, labels_name) in parts.items():
    images = checked_images(arrays[images_name], f"{images_name} in {path}")
    levels = {}
    for key in arrays:
      if key == labels_name or key.startswith(f"{labels_name}_"):
        levels[key[len(labels_name) + 1 :]] = labels = checked_labels(
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

  if classes:
    return Source(name, splits, classes, divided)
  num_classes = 1 + max(int(split.labels.max()) for split in splits.values())
  # Identifiers taken for labels would make a classifier that fills the memory.
  if num_classes > max(1000, len(splits["train"])):
    raise InputError(
      f"{path}: label {num_classes - 1} with {len(splits['train'])} train images;"
      " labels must be 0 to K-1 for K classes"
    )
  present = set(np.concatenate([split.labels for split in splits.values()]).tolist())
  gaps = [str(k) for k in range(num_classes) if k not in present]
  if gaps:
    shown = ", ".join(gaps[:8]) + (", ..." if len(gaps) > 8 else "")
    logging.warning("%s: no image has the label %s", name, shown)
  return Source(name, splits, tuple(str(k) for k in range(num_classes)), divided)


def read(path: pathlib.Path) -> dict[str, np.ndarray]:
  """The arrays of an .npz file; never Python objects."""
  if not path.is_file():
    raise InputError(f"no file {path}")
  if not zipfile.is_zipfile(path):
    raise InputError(f"{path} is not an .npz file, as numpy.savez makes them")
  try:
    with np.load(path) as file:
      return dict(file)
  except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
    reason = str(error)
    if "allow_pickle" in reason:
      reason = (
        "it holds Python objects, which are never read, as that would run what is in "
        'the file; save numbers, or names as numpy.array(names, dtype="U")'
      )
    raise InputError(f"cannot read {path}: {reason}") from error


def _nearest(arrays: Iterable[str]) -> str:
  known = {key for names in (*LAYOUTS, UNDIVIDED) for key in names}
  for name in arrays:
    near = difflib.get_close_matches(name, known - {name}, 1)
    if near and name not in known:
      return f"; is {name} meant as {near[0]}?"
  return ""


def number_names(
  arrays: dict[str, np.ndarray], keys: Sequence[str], path: pathlib.Path
) -> tuple[str, ...]:
  """Turns labels that are names into numbers, in place; the names in their order."""
  named = [key for key in keys if key in arrays and arrays[key].dtype.kind in "US"]
  if not named:
    return ()
  mixed = [key for key in keys if key in arrays and key not in named]
  if mixed:
    raise InputError(
      f"{path}: {named[0]} holds names and {mixed[0]} {arrays[mixed[0]].dtype};"
      " allowed: names in both, or numbers in both"
    )
  texts: dict[str, list[str]] = {}
  for key in named:
    values = arrays[key]
    try:
      decoded = values if values.dtype.kind == "U" else np.char.decode(values, "utf-8")
    except UnicodeDecodeError as error:
      raise InputError(f"{key} in {path}: names that are not UTF-8: {error}") from error
    texts[key] = [class_names.same_form(str(x)) for x in decoded.reshape(-1)]
  names = class_names.ordered({x for text in texts.values() for x in text} - {""})
  most = max(1000, sum(map(len, texts.values())) // 2)
  if len(names) > most:
    raise InputError(
      f"{path}: {len(names)} different names in {', '.join(named)}, such as "
      f"{names[0]!r}; allowed: {most}. Are they names of images and not of classes?"
    )
  number = {name: k for k, name in enumerate(names)} | {"": UNLABELLED}
  for key, text in texts.items():
    shape = arrays[key].shape
    arrays[key] = np.array([number[x] for x in text], np.int32).reshape(shape)
  return names


def checked_images(images: np.ndarray, what: str) -> np.ndarray:
  """Images as uint8 [N, H, W, C], or an InputError that calls them `what`."""
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
  bad = np.count_nonzero(~np.isfinite(images)) if kind == "f" else 0
  if bad:
    raise InputError(
      f"{what} has {bad} values that are NaN or infinite; allowed: floats in 0..1"
    )
  low, high = images.min(), images.max()
  if low < 0 or high > top:
    bytes_as_floats = kind == "f" and low >= 0 and 1 < high <= 255
    hint = "; divide them by 255" if bytes_as_floats else ""
    raise InputError(
      f"{what} is {images.dtype} from {low} to {high}; allowed: integers in 0..255, or"
      f" floats in 0..1{hint}"
    )
  return np.round(images * (255 / top)).astype(np.uint8)


def checked_labels(labels: np.ndarray, what: str) -> np.ndarray:
  """Labels as int32 [N], or an InputError that calls them `what`."""
  if labels.ndim == 2 and labels.shape[1] == 1:
    labels = labels[:, 0]
  whole = labels.dtype.kind == "f" and np.isfinite(labels).all()
  if whole and (labels == np.round(labels)).all():
    labels = np.clip(labels, -(2**40), 2**40).astype(np.int64)
  if labels.ndim != 1 or labels.dtype.kind not in "iu":
    raise InputError(
      f"{what} has the shape {labels.shape} and the dtype {labels.dtype}; allowed:"
      " whole numbers or names of classes, [N] or [N, 1]; -1 for unlabelled"
    )
  if len(labels) and not -1 <= int(labels.min()) <= int(labels.max()) < 2**31:
    raise InputError(
      f"{what} goes from {labels.min()} to {labels.max()}; allowed: 0 to K-1, or -1"
    )
  return labels.astype(np.int32)
