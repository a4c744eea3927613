"""The three data sets of the study, and how their images are grouped."""

import dataclasses
import pathlib

import numpy as np

from ncl_jax.data import digits
from ncl_jax.data.source import Source, Split
from ncl_jax.data.subset import take
from ncl_jax.errors import InputError
from studies.harder import meaning

TRAIN, TEST = 5000, 5000  # images of two digits
# Of Fashion-MNIST's ten classes in their order; ours: the set has one level.
COARSE = {
  "tops": (0, 2, 4, 6),
  "trousers": (1,),
  "dress": (3,),
  "footwear": (5, 7, 9),
  "bag": (8,),
}


def emoji(folder: pathlib.Path, source: Source) -> Source:
  """Emoji of which the test split has one picture a concept, without skin tones.

  Variants of one concept look alike and have the same labels: several of them among the
  test images would pass for consistency.

  Args:
    folder: of `studies.emoji.make_data`, for the captions, which tell the tone.
    source: its drawers.npz.

  Raises:
    InputError: if that folder does not have its files.
  """
  for name in ("text.npz", "drawers.npz"):
    if not (folder / name).is_file():
      raise InputError(
        f"no {folder / name}: make it by "
        f"python -m studies.emoji.make_data --out={folder}"
      )
  with np.load(folder / "text.npz") as file:
    plain = np.flatnonzero(np.char.find(file["test_captions"], "skin tone") < 0)
    _, first = np.unique(file["test_concepts"][plain], return_index=True)
  test = take(source.split("test"), np.sort(plain[first]))
  return dataclasses.replace(source, splits=source.splits | {"test": test})


def two_digits(file: pathlib.Path) -> None:
  """Images of 16 pixels with two digits of 8 pixels, of different classes.

  They lie in two of the four quarters, drawn by lot; the partner of an image holds the
  same two, placed anew, or else their places would tell images apart. Training and test
  images are made of different digits.

  Args:
    file: for images, partners and labels, the second ones as level "second".
  """
  source = digits.load()
  values = {}
  for part, count, seed in (("train", TRAIN, 0), ("test", TEST, 1)):
    made, labels = compose(source.split(part), count, seed)
    values[f"{part}_images"], values[f"{part}_partners"] = made
    values[f"{part}_labels"], values[f"{part}_labels_second"] = labels.T
  np.savez_compressed(file, **values)


def compose(split: Split, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Draws images that hold two objects, and a partner of each.

  Args:
    split: of images [N, H, W, C] of one object each.
    count: how many to draw.
    seed: of the draws.

  Returns:
    uint8 [2, count, 2H, 2W, C], the images and their partners, and the two labels of
    each, int32 [count, 2].
  """
  generator = np.random.default_rng(seed)
  images = np.asarray(split.images)
  _, height, width, channels = images.shape
  made = np.zeros((2, count, 2 * height, 2 * width, channels), np.uint8)
  labels = np.empty((count, 2), np.int32)
  for i in range(count):
    one = generator.integers(len(split))
    others = np.flatnonzero(split.labels != split.labels[one])
    pair = [one, generator.choice(others)]
    for canvas in made[:, i]:
      for item, place in zip(pair, generator.permutation(4)[:2], strict=True):
        top, left = height * (place // 2), width * (place % 2)
        canvas[top : top + height, left : left + width] = images[item]
    labels[i] = split.labels[pair]
  return made, labels


def groups(name: str, source: Source, part: str = "test") -> meaning.Groups:
  """How the images of a set are grouped.

  Args:
    name: "emoji", "fashion" or "two".
    source: the set.
    part: which split.
  """
  split = source.split(part)
  if name == "emoji":
    return meaning.two_levels(split.labels, split.levels["subcategory"])
  if name == "fashion":
    return meaning.two_levels(coarse(split.labels), split.labels)
  return meaning.two_objects(split.labels, split.levels["second"], source.num_classes)


def coarse(labels: np.ndarray) -> np.ndarray:
  """The coarse class, in the order of `COARSE`, of Fashion-MNIST's classes [N]."""
  of = {fine: k for k, fines in enumerate(COARSE.values()) for fine in fines}
  return np.array([of[fine] for fine in labels.tolist()])
