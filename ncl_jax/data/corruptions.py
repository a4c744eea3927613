"""The common image corruptions, in five severities, without any download.

Formulas and strengths are those of CIFAR-10-C for small images and of ImageNet-C for
large ones. Frost, snow, fog, spatter, glass blur and elastic are left out, because they
need photographs or much code. Two things differ from the published files: values are
rounded instead of truncated, and zooming is about the exact centre.

Reference: Hendrycks & Dietterich 2019 (arXiv:1903.12261).
"""

import dataclasses
import io
import math
import weakref
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.ndimage
from PIL import Image

from ncl_jax import checks
from ncl_jax.data.source import Images
from ncl_jax.errors import InputError

SEVERITIES = (1, 2, 3, 4, 5)
SMALL_BELOW = 64  # pixels of the shorter side; ImageNet-C's strengths hold from here on
KEPT_BYTES = 2**30
# id of a split's images -> (name, severity, side, seed, rows) -> those images, made.
_KEPT: dict[int, dict[tuple, np.ndarray]] = {}


@dataclasses.dataclass(frozen=True)
class Corruption:
  """One kind of corruption.

  Attributes:
    apply: takes x float64 [H, W, C] in [0, 1], a strength and a generator; the result
      may exceed [0, 1].
    small: the strength at each severity, for images like CIFAR's; `large`: ImageNet's.
    colour: whether it needs three channels.
  """

  apply: Callable[[np.ndarray, Any, np.random.Generator], np.ndarray]
  small: tuple
  large: tuple
  colour: bool = False


def corrupt(image: np.ndarray, name: str, severity: int, seed: int = 0) -> np.ndarray:
  """Corrupts one image.

  Args:
    image: uint8 [H, W, C], C 1 or 3.
    name: of `NAMES`.
    severity: 1 to 5.
    seed: with name and severity, determines the result.

  Returns:
    uint8 [H, W, C].

  Raises:
    InputError: an unknown name or severity, or a grey image where colour is needed.

  >>> corrupt(np.full((2, 2, 1), 100, np.uint8), "brightness", 1).ravel().tolist()
  [113, 113, 113, 113]
  """
  checks.choice("corruption", name, NAMES)
  checks.whole("severity", severity, 1, 5)
  kind = _KINDS[name]
  checks.pixels("image", image)
  if kind.colour and image.shape[-1] != 3:
    raise InputError(f"{name} needs 3 channels, the image has {image.shape[-1]}")
  levels = kind.small if min(image.shape[:2]) < SMALL_BELOW else kind.large
  rng = np.random.default_rng([seed, zlib.crc32(name.encode()), severity])
  x = kind.apply(image / 255, levels[severity - 1], rng)
  return np.round(255 * np.clip(x, 0, 1)).astype(np.uint8)


def names(channels: int) -> tuple[str, ...]:
  """The corruptions that are possible for images with this many channels."""
  return tuple(n for n in NAMES if channels == 3 or not _KINDS[n].colour)


@dataclasses.dataclass(frozen=True, eq=False)
class Corrupted(Images):
  """Images of a split, cropped to their central square and corrupted on demand.

  Each image has its own generator, seeded by its position, so the result depends on
  nothing else. A comparison needs the same batches for every method and control. They
  are therefore cached as long as the split exists, up to `KEPT_BYTES` in total.

  `images` are uint8 [N, H, W, C], or files that are decoded on demand. `side` is that
  of the central square.
  """

  images: Any
  name: str
  severity: int
  side: int
  seed: int = 0

  @property
  def shape(self) -> tuple[int, ...]:
    """(N, side, side, C)."""
    return (len(self.images), self.side, self.side, self.images.shape[-1])

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    if id(self.images) not in _KEPT:
      _KEPT[id(self.images)] = {}
      weakref.finalize(self.images, _KEPT.pop, id(self.images), None)
    kept = _KEPT[id(self.images)]
    key = (self.name, self.severity, self.side, self.seed, rows.tobytes())
    if key in kept:
      return kept[key].copy()
    height, width = self.images.shape[1:3]
    top, left = (height - self.side) // 2, (width - self.side) // 2
    made = self.images[rows][:, top : top + self.side, left : left + self.side].copy()
    for i, row in enumerate(rows):
      seed = int(np.random.SeedSequence([self.seed, int(row)]).generate_state(1)[0])
      made[i] = corrupt(made[i], self.name, self.severity, seed)
    held = sum(images.nbytes for of in _KEPT.values() for images in of.values())
    if held + made.nbytes <= KEPT_BYTES:
      kept[key] = made.copy()
    return made


def _gaussian_noise(x, scale, rng):
  return x + rng.normal(scale=scale, size=x.shape)


def _shot_noise(x, photons, rng):
  return rng.poisson(x * photons) / photons


def _impulse_noise(x, amount, rng):
  hit = rng.random(x.shape) < amount
  return np.where(hit, rng.random(x.shape) < 0.5, x)


def _speckle_noise(x, scale, rng):
  return x + x * rng.normal(scale=scale, size=x.shape)


