"""Sources `dsprites`, whose images are drawn from their index, and `dsprites:FILE`.

Factors and their values follow the public description (Matthey et al. 2017,
github.com/google-deepmind/dsprites-dataset). The pixels are drawn here or read from the
public file.
"""

import dataclasses
import functools
import math
import pathlib
import zipfile
from collections.abc import Sequence

import numpy as np

from ncl_jax.data.decode import square
from ncl_jax.data.source import Images, Source, Split
from ncl_jax.errors import InputError

SIDE = 64
SHAPES = ("square", "ellipse", "heart")
# Number of values, in the order of the index, the last fastest: scales from 0.5 to 1,
# orientations from 0 to 2 pi with both ends, x to the right, y downwards.
FACTORS = {"shape": 3, "scale": 6, "orientation": 40, "x": 32, "y": 32}
SIZES = tuple(FACTORS.values())
COUNT = math.prod(SIZES)
# Pixels from the centre of a sprite of scale 1 to its farthest point. A sprite at any
# position lies inside the image.
RADIUS = 16.0
TEST = 10_000


def factors_of(index: np.ndarray) -> np.ndarray:
  """The factors of images [n] in 0..737,279: [n, 5] int64, in the order of `FACTORS`.

  >>> factors_of(np.array([0, 33, 737_279])).tolist()
  [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [2, 5, 39, 31, 31]]
  """
  return np.stack(np.unravel_index(index, SIZES), axis=-1).astype(np.int64)


def index_of(factors: np.ndarray) -> np.ndarray:
  """The inverse of `factors_of`: [n, 5] -> [n] int64."""
  return np.ravel_multi_index(tuple(np.asarray(factors).T), SIZES)


def render(index: np.ndarray) -> np.ndarray:
  """Draws the images with indices [n] in 0..737,279: uint8 [n, 64, 64, 1], 0 or 255.

  A pixel is white if its centre lies in the sprite. Each sprite is drawn once and
  copied to its position, a whole number of pixels away.

  Raises:
    InputError: an index out of range.

  >>> render(np.array([0])).shape
  (1, 64, 64, 1)
  """
  if index.size and not (index.min() >= 0 and index.max() < COUNT):
    raise InputError(
      f"images {index.min()} to {index.max()} of dsprites: allowed are 0 to {COUNT - 1}"
    )
  sprite, position = np.divmod(index, SIZES[3] * SIZES[4])
  x, y = np.divmod(position, SIZES[4])
  return _windows()[sprite, SIZES[4] - 1 - y, SIZES[3] - 1 - x][..., None]


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn(Images):
  """Images that are drawn on demand.

  Attributes:
    index: [N] indices, see `factors_of`.
    bits: images of the public file, from `read_bits`; None: drawn here.
  """

  index: np.ndarray
  size: int = SIDE
  bits: np.ndarray | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    """(N, size, size, 1)."""
    return (len(self.index), self.size, self.size, 1)

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    return self.draw(self.index[rows])

  def draw(self, index: np.ndarray) -> np.ndarray:
    """Images by their index in all of dSprites: uint8 [n, size, size, 1]."""
    if self.bits is None:
      pixels = render(index)
    else:
      pixels = 255 * np.unpackbits(self.bits[index], axis=-1)[..., None]
    return square(pixels, self.size)


def read_bits(path: pathlib.Path, count: int = COUNT) -> np.ndarray:
  """Reads the first `count` images of the public file, packed to one bit per pixel.

  Args:
    path: `dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz`.

  Returns:
    uint8 [count, 64, 8]; all images take 0.4 GB.

  Raises:
    InputError: if it is another file, or its images are in another order.
  """
  try:
    with zipfile.ZipFile(path) as archive:
      with archive.open("latents_classes.npy") as stream:
        classes = _array(stream, count, (6,), np.int64)
      expected = factors_of(np.arange(count))
      if not np.array_equal(classes[:, 1:], expected):
        raise InputError(f"{path}: latents_classes are not in dSprites' order")
      with archive.open("imgs.npy") as stream:
        return _array(
          stream, count, (SIDE, SIDE), np.uint8, lambda x: np.packbits(x, axis=-1)
        )
  except (OSError, KeyError, ValueError, zipfile.BadZipFile, EOFError) as error:
    if isinstance(error, InputError):
      raise
    raise InputError(f"{path} is not dSprites' npz file: {error}") from error


