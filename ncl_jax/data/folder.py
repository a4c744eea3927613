"""Source `folder:PATH`: image files, in one folder a class or without classes."""

import itertools
import os
import pathlib
from collections.abc import Iterable

import numpy as np
from absl import logging

from ncl_jax.data import decode
from ncl_jax.data.source import UNLABELLED, Source, Split
from ncl_jax.data.subset import divide
from ncl_jax.errors import InputError

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "val", "valid", "validation")
ON_BAD_IMAGE = ("stop", "skip")

# A run's work directory holds this file; its figures are no training images.
RUN_MARK = "config.json"

# The key of images that lie in no class folder.
NO_CLASS = ""

Listing = dict[str, list[str]]


def load(path: pathlib.Path, image_size: int = 0, on_bad_image: str = "stop") -> Source:
  """Lists a folder of images, which are decoded when asked for.

  Three layouts: `PATH/train/CLASS/*` with `PATH/test/CLASS/*` (or testing, val, valid,
  validation: the first there is); `PATH/CLASS/*`; and images without classes, as
  `PATH/*` or `PATH/train/*`, which are unlabelled. Where no test folder matches, a
  fixed stratified fifth is held out. Classes are the sorted folder names of both
  splits together, so that labels agree. Images may lie deeper below a class folder.
  Hidden files and folders, and folders with a run's config.json below, are left out.

  Args:
    path: the folder.
    image_size: side in pixels; 0 = the median shorter side of the train images, at
      most 256.
    on_bad_image: "stop" = an image that cannot be decoded is an error when it is met;
      "skip" = all are decoded once now, and those that fail are left out and listed in
      the log.

  Returns:
    A source of RGB images.
  """
  if on_bad_image not in ON_BAD_IMAGE:
    raise InputError(
      f"on_bad_image {on_bad_image!r}; allowed: {', '.join(ON_BAD_IMAGE)}"
    )
  if not path.is_dir():
    raise InputError(f"no folder {path}")
  name = f"folder:{path}"
  train, test = _listings(path)
  if on_bad_image == "skip":
    bad = decode.unreadable(_join([*train.values(), *test.values()]))
    train, test = _without(train, bad), _without(test, bad)
    if bad:
      lines = "\n".join(f"  {file}: {reason}" for file, reason in bad.items())
      logging.warning("%s: %d unreadable images left out:\n%s", name, len(bad), lines)
  if not train:
    raise InputError(
      f"no images in {path}; looked for {', '.join(sorted(decode.EXTENSIONS))} in"
      " PATH/train/CLASS and PATH/test/CLASS, in PATH/CLASS, and in PATH"
    )

  classes = tuple(sorted(({*train, *test}) - {NO_CLASS}))
  size = image_size or decode.file_side(_join(train.values()))
  if not image_size:
    logging.info("%s: image size %d, the median shorter side", name, size)
  splits = {"train": _split(train, classes, size)}
  if test:
    splits["test"] = _split(test, classes, size)
  else:
    splits = divide(splits["train"], name)
  _report_classes(name, classes, splits)
  return Source(name, splits, classes, divided=not test)


def _listings(path: pathlib.Path) -> tuple[Listing, Listing]:
  """Train and test files by class; test is empty where no folder matches train."""
  folders = {folder.name.lower(): folder for folder in _folders(path)}
  train_folder = next((folders[n] for n in TRAIN_NAMES if n in folders), None)
  if train_folder is None:
    if folders and set(folders) <= set(TEST_NAMES):
      raise InputError(
        f"{path} has the folders {', '.join(sorted(folders))} but none of"
        f" {', '.join(TRAIN_NAMES)}"
      )
    return _listing(path), {}
  train = _listing(train_folder)
  for name in TEST_NAMES:
    if name in folders:
      test = _listing(folders[name])
      # Challenges publish their test images without classes: of no use for labels.
      if test and (NO_CLASS in test) == (NO_CLASS in train):
        logging.info("%s: test images from %s", path, folders[name])
        return train, test
  return train, {}


def _listing(path: pathlib.Path) -> Listing:
  """Image files by class folder or, if there are no such folders, all as one list."""
  listing = {folder.name: _images_below(folder) for folder in _folders(path)}
  for name in [name for name, files in listing.items() if not files]:
    logging.warning("no images to use in %s: left out", path / name)
    del listing[name]
  loose = sorted(str(p) for p in path.iterdir() if p.is_file() and _is_image(p.name))
  if not listing:
    return {NO_CLASS: loose} if loose else {}
  if loose:
    logging.warning("%s: %d images beside the class folders left out", path, len(loose))
  return listing


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
  return sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))


def _is_image(name: str) -> bool:
  hidden = name.startswith(".")
  return not hidden and os.path.splitext(name)[1].lower() in decode.EXTENSIONS


def _images_below(folder: pathlib.Path) -> list[str]:
  found = []
  for parent, folders, files in os.walk(folder):
    if RUN_MARK in files:
      logging.warning("%s holds a run (%s): not a class", folder, parent)
      return []
    folders[:] = [name for name in folders if not name.startswith(".")]
    found += [os.path.join(parent, name) for name in files if _is_image(name)]
  return sorted(found)


def _without(listing: Listing, bad: dict[str, str]) -> Listing:
  kept = {name: [f for f in files if f not in bad] for name, files in listing.items()}
  return {name: files for name, files in kept.items() if files}


def _split(listing: Listing, classes: tuple[str, ...], size: int) -> Split:
  """The files in the order of the classes."""
  if NO_CLASS in listing:
    files = listing[NO_CLASS]
    return Split(decode.Files(files, size), np.full(len(files), UNLABELLED, np.int32))
  groups = [listing.get(name, []) for name in classes]
  labels = np.repeat(np.arange(len(classes), dtype=np.int32), [len(g) for g in groups])
  return Split(decode.Files(_join(groups), size), labels)


def _join(groups: Iterable[list[str]]) -> list[str]:
  return list(itertools.chain.from_iterable(groups))


def _report_classes(name: str, classes: tuple[str, ...], splits: dict[str, Split]):
  for split in splits:
    present = set(splits[split].labels.tolist())
    missing = [c for k, c in enumerate(classes) if k not in present]
    if missing:
      logging.warning("%s: no %s images of %s", name, split, ", ".join(missing))
  if len(classes) == 1:
    logging.warning("%s: one class only, %r; is PATH a level too high?", name, *classes)
