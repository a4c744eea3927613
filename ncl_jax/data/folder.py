"""Source `folder:PATH`: image files, in one folder per class or without classes."""

import dataclasses
import hashlib
import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Iterable

import numpy as np
from absl import logging

from ncl_jax.data import classes as class_names
from ncl_jax.data import decode, decoded_cache, duplicates, file_kinds
from ncl_jax.data.source import UNLABELLED, Source, Split
from ncl_jax.data.subset import divide
from ncl_jax.errors import InputError

TRAIN_NAMES = ("train", "training")
TEST_NAMES = ("test", "testing", "val", "valid", "validation")
ON_BAD_IMAGE = ("stop", "skip")

# A run's work directory contains this file; its figures are not training images.
RUN_MARK = "config.json"

# Some of the supported endings, for messages.
COMMON = (".jpg", ".png", ".webp", ".avif", ".tif", ".gif", ".bmp")

# The key of images outside class folders.
NO_CLASS = ""

Listing = dict[str, list[str]]


@dataclasses.dataclass(frozen=True)
class _LeftOut:
  """Unused or unusual files in a folder, for the log and the report.

  Attributes:
    endings: counts of the endings of files that are not images.
    notes: the logged messages, without the folder's path.
  """

  path: pathlib.Path
  endings: Counter[str] = dataclasses.field(default_factory=Counter)
  notes: list[str] = dataclasses.field(default_factory=list)

  def tell(self, note: str) -> None:
    logging.warning("folder:%s: %s", self.path, note)
    self.notes.append(note)

  def name(self, path: str | pathlib.Path) -> str:
    """A path relative to the folder."""
    return os.path.relpath(path, self.path)


def load(
  path: pathlib.Path,
  image_size: int = 0,
  on_bad_image: str = "stop",
  cache: pathlib.Path | None = None,
) -> Source:
  """Lists a folder of images, which are decoded on demand to RGB.

  Three layouts are accepted: `PATH/train/CLASS/*` with `PATH/test/CLASS/*` (or the
  first of testing, val, valid, validation); `PATH/CLASS/*`; and unlabelled images, as
  `PATH/*` or `PATH/train/*`. Without a matching test folder, a fixed stratified fifth
  is held out, with all copies of a file in one split. Classes are the folder names of
  both splits together, in natural sort order (1, 2, 10). Images may lie deeper inside a
  class folder. Links are followed, but no folder is searched twice for a class. Hidden
  files and folders, and folders that contain a run's config.json, are left out.

  Args:
    image_size: side in pixels; 0 = the median shorter side of the train images, at
      most 256.
    on_bad_image: "stop" = an image that cannot be decoded is an error when it is met;
      "skip" = all are decoded once now, and those that fail are left out.
    cache: folder that remembers which fail, see `decoded_cache.table`.
  """
  if on_bad_image not in ON_BAD_IMAGE:
    raise InputError(
      f"on_bad_image {on_bad_image!r}; allowed: {', '.join(ON_BAD_IMAGE)}"
    )
  if path.is_file():
    instead = {".npz": f"; for arrays use arrays:{path}", ".zip": "; unpack it"}
    raise InputError(
      f"folder:{path} is a file; allowed: a folder of images"
      f"{instead.get(path.suffix.lower(), '')}"
    )
  if not path.is_dir():
    raise InputError(f"no folder {path}")
  name = f"folder:{path}"
  left_out = _LeftOut(path)
  train, test = _listings(path, left_out)
  if others := left_out.endings:
    kinds = ", ".join(f"{count} {end}" for end, count in others.most_common(8))
    left_out.tell(
      f"files of no kind of image known here left out: {kinds}{_remedies(others)}"
    )
  if on_bad_image == "skip":
    bad = _unreadable(_join([*train.values(), *test.values()]), path, cache)
    train, test = _without(train, bad), _without(test, bad)
    if bad:
      lines = "\n".join(f"  {file}: {reason}" for file, reason in bad.items())
      logging.warning("%s: unreadable images left out:\n%s", name, lines)
      first, reason = next(iter(bad.items()))
      left_out.tell(
        f"{len(bad)} unreadable images left out, such as {left_out.name(first)} "
        f"({reason})"
      )
  if not train:
    raise InputError(
      f"no images in {path}; looked for {', '.join(COMMON)} and the other endings that"
      " Pillow reads, in PATH/train/CLASS and PATH/test/CLASS, in PATH/CLASS, and in "
      f"PATH{_remedies(others)}"
    )

  size = image_size or decode.file_side(_join(train.values()))
  if not image_size:
    logging.info("%s: image size %d, the median shorter side", name, size)
  white = decode.white(_join(train.values()), name)
  classes = class_names.ordered({*train, *test} - {NO_CLASS})
  number = {NO_CLASS: UNLABELLED} | {name: k for k, name in enumerate(classes)}
  splits: dict[str, Split] = {}
  paths: list[str] = []
  for part, listing in ({"train": train} | ({"test": test} if test else {})).items():
    groups = sorted((number[key], files) for key, files in listing.items())
    files = decode.Files(_join(f for _, f in groups), size, white, os.fspath(path))
    labels = np.repeat([k for k, _ in groups], [len(f) for _, f in groups])
    splits[part] = Split(files, labels.astype(np.int32), files=files)
    paths += files.paths
  same = duplicates.copies(paths)
  if not test:
    row = {file: i for i, file in enumerate(paths)} if same else {}
    copies = [[row[file] for file in group] for group in same]
    splits = divide(splits["train"], name, files.names(), copies)
  used = {part: split.files for part, split in splits.items() if split.files}
  if same:
    left_out.tell(duplicates.describe(same, used["test"].paths, path))
  _tell_of_classes(left_out, classes, splits)
  names = hashlib.sha256("\n".join(used["train"].names()).encode()).hexdigest()
  return Source(
    name, splits, classes, divided=not test, names=names, notes=tuple(left_out.notes)
  )


