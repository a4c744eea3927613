"""A data set: named splits with random access, and batches made from them."""

import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np
import tqdm

from ncl_jax.data import decode
from ncl_jax.data import texts as texts_lib
from ncl_jax.data.prefetch import prefetch
from ncl_jax.errors import InputError

UNLABELLED = -1

# Sets up to this decoded size are kept in memory; larger ones are decoded by batch.
IN_MEMORY_BYTES = 2 << 30

# Enough images for channel statistics with four digits.
STATISTICS_IMAGES = 10_000

Batch = dict[str, np.ndarray]


class Images(Protocol):
  """Images by position: an array, or files that are decoded on demand."""

  @property
  def shape(self) -> tuple[int, ...]:
    """(N, H, W, C)."""

  def __len__(self) -> int:
    return self.shape[0]

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    """The images at the positions `rows` [n], uint8 [n, H, W, C]."""


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
  """Images [N, H, W, C] and their labels, int32 [N]; -1 = unlabelled.

  Attributes:
    labels: the classes that training and evaluation use.
    levels: other labels by name, int32 [N] each, such as coarser classes.
    partners: for pairs of images: takes positions [n] and a random generator and
      returns the other image of each pair, uint8 [n, H, W, C].
    captions: for pairs of image and text: the texts, str [N].
    files: the N files that the images were read from, where they are files.
  """

  images: Images
  labels: np.ndarray
  levels: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
  partners: Callable[[np.ndarray, np.random.Generator], np.ndarray] | None = None
  captions: np.ndarray | None = None
  files: decode.Files | None = None

  def __len__(self) -> int:
    return len(self.images)

  def pictures(self, side: int) -> Images:
    """The images for a reader: up to `side` pixels if their files have more."""
    size = min(side, decode.file_side(self.files.paths)) if self.files else 0
    if self.files is None or size <= self.files.size:
      return self.images
    return dataclasses.replace(self.files, size=size)


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
  """A data set: splits "train", "test" and perhaps more, and its class names.

  `divided`: the test split was held out here, from a single set of images.
  `level_names`: names of the classes of other levels, if they have names.
  `texts`: the images are texts, see `data.texts`.
  `names`: a digest of the training images' file names, in order, if they have names.
  `notes`: sentences about the data for readers of its results.
  """

  name: str
  splits: dict[str, Split]
  class_names: tuple[str, ...] = ()
  divided: bool = False
  level_names: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
  texts: bool = False
  names: str = ""
  notes: tuple[str, ...] = ()

  def __post_init__(self):
    for name in self.splits:
      split = self.split(name)
      if not len(split):
        raise InputError(f"{self.name}: no images in the split {name!r}")
      given = {"labels": split.labels, "captions": split.captions, "files": split.files}
      given |= {f"labels of level {level!r}": x for level, x in split.levels.items()}
      for what, found in given.items():
        if found is not None and len(found) != len(split):
          raise InputError(
            f"{self.name}: split {name!r} has {len(split)} images"
            f" but {len(found)} {what}"
          )
      if tuple(split.images.shape[1:]) != self.image_shape:
        raise InputError(
          f"{self.name}: images of {split.images.shape[1:]} in the split {name!r}, of"
          f" {self.image_shape} in 'train'; set an image size to make them equal"
        )
      low, high = split.labels.min(), split.labels.max()
      low = min(low, *(labels.min() for labels in split.levels.values()), low)
      if low < UNLABELLED or high >= self.num_classes:
        raise InputError(
          f"{self.name}: labels from {low} to {high} in the split {name!r};"
          f" allowed: 0 to {self.num_classes - 1}, or -1 for unlabelled"
        )

  @property
  def title(self) -> str:
    """The name for pages that are shared: a place is its last part, not its path."""
    kind, _, place = self.name.partition(":")
    return self.name if kind == "tfds" else os.path.basename(place) or kind

  @property
  def num_classes(self) -> int:
    """Number of classes; 0 if the set is unlabelled."""
    return len(self.class_names)

  @property
  def classes(self) -> str:
    """Their number, for a reader."""
    count = self.num_classes
    return {0: "no labels", 1: "1 class"}.get(count, f"{count} classes")

  @property
  def image_shape(self) -> tuple[int, ...]:
    """(H, W, C)."""
    return tuple(self.splits["train"].images.shape[1:])

  @property
  def form(self) -> str:
    """A description of the examples: "images 28x28x1"."""
    if self.texts:
      return f"texts of at most {math.prod(self.image_shape)} bytes"
    return f"images {'x'.join(map(str, self.image_shape))}"

  @property
  def kind(self) -> str:
    """The kind of examples: "texts" or "images"."""
    return "texts" if self.texts else "images"

  def unseen(self, split: str = "test") -> tuple[int, list[int]]:
    """(number, classes) of examples in a split whose class no training example has.

    No classifier can learn these classes, so they count as errors in accuracies.
    """
    labels = self.split(split).labels
    new = (labels >= 0) & ~np.isin(labels, self.split("train").labels)
    return int(new.sum()), np.unique(labels[new]).tolist()

  def split(self, name: str) -> Split:
    """The split of that name."""
    if name not in self.splits:
      raise InputError(
        f"{self.name}: no split {name!r}; there are: {', '.join(self.splits)}"
      )
    return self.splits[name]

  def texts_of(self, split: str) -> list[str]:
    """The texts that a split's images are, see `data.texts`; none for images."""
    if not self.texts:
      return []
    images = self.split(split).images
    return texts_lib.from_pictures(images[np.arange(len(images))])

  def num_examples(self, split: str) -> int:
    """Number of images in a split."""
    return len(self.split(split))

  def steps_per_epoch(self, batch_size: int, split: str = "train") -> int:
    """Number of whole batches in a split; the rest of an epoch is dropped."""
    examples = self.num_examples(split)
    if not 1 <= batch_size <= examples:
      raise InputError(
        f"batch size {batch_size}; allowed: 1 to {examples}, the number of images in"
        f" the split {split!r} of {self.name}"
      )
    return examples // batch_size

  def channel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(mean, std) of each channel over the train images, in [0, 1].

    Over all pixels, as published for CIFAR and ImageNet, of at most `STATISTICS_IMAGES`
    evenly spaced images. A constant channel has std 1, to avoid division by 0. For
    texts the values turn a pixel back into its byte.
    """
    if self.texts:
      return (0.0,), (1 / 255,)
    images = self.splits["train"].images
    count = min(len(images), STATISTICS_IMAGES)
    rows = np.linspace(0, len(images) - 1, count).round().astype(np.int64)
    total = square = np.zeros(self.image_shape[-1])
    for part in np.array_split(rows, -(-count // 256)):
      values = images[part].reshape(-1, self.image_shape[-1]) / 255
      total = total + values.sum(0)
      square = square + (values**2).sum(0)
    pixels = count * math.prod(self.image_shape[:-1])
    mean = total / pixels
    std = np.sqrt(np.maximum(square / pixels - mean**2, 0))
    return tuple(mean.tolist()), tuple(np.where(std > 1e-6, std, 1.0).tolist())

  def train_batches(
    self,
    seed: int,
    start_step: int,
    batch_size: int,
    rows: np.ndarray | None = None,
    split: str = "train",
    pairs: bool = False,
  ) -> Generator[Batch, None, None]:
    """Endless batches in an order that depends only on the seed and the epoch.

    Starting at step s gives the same batches as an uninterrupted run from step s.

    Args:
      seed: with the epoch, determines the order.
      start_step: the first step, counted from the start of training.
      batch_size: of the global batch, over all processes.
      rows: int [n], the rows of every global batch to return; None for all.
      pairs: if the split has partners, return images as [n, 2, H, W, C] with their
        partners, which depend only on the seed and the step.

    Returns:
      Iterator of image uint8 [n, H, W, C], label int32 [n] and id int64 [n], the
      position in the split.
    """
    data = self.split(split)
    steps = self.steps_per_epoch(batch_size, split)
    part = _part(batch_size, rows)
    order = functools.lru_cache(maxsize=1)(
      lambda epoch: epoch_order(len(data), seed, epoch)
    )

    def batch(step: int) -> Batch:
      epoch, i = divmod(step, steps)
      whole = order(epoch)[i * batch_size : (i + 1) * batch_size]
      rows = whole[part]
      image = data.images[rows]
      if pairs and data.partners:
        # For the whole batch, so that they do not depend on the number of processes.
        others = data.partners(whole, np.random.default_rng([seed, step, 1]))[part]
        image = np.stack([image, others], axis=1)
      return {"image": image, "label": data.labels[rows], "id": rows}

    return prefetch(batch, itertools.count(start_step))

  def eval_batches(
    self, split: str, batch_size: int, rows: np.ndarray | None = None
  ) -> Generator[Batch, None, None]:
    """Every image of a split exactly once, in order; the last batch is padded.

    Args:
      batch_size: of the global batch; may exceed the split.
      rows: int [n], the rows of every global batch to return; None for all.

    Returns:
      Iterator, equally long on every process, of image uint8 [n, H, W, C], label int32
      [n], id int64 [n], the position in the split, and mask bool [n]: False in padding
      rows, which have label -1 and id -1.
    """
    data = self.split(split)
    if batch_size < 1:
      raise InputError(f"batch size {batch_size}; allowed: 1 or more")
    part = _part(batch_size, rows)

    def batch(step: int) -> Batch:
      ids = step * batch_size + part
      mask = ids < len(data)
      real = ids[mask]
      image = np.zeros((len(ids), *data.images.shape[1:]), np.uint8)
      label = np.full(len(ids), UNLABELLED, np.int32)
      if len(real):
        image[mask] = data.images[real]
        label[mask] = data.labels[real]
      return {
        "image": image,
        "label": label,
        "mask": mask,
        "id": np.where(mask, ids, -1),
      }

    return prefetch(batch, range(-(-len(data) // batch_size)))


def epoch_order(num_examples: int, seed: int, epoch: int) -> np.ndarray:
  """The order of the examples in an epoch: a permutation, int64 [num_examples]."""
  if seed < 0:
    raise InputError(f"seed {seed}; allowed: 0 or more")
  return np.random.default_rng([seed, epoch]).permutation(num_examples)


def _part(batch_size: int, rows: np.ndarray | None) -> np.ndarray:
  part = np.arange(batch_size) if rows is None else np.asarray(rows, np.int64)
  if part.size and not 0 <= part.min() <= part.max() < batch_size:
    raise InputError(
      f"rows {part.min()} to {part.max()} of a batch; allowed: 0 to {batch_size - 1}"
    )
  return part


def in_memory(source: Source) -> Source:
  """The same source with every split decoded now, if all fit in `IN_MEMORY_BYTES`."""
  size = sum(int(np.prod(split.images.shape)) for split in source.splits.values())
  if size > IN_MEMORY_BYTES:
    return source
  splits = {
    name: dataclasses.replace(
      split, images=_decoded(split.images, f"{source.name} {name}")
    )
    for name, split in source.splits.items()
  }
  return dataclasses.replace(source, splits=splits)


def _decoded(images: Images, title: str) -> np.ndarray:
  if isinstance(images, np.ndarray):
    return images
  decoded = np.empty(images.shape, np.uint8)
  parts = np.array_split(np.arange(len(images)), -(-len(images) // 256))
  # disable=None: no bar without a terminal.
  for rows in tqdm.tqdm(parts, title, unit="batch", disable=None):
    decoded[rows] = images[rows]
  return decoded
