"""Data sets by name: `load("digits")` returns a `Source`."""

import dataclasses
import difflib
import pathlib
from collections.abc import Sequence
from typing import Any

from absl import logging

from ncl_jax.data import (
  arrays,
  decoded_cache,
  digits,
  dsprites,
  folder,
  idx,
  pairs,
  suspicious,
  tfds,
)
from ncl_jax.data.classes import listed
from ncl_jax.data.matching import matched
from ncl_jax.data.source import Source, Split, epoch_order, in_memory
from ncl_jax.data.subset import labelled, only_classes, stratified, subset
from ncl_jax.errors import InputError
from ncl_jax.host import paths

__all__ = [
  "FORMS",
  "Options",
  "Source",
  "Split",
  "epoch_order",
  "labelled",
  "load",
  "matched",
  "stratified",
  "subset",
]

FORMS = (
  "digits",
  "dsprites",
  "dsprites:FILE.npz",
  "arrays:FILE.npz",
  "idx:FOLDER",
  "folder:PATH",
  "tfds:NAME",
  "pairs:FILE.npz",
)


LARGEST_SIDE = 4096  # pixels of an image as stored


@dataclasses.dataclass(frozen=True)
class Options:
  """What of a data set is loaded, and how.

  Attributes:
    image_size: side of the square images in pixels. The shorter side is scaled to it
      (bicubic) and the centre square is kept. 0 = unchanged; for image files see
      `folder.load`.
    train_examples: number of train images to keep, a fixed stratified sample; 0 = all.
    on_bad_image: for a damaged image file, "stop" or "skip".
    need_train: False also accepts a tfds set that has only test images.
    classes_file: text file with the names of the classes to keep, the first word of
      each line; "" = all.
    pair_factors: dsprites only: factors in which the images of a positive pair differ.
    decoded: folder in which image files are kept decoded, see `decoded_cache`; "" =
      they are decoded whenever they are used.
  """

  image_size: int = 0
  train_examples: int = 0
  on_bad_image: str = "stop"
  need_train: bool = True
  classes_file: str = ""
  pair_factors: Sequence[str] = ()
  decoded: str = ""

  def __post_init__(self) -> None:
    """Raises `InputError` for a size that no image has."""
    if not 0 <= self.image_size <= LARGEST_SIDE:
      raise InputError(
        f"image size {self.image_size}; allowed: 1 to {LARGEST_SIDE}, or 0 for as they "
        "are"
      )


def load(spec: str, **options: Any) -> Source:
  """Opens a data set.

  Args:
    spec: `digits`, `dsprites`, `arrays:FILE.npz`, `idx:FOLDER`, `folder:PATH`,
      `tfds:NAME` or `pairs:FILE.npz`; a path may be relative and may begin with ~.
    **options: fields of `Options`, such as `image_size=32`.

  Returns:
    The source, with splits "train" and "test"; decoded into memory if it fits.

  Raises:
    InputError: for invalid settings or data.
  """
  given = Options(**options)
  check(spec)
  kind, _, place = spec.partition(":")
  if given.pair_factors and kind != "dsprites":
    raise InputError(
      f"data.pair_factors = {tuple(given.pair_factors)!r}: {spec} has no factors to "
      "change, only dsprites has"
    )
  size, path = given.image_size, paths.local(place).absolute()
  cache = cache_folder(given.decoded, spec)
  match kind:
    case "digits":
      source = digits.load(size)
    case "dsprites":
      source = dsprites.load(size, given.pair_factors, path if place else None)
    case "folder":
      source = folder.load(path, size, given.on_bad_image, cache)
    case "tfds":
      source = tfds.load(place, size, given.need_train, cache)
    case _:
      module = {"arrays": arrays, "pairs": pairs, "idx": idx}[kind]
      source = module.load(path, size)
  if given.classes_file:
    source = only_classes(source, _class_names(given.classes_file))
  source = subset(source, train=given.train_examples)
  if cache:
    source = decoded_cache.cached(source, cache)
  if kind != "dsprites" or given.train_examples:
    # The whole of dsprites is drawn on demand.
    source = in_memory(source)
  return _told(source)


def cache_folder(folder: str, spec: str) -> pathlib.Path | None:
  """The folder for decoded images of a source; None for "".

  Raises:
    InputError: for a source without image files.
  """
  if not folder:
    return None
  if not spec.startswith(("folder:", "tfds:")):
    raise InputError(
      f"{decoded_cache.KEY} is {folder}: allowed is '' for {spec}. Only the images of "
      "folder:PATH and tfds:NAME are files to decode"
    )
  return paths.local(folder).absolute()


def _told(source: Source) -> Source:
  """The source, described in the log, with notes on what is suspicious."""
  logging.info(
    "%s: %d train and %d test %s, %s",
    source.name,
    source.num_examples("train"),
    source.num_examples("test"),
    source.form,
    source.classes,
  )
  if source.num_classes:
    shown = listed([f"{k} {name}" for k, name in enumerate(source.class_names)], 10)
    logging.info("%s: classes by number: %s", source.name, shown)
  odd = suspicious.found(source)
  for warning in odd:
    logging.warning("%s: %s", source.name, warning)
  return dataclasses.replace(source, notes=(*source.notes, *odd))


def check(spec: str) -> None:
  """Checks a source name as `load` does, without opening a file.

  Raises:
    InputError: for an unknown form, a missing place, or a URL.
  """
  kind, _, place = spec.partition(":")
  with_place = any(form.startswith(f"{kind}:") for form in FORMS)
  if not (with_place if place else spec in FORMS):
    kinds = {form.partition(":")[0]: form for form in reversed(FORMS)}
    near = [kinds[k] for k in difflib.get_close_matches(kind, kinds, 1)]
    if not near and paths.local(spec).exists():
      near = ["arrays:" + spec if spec.endswith(".npz") else "folder:" + spec]
    raise InputError(
      f"unknown data source {spec!r}; allowed: {', '.join(FORMS)}"
      + "".join(f"; did you mean {form}?" for form in near)
    )
  paths.local(place)


def _class_names(file: str) -> list[str]:
  path = paths.local(file)
  if not path.is_file():
    raise InputError(f"data.classes_file is {file}: there is no such file")
  lines = path.read_text(encoding="utf-8").splitlines()
  return [line.split()[0] for line in lines if line.split()]