def _gaussian_blur(x, sigma, rng):
  return scipy.ndimage.gaussian_filter(x, (sigma, sigma, 0), mode="nearest")


def _defocus_blur(x, strength, rng):
  radius, sigma = strength
  reach = max(8, radius)
  y = np.arange(-reach, reach + 1)
  disk = (y[:, None] ** 2 + y[None] ** 2 <= radius**2).astype(float)
  # 3 or 5 taps, as in the published kernels.
  taps = 1 if radius <= 8 else 2
  t = np.exp(-(np.arange(-taps, taps + 1) ** 2) / (2 * sigma**2))
  for axis in (0, 1):
    disk = scipy.ndimage.correlate1d(disk / disk.sum(), t / t.sum(), axis)
  kernel = disk / disk.sum()
  return scipy.ndimage.correlate(x, kernel[:, :, None], mode="mirror")


def _motion_blur(x, strength, rng):
  radius, sigma = strength
  angle = math.radians(rng.uniform(-45, 45))
  steps = np.arange(2 * radius + 1)
  weights = np.exp(-(steps**2) / (2 * sigma**2))
  height, width = x.shape[:2]
  blurred = np.zeros_like(x)
  for i, weight in zip(steps, weights / weights.sum(), strict=True):
    down, right = round(i * math.sin(angle)), round(i * math.cos(angle))
    rows = np.clip(np.arange(height) + down, 0, height - 1)
    columns = np.clip(np.arange(width) + right, 0, width - 1)
    blurred += weight * x[rows[:, None], columns[None]]
  return blurred


def _zoom_blur(x, factors, rng):
  total = x.copy()
  for factor in factors:
    matrix = np.array([1 / factor, 1 / factor, 1])
    centre = (np.array([*x.shape[:2], 1]) - 1) / 2
    total += scipy.ndimage.affine_transform(
      x, matrix, centre - matrix * centre, order=1, mode="nearest"
    )
  return total / (len(factors) + 1)


def _brightness(x, amount, rng):
  # HSV's value is the largest channel, and the colour is proportional to it.
  value = x.max(-1, keepdims=True)
  brighter = np.clip(value + amount, 0, 1)
  return np.where(value > 0, x / np.where(value > 0, value, 1) * brighter, brighter)


def _contrast(x, factor, rng):
  mean = x.mean((0, 1), keepdims=True)
  return factor * (x - mean) + mean


def _saturate(x, strength, rng):
  factor, offset = strength
  value = x.max(-1, keepdims=True)
  chroma = value - x.min(-1, keepdims=True)
  before = chroma / np.where(value > 0, value, 1)
  after = np.clip(factor * before + offset, 0, 1)
  # A grey pixel's hue counts as red.
  grey = value * (1 - after * np.array([0.0, 1.0, 1.0]))
  moved = value - (value - x) * after / np.where(before > 0, before, 1)
  return np.where(chroma > 0, moved, grey)


def _pixelate(x, share, rng):
  height, width = x.shape[:2]
  small = max(1, int(width * share)), max(1, int(height * share))
  image = _to_pillow(x).resize(small, Image.Resampling.BOX)
  return _from_pillow(image.resize((width, height), Image.Resampling.BOX))


def _jpeg(x, quality, rng):
  file = io.BytesIO()
  _to_pillow(x).save(file, "JPEG", quality=quality)
  return _from_pillow(Image.open(file))


def _to_pillow(x: np.ndarray) -> Image.Image:
  pixels = np.round(255 * x).astype(np.uint8)
  return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _from_pillow(image: Image.Image) -> np.ndarray:
  pixels = np.asarray(image) / 255
  return pixels[..., None] if pixels.ndim == 2 else pixels


def _zooms(step: float, *tops: int) -> tuple:
  return tuple(np.arange(1, 1 + top / 100, step) for top in tops)


_KINDS = {
  "gaussian_noise": Corruption(
    _gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38)
  ),
  "shot_noise": Corruption(_shot_noise, (500, 250, 100, 75, 50), (60, 25, 12, 5, 3)),
  "impulse_noise": Corruption(
    _impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27)
  ),
  "speckle_noise": Corruption(
    _speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2), (0.15, 0.2, 0.35, 0.45, 0.6)
  ),
  "gaussian_blur": Corruption(
    _gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0), (1, 2, 3, 4, 6)
  ),
  "defocus_blur": Corruption(
    _defocus_blur,
    ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
  ),
  "motion_blur": Corruption(
    _motion_blur,
    ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
  ),
  "zoom_blur": Corruption(
    _zoom_blur,
    _zooms(0.01, 6, 11, 16, 21, 26),
    _zooms(0.01, 11, 16) + _zooms(0.02, 21, 26) + _zooms(0.03, 31),
  ),
  "brightness": Corruption(
    _brightness, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5)
  ),
  "contrast": Corruption(
    _contrast, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)
  ),
  "saturate": Corruption(
    _saturate,
    ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    colour=True,
  ),
  "pixelate": Corruption(
    _pixelate, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25)
  ),
  "jpeg": Corruption(_jpeg, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7)),
}
NAMES = tuple(_KINDS)
