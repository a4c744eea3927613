"""Matches another data set's classes with ours, to test under distribution shift."""

import dataclasses

import numpy as np
from absl import logging

from ncl_jax.data.classes import listed
from ncl_jax.data.source import UNLABELLED, Images, Source, Split
from ncl_jax.data.subset import take
from ncl_jax.errors import InputError


def matched(other: Source, class_names: tuple[str, ...]) -> Source:
  """Another set's test images of our classes, with our labels.

  Class names are compared without regard to case, spaces, - and _. If the other set was
  not divided into train and test, all its images are used. Both splits of the result
  are these images.

  Raises:
    InputError: if no class or no image matches.
  """
  ours = {_plain(name): label for label, name in enumerate(class_names)}
  number = np.array(
    [*(ours.get(_plain(name), UNLABELLED) for name in other.class_names), UNLABELLED]
  )
  parts = []
  for name in ("train", "test") if other.divided else ("test",):
    split = other.split(name)
    labels = number[split.labels].astype(np.int32)
    rows = np.flatnonzero(labels >= 0)
    if len(rows):
      kept = take(split, rows)
      parts.append(Split(kept.images, labels[rows]))
  if not parts:
    raise InputError(
      f"no image of {other.name} is of a class of ours; its classes: "
      f"{listed(other.class_names)}; ours: {listed(class_names)}"
    )
  labels = np.concatenate([part.labels for part in parts])
  images = parts[0].images
  if len(parts) > 1:
    images = _Joined(parts[0].images, parts[1].images)
  logging.info(
    "%s: %d images of %d of our %d classes",
    other.name,
    len(labels),
    len(np.unique(labels)),
    len(class_names),
  )
  whole = Split(images, labels)
  return Source(other.name, {"train": whole, "test": whole}, class_names)


def _plain(name: str) -> str:
  return name.lower().replace(" ", "").replace("-", "").replace("_", "")


@dataclasses.dataclass(frozen=True, eq=False)
class _Joined(Images):
  """The images of two parts, one after the other."""

  first: Images
  second: Images

  @property
  def shape(self) -> tuple[int, ...]:
    return (len(self.first) + len(self.second), *self.first.shape[1:])

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    late = rows >= len(self.first)
    images = np.empty((len(rows), *self.first.shape[1:]), np.uint8)
    images[~late] = self.first[rows[~late]]
    images[late] = self.second[rows[late] - len(self.first)]
    return images
