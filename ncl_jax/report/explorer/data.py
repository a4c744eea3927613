"""What the explorer shows of a feature matrix: few values, small enough for a page."""

import dataclasses
from collections.abc import Sized

import numpy as np
import scipy.stats

from ncl_jax import checks
from ncl_jax.data.source import Images

IMAGES = 10_000  # more would make the page too large to open
TOP = 24  # images shown of a dimension
TEXTS = 12  # words shown of a dimension, and captions
PATCHES = 4 << 20  # values of all heads' attention; of their mean where there are more
KEPT = 16  # values kept of an image's code
NEIGHBOURS = 8
CLASSES = 10  # bars of a class histogram
BINS = 20  # of an activation histogram
SCALE = 32767  # f lies in -1..1: two bytes a value
_BLOCK = 256  # dimensions, or rows, at a time


@dataclasses.dataclass(frozen=True)
class Side:
  """One method.

  Attributes:
    label: what a reader sees, e.g. "NCL".
    f: features after the transform, rows of unit length or zero, [N, D].
    sepin: [D] in nats; None where it was not computed.
    words: of two towers, the text tower's f of the exploration's words [M, D].
    captions: features of its captions [N, D].
    partners: of pairs of images, f of the partners [N, D].
    attention: of a vision transformer, `vit.attention` [N, heads, rows, columns].
    seen: share of the shorter side that the network sees, a square in the middle.

  Raises:
    InputError: if an array holds NaN or infinity.
  """

  label: str
  f: np.ndarray
  sepin: np.ndarray | None = None
  words: np.ndarray | None = None
  captions: np.ndarray | None = None
  partners: np.ndarray | None = None
  attention: np.ndarray | None = None
  seen: float = 1.0

  def __post_init__(self) -> None:
    """Nothing is shown of what is not finite."""
    for name in ("f", "sepin", "words", "captions", "partners", "attention"):
      if (values := getattr(self, name)) is not None:
        checks.finite(f"{name} of {self.label}", values)


@dataclasses.dataclass(frozen=True)
class Exploration:
  """Images and one or two methods' features of them.

  Attributes:
    images: uint8 [N, H, W, C] with C 1 or 3, of any size: they are only shown.
    labels: [N] classes; -1 where unknown.
    class_names: of the classes; numbers stand for missing ones.
    sides: the methods, the baseline first.
    threshold: `|f|` above it counts as active.
    note: what the images are, in a sentence; "" for none.
    captions: texts of the images [N]; None where they have none.
    words: M words, such as those of the captions.
    partners: the other image of each pair, uint8 as the images; None for none.
    texts: N texts that the images are, shown in their place; () for images.
    files: N names of the images' files; () where they are no files.
  """

  title: str
  images: Images
  labels: np.ndarray
  class_names: tuple[str, ...]
  sides: tuple[Side, ...]
  threshold: float = 1e-5
  note: str = ""
  captions: np.ndarray | None = None
  words: tuple[str, ...] = ()
  partners: np.ndarray | None = None
  texts: tuple[str, ...] = ()
  files: tuple[str, ...] = ()

  def __post_init__(self):
    if not self.sides:
      raise ValueError("an exploration has 1 side or more, got none")
    given: dict[str, Sized | None] = {"labels": self.labels}
    given |= {"captions": self.captions, "partners": self.partners}
    given |= {"texts": self.texts or None, "files": self.files or None}
    for side in self.sides:
      given[f"features of {side.label!r}"] = side.f
      for what in ("captions", "partners", "attention"):
        given[f"{what} of {side.label!r}"] = getattr(side, what)
      if side.words is not None and len(side.words) != len(self.words):
        raise ValueError(
          f"words of {side.label!r}: {len(side.words)} rows for {len(self.words)} words"
        )
    for name, rows in given.items():
      if rows is not None and len(rows) != len(self.images):
        raise ValueError(f"{name}: {len(rows)} rows for {len(self.images)} images")


def some(count: int, most: int = IMAGES) -> np.ndarray:
  """Positions of at most that many of `count` images, in order; always the same ones.

  >>> some(3).tolist()
  [0, 1, 2]
  """
  return np.sort(np.random.default_rng(0).permutation(count)[:most])


