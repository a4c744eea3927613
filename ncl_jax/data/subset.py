"""Stratified random parts of a split."""

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
from absl import logging

from ncl_jax.data.decode import Files
from ncl_jax.data.source import Images, Source, Split
from ncl_jax.errors import InputError


def stratified(
  labels: np.ndarray, count: int, seed: int = 0, names: Sequence[str] = ()
) -> np.ndarray:
  """Draws rows so that every class keeps its proportion, to within one row.

  Args:
    labels: int [N]; rows labelled -1 count as one more class.
    count: number of rows, 0 to N.
    names: of the rows. If given, they determine which rows of a class are drawn, so
      adding or removing rows hardly changes the selection among the others.

  Returns:
    The chosen rows in ascending order, int64 [count].

  >>> labels = np.array([0, 0, 0, 0, 1, 1])
  >>> labels[stratified(labels, 3)].tolist()
  [0, 0, 1]
  """
  if not 0 <= count <= len(labels):
    raise InputError(f"{count} examples asked for; allowed: 0 to {len(labels)}")
  if not count:
    return np.arange(0)
  random = np.random.default_rng(seed)
  _, group = np.unique(labels, return_inverse=True)
  sizes = np.bincount(group)
  quota, remainder = np.divmod(sizes * count, len(labels))
  # Largest remainders first, ties at random.
  largest = np.lexsort((random.random(len(sizes)), -remainder))
  quota[largest[: count - quota.sum()]] += 1
  if names:
    order = np.argsort([hashlib.sha256(name.encode()).digest() for name in names])
  else:
    order = random.permutation(len(labels))
  by_class = order[np.argsort(group[order], kind="stable")]
  rank = np.arange(len(labels)) - (np.cumsum(sizes) - sizes)[group[by_class]]
  return np.sort(by_class[rank < quota[group[by_class]]])


def divide(
  whole: Split,
  name: str,
  names: Sequence[str] = (),
  copies: Sequence[Sequence[int]] = (),
) -> dict[str, Split]:
  """Divides a set without test images into 80 % train and 20 % test, stratified.

  Args:
    whole: at least two images.
    names: of the images, if they have names, see `stratified`.
    copies: groups of rows with the same image; each is in one split if possible.

  Returns:
    The splits "train" and "test", rows in the original order.
  """
  count = len(whole)
  if count < 2:
    raise InputError(f"{name}: {count} image; at least 2 make a train and a test")
  logging.info("%s: no test images; a fixed stratified fifth is held out", name)
  test = stratified(whole.labels, max(1, round(0.2 * count)), names=names)
  test = _together(test, whole.labels, copies)
  train = np.setdiff1d(np.arange(count), test)
  return {"train": take(whole, train), "test": take(whole, test)}


def _together(
  test: np.ndarray, labels: np.ndarray, copies: Sequence[Sequence[int]]
) -> np.ndarray:
  """The test rows, after moving each group of copies to the split of its first row.

  A group is not moved if a class would lose its last training or test image.
  """
  held_out = np.isin(np.arange(len(labels)), test)
  _, kind = np.unique(labels, return_inverse=True)
  # Of each class: rows in training, rows in test.
  left = np.stack([np.bincount(kind, held_out == side) for side in (False, True)])
  for group in map(np.array, copies):
    before, after = held_out[group], held_out[group[0]]
    moved = group[before != after]
    lost = np.bincount(kind[moved], minlength=left.shape[1])
    if len(moved) and (left[int(not after)] >= lost + (lost > 0)).all():
      held_out[moved] = after
      left[int(after)] += lost
      left[int(not after)] -= lost
  return np.flatnonzero(held_out)


def subset(source: Source, *, train: int = 0, test: int = 0, seed: int = 0) -> Source:
  """A source with fewer examples, a stratified sample that depends only on the seed.

  `train` and `test` are the numbers of examples to keep; 0 = all.
  """
  splits = dict(source.splits)
  for name, count in (("train", train), ("test", test)):
    split = splits[name]
    if not 0 <= count <= len(split):
      raise InputError(
        f"{count} {name} examples asked for; allowed: 1 to {len(split)}, the number in"
        f" {source.name}, or 0 for all"
      )
    if count:
      splits[name] = take(split, stratified(split.labels, count, seed))
  return dataclasses.replace(source, splits=splits)


def only_classes(source: Source, names: Sequence[str]) -> Source:
  """A source with only some of the classes, such as ImageNet-100 from ImageNet.

  The classes keep their order. Other label levels and unlabelled images are dropped.

  Raises:
    InputError: for names that `source` does not have.
  """
  strangers = sorted(set(names) - set(source.class_names))
  if strangers or not names:
    raise InputError(
      f"classes to keep of {source.name}: {len(set(names))}, of which unknown: "
      f"{', '.join(strangers[:5]) or 'none'}; allowed: from 1 of its "
      f"{source.num_classes} classes, such as {', '.join(source.class_names[:3])}"
    )
  kept = [i for i, name in enumerate(source.class_names) if name in set(names)]
  new = np.full(source.num_classes + 1, -1, np.int32)  # the last is -1's
  new[kept] = np.arange(len(kept))
  splits = {}
  for name, split in source.splits.items():
    part = take(split, np.flatnonzero(new[split.labels] >= 0))
    splits[name] = dataclasses.replace(part, labels=new[part.labels], levels={})
  return dataclasses.replace(
    source,
    splits=splits,
    class_names=tuple(source.class_names[i] for i in kept),
    level_names={},
  )


def labelled(source: Source, fraction: float = 1.0, seed: int = 0) -> Source:
  """A source with only labelled training images, or a stratified fraction of them.

  `fraction`, in (0, 1], refers to the labelled training images. Other splits are
  unchanged.

  Raises:
    InputError: if no image is left.
  """
  split = source.split("train")
  known = np.flatnonzero(split.labels >= 0)
  count = round(fraction * len(known))
  if not (0 < fraction <= 1 and count):
    raise InputError(
      f"a fraction of {fraction} of the {len(known)} labelled training images of "
      f"{source.name}; allowed: above 0, at most 1, and at least one image"
    )
  if count < len(split):
    split = take(split, known[stratified(split.labels[known], count, seed)])
  return dataclasses.replace(source, splits=source.splits | {"train": split})


def take(split: Split, rows: np.ndarray) -> Split:
  """The split reduced to `rows`, without decoding anything."""
  partners = split.partners
  return Split(
    some(split.images, rows),
    split.labels[rows],
    {name: labels[rows] for name, labels in split.levels.items()},
    (lambda chosen, rng: partners(rows[chosen], rng)) if partners else None,
    None if split.captions is None else split.captions[rows],
    None if split.files is None else split.files.take(rows),
  )


def some(images: Images, rows: np.ndarray) -> Images:
  """The images at the positions `rows` [n], without decoding anything."""
  if isinstance(images, np.ndarray):
    return images[rows]
  return images.take(rows) if isinstance(images, Files) else _Rows(images, rows)


@dataclasses.dataclass(frozen=True, eq=False)
class _Rows(Images):
  """Some of the images."""

  images: Images
  rows: np.ndarray

  @property
  def shape(self) -> tuple[int, ...]:
    return (len(self.rows), *self.images.shape[1:])

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    return self.images[self.rows[rows]]

  def identity(self) -> Iterator[bytes]:
    """As `decoded_cache.Stored`, of images that are."""
    yield self.rows.astype(np.int64).tobytes()
    yield from self.images.identity()  # type: ignore[attr-defined]
