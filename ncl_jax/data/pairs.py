"""Source `pairs:FILE.npz`: images or texts with captions, or pairs of images."""

import dataclasses
import functools
import itertools
import pathlib

import numpy as np

from ncl_jax.data import arrays as arrays_lib
from ncl_jax.data import texts as texts_lib
from ncl_jax.data.decode import square
from ncl_jax.data.source import Source
from ncl_jax.data.subset import divide
from ncl_jax.errors import InputError
from ncl_jax.host import npz

KINDS = ("captions", "partners")


def load(path: pathlib.Path, image_size: int = 0) -> Source:
  """Reads an .npz file of pairs.

  Its arrays are `train_images` and `test_images`, as for `arrays:`, each with
  `_captions` (texts [N]), `_partners` (the other image of each pair), or both. Without
  `train_` and `test_`, a fixed stratified fifth of the pairs becomes the test split;
  pairs of the same object may then be in both splits. `_labels`, and `_labels_NAME` for
  other levels, are optional: class names, or numbers from 0; -1 or the empty name means
  unlabelled. Other arrays are ignored. Python objects are refused.

  For pairs of two texts use `_texts` [N] instead of `_images`.

  Args:
    image_size: side in pixels; 0 = unchanged, the only choice for texts.

  Raises:
    InputError: for an invalid file, array or length.
  """
  name = f"pairs:{path}"
  arrays = dict(sorted(npz.read(path).items()))
  texts = any(key in arrays for key in ("train_texts", "texts"))
  first = "texts" if texts else "images"
  if texts and any(key in arrays for key in ("train_images", "images")):
    raise InputError(f"{path} has images and texts: only one of them is paired")
  whole = f"train_{first}" not in arrays and first in arrays
  prefixes = {"all": ""} if whole else {"train": "train_", "test": "test_"}
  kinds = [k for k in KINDS if any(p + k in arrays for p in prefixes.values())]
  if texts and (image_size or "partners" in kinds):
    wrong = f"image size {image_size}" if image_size else "partners, which are images,"
    raise InputError(f"{path} holds texts, and {wrong}: allowed are captions, size 0")
  levels = arrays_lib.levels_of(arrays, [f"{p}labels" for p in prefixes.values()])
  needed = [first, *kinds, *(f"labels{level}" for level in levels)]
  missing = [
    p + key for p in prefixes.values() for key in needed if p + key not in arrays
  ]
  if missing or not kinds:
    prefix = next(iter(prefixes.values()))
    lacks = ", ".join(missing) or " or ".join(f"{prefix}{kind}" for kind in KINDS)
    raise InputError(
      f"{path} holds the arrays {', '.join(arrays) or '(none)'}; it lacks {lacks}. "
      "Allowed: train_images and test_images, or images, with _captions or _partners "
      "and perhaps _labels, in each part; or _texts in the place of _images"
    )
  if texts:
    _write_texts(arrays, list(prefixes.values()), path)
  pictures = [p + kind for p in prefixes.values() for kind in ("images", "partners")]
  arrays |= arrays_lib.checked_images(
    {key: arrays[key] for key in pictures if key in arrays}, f"{path}"
  )
  parts = {part: (f"{p}images", f"{p}labels") for part, p in prefixes.items()}
  splits, class_names, level_names = arrays_lib.read_splits(
    arrays, parts, f"{path}", image_size
  )
  for part, p in prefixes.items():
    captions, partners = (arrays.get(p + kind) for kind in KINDS)
    for kind, given in zip(KINDS, (captions, partners), strict=True):
      if given is not None and np.shape(given)[:1] != (len(splits[part]),):
        raise InputError(
          f"{path}: {len(splits[part])} {first} in {p}{first} but {p}{kind} has the "
          f"shape {given.shape}; allowed: one for each"
        )
    if captions is not None:
      captions = texts_lib.checked(captions, f"{p}captions in {path}")
    give = None
    if partners is not None:
      others = square(partners, image_size)
      give = functools.partial(_partners, others)
      shape = splits[part].images.shape
      if others.shape != shape:
        raise InputError(
          f"{p}partners in {path} has images of {others.shape[1:]}; allowed: "
          f"{shape[1:]}, as in {p}images"
        )
    splits[part] = dataclasses.replace(splits[part], captions=captions, partners=give)
  if whole:
    splits = divide(splits["all"], name)
  return Source(name, splits, class_names, whole, level_names, texts)


def _partners(
  others: np.ndarray, rows: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  del rng  # each has one partner
  return others[rows]


def _write_texts(
  arrays: dict[str, np.ndarray], prefixes: list[str], path: pathlib.Path
) -> None:
  """Adds `images` made from `texts`, all of the same size."""
  parts = {
    p: texts_lib.checked(arrays[f"{p}texts"], f"{p}texts in {path}") for p in prefixes
  }
  pictures = texts_lib.as_pictures(itertools.chain(*parts.values()))
  ends = np.cumsum([len(part) for part in parts.values()])
  for p, part in zip(parts, np.split(pictures, ends[:-1]), strict=True):
    arrays[f"{p}images"] = part