def dimensions(
  f: np.ndarray, labels: np.ndarray, num_classes: int, threshold: float
) -> dict[str, np.ndarray]:
  """The table of dimensions, and what is shown of each.

  Active means `|f| > threshold`; consistency is the share of the most frequent class
  among the labelled images that activate the dimension, entropy that of their classes.

  Args:
    f: [N, D] features.
    labels: [N]; -1 where unknown.
    num_classes: K; 0 for none.

  Returns:
    active [D] number of images; expected [D] mean of f; consistency [D] and entropy [D]
    in nats, NaN without a labelled image; classes and class_counts [D, up to 10], the
    most frequent first, -1 and 0 where there is none; top and top_values [D, up to 24],
    the images of the highest f above the threshold, -1 and 0 where there is none;
    histogram [D, 20] of the active values from low [D] to high [D], which enclose 0.
  """
  onehot = np.float32(labels[:, None] == np.arange(max(num_classes, 1))[None])
  parts = [
    _dimensions(f[:, start : start + _BLOCK], onehot, threshold)
    for start in range(0, f.shape[1], _BLOCK)
  ]
  return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _dimensions(f, onehot, threshold):
  on = np.abs(f) > threshold
  top, top_values = strongest(f, TOP, threshold)
  counts = on.T.astype(np.float32) @ onehot
  classes, class_counts = highest(counts, CLASSES)
  with np.errstate(invalid="ignore"):
    consistency = counts.max(axis=1) / counts.sum(axis=1)
    entropy = scipy.stats.entropy(counts, axis=1)
  low = np.minimum(f.min(axis=0), 0)
  high = np.maximum(f.max(axis=0), 0)
  # A dead dimension has no width: its values, all inactive, are not counted anyway.
  width = np.where(high > low, high - low, 1)
  bins = np.minimum(((f - low[None]) / width[None] * BINS).astype(np.int64), BINS - 1)
  bins += BINS * np.arange(f.shape[1])[None]
  histogram = np.bincount(bins[on], minlength=BINS * f.shape[1])
  return {
    "active": on.sum(axis=0),
    "expected": f.mean(axis=0, dtype=np.float64),
    "consistency": consistency,
    "entropy": entropy,
    "classes": classes,
    "class_counts": class_counts,
    "top": top,
    "top_values": top_values,
    "histogram": histogram.reshape(f.shape[1], BINS),
    "low": low,
    "high": high,
  }


def codes(f: np.ndarray, threshold: float) -> dict[str, np.ndarray]:
  """The few largest values of each image of features f [N, D].

  Returns:
    kept and kept_values [N, up to 16]: dimensions of the largest `|f|`, largest first,
    and their f; -1 and 0 where no active one is left; l0 [N] active dimensions.
  """
  size = np.abs(f)
  kept, _ = highest(np.where(size > threshold, size, 0), KEPT)
  values = np.take_along_axis(f, np.maximum(kept, 0), axis=1)
  return {
    "kept": kept,
    "kept_values": np.where(kept < 0, 0, values),
    "l0": (size > threshold).sum(axis=1),
  }


def neighbours(f: np.ndarray) -> dict[str, np.ndarray]:
  """The other images with the largest cosine, of rows of unit length or zero [N, D].

  Returns:
    near and near_values [N, up to 8], nearest first; -1 and 0 where no image with a
    positive cosine is left.
  """
  parts = []
  for start in range(0, len(f), _BLOCK):
    cosines = f[start : start + _BLOCK] @ f.T
    rows = np.arange(len(cosines))
    cosines[rows, start + rows] = 0
    parts.append(highest(cosines, NEIGHBOURS))
  near, values = (np.concatenate(part) for part in zip(*parts, strict=True))
  return {"near": near, "near_values": values}


def looked_at(attention: np.ndarray) -> np.ndarray:
  """Attention [N, heads, rows, columns] in a byte a patch, or its mean over heads.

  Returns:
    uint8 of the same shape, or [N, 1, rows, columns] where it would take more than
    `PATCHES` bytes; 255 is the most that any patch of the image gets from that head.
  """
  if attention.size > PATCHES:
    attention = attention.mean(axis=1, keepdims=True)
  most = attention.max(axis=(2, 3), keepdims=True)
  return np.rint(255 * attention / np.where(most > 0, most, 1)).astype(np.uint8)


def strongest(
  f: np.ndarray, count: int, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
  """Of each dimension the rows of the highest f [M, D] above the threshold.

  Returns:
    [D, min(count, M)] rows, highest first, and their f; -1 and 0 where none is left.
  """
  blocks = (f[:, start : start + _BLOCK] for start in range(0, f.shape[1], _BLOCK))
  parts = [highest(np.where(x > threshold, x, 0).T, count) for x in blocks]
  at, values = zip(*parts, strict=True)
  return np.concatenate(at), np.concatenate(values)


def highest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
  """Positions and values of the largest positive entries of rows [R, C], largest first.

  Returns:
    [R, min(count, C)] positions, -1 where no positive entry is left, and values, 0
    there. Of equals the first comes first, but for the choice at the end of the list.

  >>> highest(np.array([[1.0, 0.0, 3.0]]), 2)[0].tolist()
  [[2, 0]]
  """
  count = min(count, values.shape[1])
  if count < values.shape[1]:
    at = np.sort(np.argpartition(-values, count - 1, axis=1)[:, :count], axis=1)
  else:
    at = np.broadcast_to(np.arange(count), values.shape)
  found = np.take_along_axis(values, at, axis=1)
  order = np.argsort(-found, axis=1, kind="stable")
  at = np.take_along_axis(at, order, axis=1)
  found = np.take_along_axis(found, order, axis=1)
  return np.where(found > 0, at, -1), np.maximum(found, 0)
