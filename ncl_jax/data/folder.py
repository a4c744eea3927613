"""Source `folder:PATH`: image files, in one folder a class or without classes."""

import hashlib
import itertools
import os
import pathlib
from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np
from absl import logging

from ncl_jax.data import classes as class_names
from ncl_jax.data import decode, duplicates
from ncl_jax.data.source import UNLABELLED, Source, Split
from ncl_jax.data.subset import divide
from ncl_jax.errors import InputError

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "val", "valid", "validation")
ON_BAD_IMAGE = ("stop", "skip")

# A run's work directory holds this file; its figures are no training images.
RUN_MARK = "config.json"

# Of the endings that are looked for.
COMMON = (".jpg", ".png", ".webp", ".avif", ".tif", ".gif", ".bmp")

# The key of images that lie in no class folder.
NO_CLASS = ""

Listing = dict[str, list[str]]


def load(path: pathlib.Path, image_size: int = 0, on_bad_image: str = "stop") -> Source:
  """Lists a folder of images, which are decoded when asked for.

  Three layouts: `PATH/train/CLASS/*` with `PATH/test/CLASS/*` (or testing, val, valid,
  validation: the first there is); `PATH/CLASS/*`; and images without classes, as
  `PATH/*` or `PATH/train/*`, which are unlabelled. Where no test folder matches, a
  fixed stratified fifth is held out. Classes are the folder names of both splits
  together, so that labels agree, in the order of people: 1, 2, 10. Images may lie
  deeper below a class folder; links are followed, but no folder is searched twice for
  a class. Hidden files and folders, and folders with a run's config.json below, are
  left out. Files that are copies of others are used, and reported.

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
  if path.is_file():
    raise InputError(f"folder:{path} is a file; allowed: a folder of images")
  if not path.is_dir():
    raise InputError(f"no folder {path}")
  name = f"folder:{path}"
  others: Counter[str] = Counter()
  train, test = _listings(path, others)
  if others:
    kinds = ", ".join(f"{count} {end}" for end, count in others.most_common(8))
    logging.warning(
      "%s: files of no kind of image known here left out: %s%s",
      *(name, kinds, _heic(others)),
    )
  if on_bad_image == "skip":
    bad = decode.unreadable(_join([*train.values(), *test.values()]))
    train, test = _without(train, bad), _without(test, bad)
    if bad:
      lines = "\n".join(f"  {file}: {reason}" for file, reason in bad.items())
      logging.warning("%s: %d unreadable images left out:\n%s", name, len(bad), lines)
  if not train:
    raise InputError(
      f"no images in {path}; looked for {', '.join(COMMON)} and the other endings that"
      " Pillow reads, in PATH/train/CLASS and PATH/test/CLASS, in PATH/CLASS, and in "
      "PATH"
      f"{_heic(others)}"
    )

  classes = class_names.ordered({*train, *test} - {NO_CLASS})
  size = image_size or decode.file_side(_join(train.values()))
  if not image_size:
    logging.info("%s: image size %d, the median shorter side", name, size)
  white = decode.white(_join(train.values()), name)
  splits = {"train": _split(train, classes, size, white)}
  if test:
    splits["test"] = _split(test, classes, size, white)
  else:
    splits = divide(splits["train"], name, _names(splits["train"], path))
  same = duplicates.copies(_join([*train.values(), *test.values()]))
  if same:
    logging.warning("%s: %s", name, duplicates.describe(same, _files(splits["test"])))
  _report_classes(name, classes, splits)
  names = hashlib.sha256("\n".join(_names(splits["train"], path)).encode()).hexdigest()
  return Source(name, splits, classes, divided=not test, names=names)


def _heic(others: Counter[str]) -> str:
  """What to do about pictures of a telephone, if there are some."""
  count = sum(others[end] for end in decode.HEIC_ENDINGS)
  return f"; each of the {count} HEIC files is {decode.HEIC}" if count else ""


def _listings(path: pathlib.Path, others: Counter[str]) -> tuple[Listing, Listing]:
  """Train and test files by class; test is empty where no folder matches train."""
  folders: dict[str, pathlib.Path] = {}
  for folder in _folders(path):
    twin = folders.setdefault(folder.name.lower(), folder)
    if twin != folder and folder.name.lower() in (*TRAIN_NAMES, *TEST_NAMES):
      raise InputError(
        f"{path} has the folders {twin.name} and {folder.name}; allowed: one of them"
      )
  train_folder = next((folders[n] for n in TRAIN_NAMES if n in folders), None)
  if train_folder is None:
    if folders and set(folders) <= set(TEST_NAMES):
      raise InputError(
        f"{path} has the folders {', '.join(sorted(folders))} but none of"
        f" {', '.join(TRAIN_NAMES)}"
      )
    return _listing(path, others), {}
  train = _listing(train_folder, others)
  for name in TEST_NAMES:
    if name in folders:
      test = _listing(folders[name], others)
      # Challenges publish their test images without classes: of no use for labels.
      if test and (NO_CLASS in test) == (NO_CLASS in train):
        logging.info("%s: test images from %s", path, folders[name])
        return train, test
  return train, {}


def _listing(path: pathlib.Path, others: Counter[str]) -> Listing:
  """Image files by class folder or, if there are no such folders, all as one list.

  Args:
    path: the folder.
    others: counts the endings of files that are left out.
  """
  listing: Listing = {}
  for folder in _folders(path):
    found = _images_below(folder, others)
    if found:
      listing.setdefault(class_names.same_form(folder.name), []).extend(found)
    elif found is not None:
      logging.warning("no images to use in %s: left out", folder)
  # A link to nowhere counts: it is met as a file that cannot be read.
  with os.scandir(path) as entries:
    names = [entry.name for entry in entries if not entry.is_dir()]
  loose = [os.path.join(path, name) for name in _images(names, others)]
  if not listing:
    return {NO_CLASS: loose} if loose else {}
  if loose:
    logging.warning("%s: %d images beside the class folders left out", path, len(loose))
  return listing


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
  with os.scandir(path) as entries:
    names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
  return [path / name for name in sorted(names)]


def _images(names: Iterable[str], others: Counter[str]) -> list[str]:
  """The names that are images, sorted; hidden ones are none."""
  found = []
  for name in names:
    end = os.path.splitext(name)[1].lower()
    if name.startswith("."):
      continue
    if end in decode.extensions():
      found.append(name)
    else:
      others[end or "without ending"] += 1
  return sorted(found)


def _images_below(folder: pathlib.Path, others: Counter[str]) -> list[str] | None:
  """None where a run is; a class that holds one is none."""
  found: list[str] = []
  left_out: Counter[str] = Counter()
  # A link to a folder above would be searched for ever.
  seen = {os.path.realpath(above) for above in folder.parents}
  for parent, folders, files in os.walk(folder, followlinks=True):
    if RUN_MARK in files:
      logging.warning("%s: a run's directory, not a class", parent)
      return None
    real = os.path.realpath(parent)
    if real in seen:
      logging.warning("%s leads to %s, which is searched already", parent, real)
      folders.clear()
      continue
    seen.add(real)
    folders[:] = sorted(name for name in folders if not name.startswith("."))
    found += [os.path.join(parent, name) for name in _images(files, left_out)]
  others.update(left_out)
  return sorted(found)


def _without(listing: Listing, bad: dict[str, str]) -> Listing:
  kept = {name: [f for f in files if f not in bad] for name, files in listing.items()}
  return {name: files for name, files in kept.items() if files}


def _split(listing: Listing, classes: tuple[str, ...], size: int, white: int) -> Split:
  """The files in the order of the classes."""
  if NO_CLASS in listing:
    files = listing[NO_CLASS]
    return Split(
      decode.Files(files, size, white), np.full(len(files), UNLABELLED, np.int32)
    )
  groups = [listing.get(name, []) for name in classes]
  labels = np.repeat(np.arange(len(classes), dtype=np.int32), [len(g) for g in groups])
  return Split(decode.Files(_join(groups), size, white), labels)


def _files(split: Split) -> list[str]:
  """The paths of a split's images, also of a part of a folder's."""
  images, rows = split.images, np.arange(len(split))
  while not isinstance(images, decode.Files):
    images, rows = images.images, images.rows[rows]  # type: ignore[attr-defined]
  return [images.paths[int(row)] for row in rows]


def _names(split: Split, path: pathlib.Path) -> list[str]:
  """The places of a split's images below the folder, as text of any system."""
  # Faster than `os.path.relpath`, of which a million take ten seconds.
  above = len(os.path.join(path, ""))
  names = (file[above:].replace(os.sep, "/") for file in _files(split))
  return [os.fsencode(name).decode(errors="replace") for name in names]


def _join(groups: Iterable[list[str]]) -> list[str]:
  return list(itertools.chain.from_iterable(groups))


def _report_classes(name: str, classes: tuple[str, ...], splits: dict[str, Split]):
  for split in splits:
    present = set(splits[split].labels.tolist())
    missing = [c for k, c in enumerate(classes) if k not in present]
    if missing:
      logging.warning("%s: no %s images of %s", name, split, ", ".join(missing))
  twins = defaultdict(list)
  for found in classes:
    twins[found.lower()].append(found)
  for alike in twins.values():
    if len(alike) > 1:
      logging.warning(
        "%s: the classes %s differ in capitals alone; where file names have no "
        "capitals (macOS, Windows) they would be one",
        *(name, " and ".join(alike)),
      )
  if len(classes) == 1:
    logging.warning("%s: one class only, %r; is PATH a level too high?", name, *classes)