def _tell_of_classes(
  left_out: _LeftOut, classes: tuple[str, ...], splits: dict[str, Split]
) -> None:
  for name, split in splits.items():
    present = set(split.labels.tolist())
    missing = [c for k, c in enumerate(classes) if k not in present]
    if missing:
      left_out.tell(f"no {name} images of {', '.join(missing)}")
  for _, alike in itertools.groupby(sorted(classes, key=str.lower), str.lower):
    if len(twins := sorted(alike)) > 1:
      left_out.tell(
        f"the classes {' and '.join(twins)} differ in capitals alone; where file names "
        "have no capitals (macOS, Windows) they would be one"
      )
  if len(classes) == 1:
    left_out.tell(f"one class only, {classes[0]!r}; is PATH a level too high?")


def _unreadable(
  files: list[str], path: pathlib.Path, cache: pathlib.Path | None
) -> dict[str, str]:
  """The files that cannot be decoded, each with the reason."""

  def find() -> dict[str, np.ndarray]:
    bad = decode.unreadable(files)
    reasons = np.array(list(bad.values()), np.str_)
    return {"rows": np.array(list(bad), np.int64), "reasons": reasons}

  identity = decode.Files(files, 1, root=os.fspath(path)).identity()
  found = decoded_cache.table(cache, f"{path.name}-unreadable", identity, find)
  pairs = zip(found["rows"], found["reasons"], strict=True)
  return {files[row]: str(reason) for row, reason in pairs}


def _remedies(others: Counter[str]) -> str:
  """Advice about pictures that Pillow does not decode, if there are any."""
  return "".join(
    f"; each {end} file is {what}"
    for end, what in file_kinds.BY_ENDING.items()
    if others[end]
  )


def _listings(path: pathlib.Path, left_out: _LeftOut) -> tuple[Listing, Listing]:
  """Train and test files by class; test is empty if no folder matches train."""
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
    return _listing(path, left_out), {}
  train = _listing(train_folder, left_out)
  for name in TEST_NAMES:
    if name in folders:
      test = _listing(folders[name], left_out)
      # Challenges publish test images without classes, which cannot test labels.
      if test and (NO_CLASS in test) == (NO_CLASS in train):
        logging.info("%s: test images from %s", path, folders[name])
        return train, test
  return train, {}


def _listing(path: pathlib.Path, left_out: _LeftOut) -> Listing:
  """Image files by class folder, or as one list if there are no class folders."""
  listing: Listing = {}
  for folder in _folders(path):
    found = _images_below(folder, left_out)
    if found:
      listing.setdefault(class_names.same_form(folder.name), []).extend(found)
    elif found is not None:
      left_out.tell(f"no images to use in {left_out.name(folder)}: left out")
  # A broken link is listed too, and reported later as a file that cannot be read.
  with os.scandir(path) as entries:
    names = [entry.name for entry in entries if not entry.is_dir()]
  loose = _images(path, names, left_out.endings)
  if not listing:
    return {NO_CLASS: loose} if loose else {}
  if loose:
    left_out.tell(f"{len(loose)} images outside the class folders left out")
  return listing


def _folders(path: pathlib.Path) -> list[pathlib.Path]:
  with os.scandir(path) as entries:
    names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
  return [path / name for name in sorted(names)]


def _images(
  folder: str | pathlib.Path, names: Iterable[str], others: Counter[str]
) -> list[str]:
  """The images of a folder, sorted; hidden files do not count."""
  found = []
  for name in names:
    end = os.path.splitext(name)[1].lower()
    if end in file_kinds.extensions() and not name.startswith("."):
      found.append(os.path.join(folder, name))
    elif not name.startswith("."):
      others[end or "without ending"] += 1
  return sorted(found)


def _images_below(folder: pathlib.Path, left_out: _LeftOut) -> list[str] | None:
  """Images below a class folder, or None if it contains a run's work directory."""
  found: list[str] = []
  endings: Counter[str] = Counter()
  # A link to a parent folder would be searched forever.
  seen = {os.path.realpath(above) for above in folder.parents}
  for parent, folders, files in os.walk(folder, followlinks=True):
    if RUN_MARK in files:
      left_out.tell(f"{left_out.name(parent)} is a run's directory, not a class")
      return None
    real = os.path.realpath(parent)
    if real in seen:
      left_out.tell(
        f"{left_out.name(parent)} leads to {left_out.name(real)}, which is searched "
        "already"
      )
      folders.clear()
      continue
    seen.add(real)
    folders[:] = sorted(name for name in folders if not name.startswith("."))
    found += _images(parent, files, endings)
  left_out.endings.update(endings)
  return sorted(found)


def _without(listing: Listing, bad: dict[str, str]) -> Listing:
  kept = {name: [f for f in files if f not in bad] for name, files in listing.items()}
  return {name: files for name, files in kept.items() if files}


def _join(groups: Iterable[list[str]]) -> list[str]:
  return list(itertools.chain.from_iterable(groups))