def _array(stream, count, shape, dtype, change=lambda x: x, rows=8192):
  """[count, *] from an .npy file; `change` is applied to a few rows at a time."""
  np.lib.format.read_magic(stream)
  found = np.lib.format.read_array_header_1_0(stream)
  if found != ((count, *shape), False, np.dtype(dtype)):
    raise InputError(f"an array {found}, expected {(count, *shape)} of {dtype}")
  size = math.prod(shape) * np.dtype(dtype).itemsize
  parts = []
  for start in range(0, count, rows):
    n = min(rows, count - start)
    part = np.frombuffer(stream.read(n * size), dtype)
    parts.append(change(part.reshape(n, *shape)))
  return np.concatenate(parts)


def load(
  image_size: int = 0,
  pair_factors: Sequence[str] = (),
  path: pathlib.Path | None = None,
) -> Source:
  """727,280 train and 10,000 test images, a fixed random split.

  Labels are the three shapes. All five factors are levels of the splits.

  Args:
    image_size: side in pixels; 0 = 64.
    pair_factors: factors that are redrawn for the second image of a positive pair; ():
      a pair is two views of one image.
    path: the public file, to use its images; None: draw them.

  Raises:
    InputError: for an unknown factor, or an invalid file.
  """
  for name in pair_factors:
    if name not in FACTORS:
      raise InputError(
        f"data.pair_factors = {name!r}: allowed are {', '.join(FACTORS)}"
      )
  bits = read_bits(path) if path else None
  order = np.random.default_rng(0).permutation(COUNT)
  splits = {}
  for name, index in {"train": order[TEST:], "test": order[:TEST]}.items():
    index = np.sort(index)
    factors = factors_of(index).astype(np.int32)
    levels = {factor: factors[:, k] for k, factor in enumerate(FACTORS)}
    images = Drawn(index, image_size or SIDE, bits)
    partners = functools.partial(_partners, images, tuple(pair_factors))
    splits[name] = Split(
      images, levels["shape"], levels, partners if pair_factors else None
    )
  return Source("dsprites", splits, SHAPES, True)


def _partners(
  images: Drawn, changed: tuple[str, ...], rows: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
  """Images that differ from those at `rows` in the named factors, drawn uniformly."""
  factors = factors_of(images.index[rows])
  for k, (name, count) in enumerate(FACTORS.items()):
    if name in changed:
      factors[:, k] = rng.integers(count, size=len(rows))
  return images.draw(index_of(factors))


@functools.cache
def _windows() -> np.ndarray:
  """[720, 32, 32, 64, 64] views of the sprites, backed by 6.5 MB."""
  return np.lib.stride_tricks.sliding_window_view(_sprites(), (SIDE, SIDE), (1, 2))


def _sprites() -> np.ndarray:
  """[720, 95, 95] every shape, scale and orientation in the middle of a canvas."""
  side = SIDE + SIZES[4] - 1
  offset = np.arange(side) - (side - 1) / 2
  # y points up in the plane of the shapes, and down in the image.
  y, x = -offset[:, None], offset[None]
  canvas = np.empty((*SIZES[:3], side, side), np.uint8)
  for i, scale in enumerate(np.linspace(0.5, 1, 6)):
    for j, angle in enumerate(np.linspace(0, 2 * np.pi, 40)):
      c, s = np.cos(angle), np.sin(angle)
      # The pixels, rotated back, in units of the radius.
      u = (c * x + s * y) / (scale * RADIUS)
      v = (c * y - s * x) / (scale * RADIUS)
      for k, inside in enumerate((_square, _ellipse, _heart)):
        canvas[k, i, j] = 255 * inside(u, v)
  return canvas.reshape(-1, side, side)


def _square(u: np.ndarray, v: np.ndarray) -> np.ndarray:
  return np.maximum(abs(u), abs(v)) <= 0.5**0.5


def _ellipse(u: np.ndarray, v: np.ndarray) -> np.ndarray:
  return u**2 + (2 * v) ** 2 <= 1


def _heart(u: np.ndarray, v: np.ndarray) -> np.ndarray:
  """`(x^2 + y^2 - 1)^3 <= x^2 y^3`, moved so that its centroid is at 0."""
  x, y = HEART_UNIT * u, HEART_UNIT * v + HEART_CENTROID
  return (x**2 + y**2 - 1) ** 3 <= x**2 * y**3


# The y of the curve's centroid, and the distance of its farthest point from it.
HEART_CENTROID, HEART_UNIT = 0.29348, 1.29101
