"""Decodes image files of any format and size to square uint8 RGB arrays."""

import contextlib
import dataclasses
import io
import itertools
import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import PIL
import tqdm
from absl import logging
from PIL import Image, ImageOps
from PIL import features as pillow_features

from ncl_jax.data import depth, file_kinds, threads
from ncl_jax.errors import InputError
from ncl_jax.host import npz

# What Pillow raises on files that are truncated, damaged or not images.
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)

# Files that decode to more pixels are refused; this many take 1.6 GB as RGB. Pillow's
# own limit, a third of it, does not consider that JPEG files are decoded reduced.
LARGEST_PIXELS = 1 << 29

# Larger images are decoded one at a time, so that not every thread holds one.
_LARGE_PIXELS = 1 << 26
_one_large = threading.Lock()

# Raise it whenever `read` or `square` returns other pixels than before, so that images
# in a `decoded_cache` are decoded anew.
CODE_VERSION = 1

# Number of files whose bit depth is inspected.
SAMPLE = 256

# The largest size chosen automatically for photographs.
LARGEST_DEFAULT_SIDE = 256


def version() -> str:
  """What decoded pixels depend on besides the files: this code, Pillow, its codecs."""
  codecs = ("libjpeg_turbo", "jpg", "jpg_2000", "zlib", "libtiff", "webp", "avif")
  versions = [f"{name} {pillow_features.version(name)}" for name in codecs]
  return ", ".join([f"decode {CODE_VERSION}", f"pillow {PIL.__version__}", *versions])


def read(path: str | io.BytesIO, size: int, white: int = 65535) -> np.ndarray:
  """Decodes one file to RGB, upright, and scales its centre square to `size` pixels.

  A JPEG of at least twice that size is decoded at a half, a quarter or an eighth. The
  discarded frequencies would be averaged away by the scaling.

  Args:
    path: any file that Pillow opens, or its bytes. The first frame of an animation is
      read. Transparent pixels are placed on white.
    white: for 16-bit grey pixels, the value that becomes 255, see `depth`.

  Returns:
    uint8 [size, size, 3].

  Raises:
    One of `UNREADABLE` if the file is not a complete image, has pixels that `depth`
    refuses, or decodes to more than `LARGEST_PIXELS`.
  """
  with _opened(path) as image:
    large = image.width * image.height > LARGEST_PIXELS
    if image.format == "JPEG" and (image.mode == "RGB" or large):
      # The shorter side must not fall below `size`, even if the other is much longer.
      image.draft(image.mode, (size, size))
    pixels = image.width * image.height
    if pixels > LARGEST_PIXELS:
      raise ValueError(
        f"{image.width} x {image.height} = {pixels / 1e6:,.0f} million pixels; "
        f"allowed: {LARGEST_PIXELS / 1e6:,.0f}. Make it smaller, or save it as a JPEG "
        "file, which is decoded reduced"
      )
    with _one_large if pixels > _LARGE_PIXELS else contextlib.nullcontext():
      # In place: an image that is upright already is not copied.
      ImageOps.exif_transpose(image, in_place=True)
      return np.asarray(_square(_rgb(image, white, path), size))


def _opened(path: str | io.BytesIO) -> Image.Image:
  """Opens an image of any size; `read` has its own limit."""
  try:
    return Image.open(path)
  except Image.DecompressionBombError:
    with _one_large:
      limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
      try:
        return Image.open(path)
      finally:
        Image.MAX_IMAGE_PIXELS = limit


def _rgb(image: Image.Image, white: int, path: str | io.BytesIO) -> Image.Image:
  if _is_wide(image):
    # Pillow's own conversion clips 16-bit values at 255, so all would be white.
    pixels = np.asarray(image)
    depth.check(pixels, "it")
    if pixels.dtype.kind != "f" and pixels.max() > white:
      logging.log_first_n(
        logging.WARNING,
        "%s: %d is above %d, which is white in this data set: shown as white",
        *(20, path, pixels.max(), white),
      )
    image = Image.fromarray(depth.to_bytes(pixels, white))
  if image.has_transparency_data:
    image = image.convert("RGBA")
    # Most images were made for a white page.
    ground = Image.new("RGBA", image.size, "white")
    image = Image.alpha_composite(ground, image)
  # Converting to the mode it has would copy it.
  return image if image.mode == "RGB" else image.convert("RGB")


def _is_wide(image: Image.Image) -> bool:
  """Whether its pixels are wider than bytes: 16 or 32 bits, or floating-point."""
  return image.mode.startswith(("I", "F"))


def white(paths: Sequence[str], name: str) -> int:
  """The value that becomes 255 in 16-bit images, from up to `SAMPLE` of the files."""

  def wide(path: str) -> Iterator[np.ndarray]:
    # What cannot be read is reported when it is used.
    with contextlib.suppress(*UNREADABLE), _opened(path) as image:
      if _is_wide(image):
        pixels = np.asarray(image)
        depth.check(pixels, path)
        yield pixels

  chosen = [paths[i] for i in spread(len(paths), SAMPLE)]
  found = itertools.chain.from_iterable(map(wide, chosen))
  return depth.white(found, f"{name}, up to {len(chosen)} files")


def _square(image: Image.Image, size: int) -> Image.Image:
  return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)


def square(images: np.ndarray, size: int) -> np.ndarray:
  """Scales the shorter side of images to `size` (bicubic) and crops the centre square.

  `images` are uint8 [N, H, W, C]. Size 0 leaves them unchanged.
  """
  if size == 0 or images.shape[1:3] == (size, size):
    return images
  count, _, _, channels = images.shape
  needed, there = count * size**2 * channels, npz.memory()
  if needed > (there or needed):
    raise InputError(
      f"{count} images of {size} pixels take {needed / 2**30:,.1f} GiB, and this "
      f"machine has {there / 2**30:,.1f} GiB of memory; lower data.image_size"
    )
  result = np.empty((count, size, size, channels), np.uint8)
  for i, c in np.ndindex(count, channels):
    result[i, :, :, c] = np.asarray(_square(Image.fromarray(images[i, :, :, c]), size))
  return result


def typical_side(shorter_sides: Sequence[int]) -> int:
  """The default side: the median of the shorter sides, at most 256 pixels."""
  return min(LARGEST_DEFAULT_SIDE, round(float(np.median(shorter_sides))))


def spread(count: int, most: int = 64) -> list[int]:
  """Up to `most` evenly spaced positions in `range(count)`."""
  return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()


def file_side(paths: Sequence[str]) -> int:
  """`typical_side` of image files, from a few headers."""
  sides, reasons = [], []
  for i in spread(len(paths)):
    try:
      with _opened(paths[i]) as image:
        sides.append(min(image.size))
    except UNREADABLE as error:
      reasons.append(f"{paths[i]}: {_reason(error, paths[i])}")
  if not sides:
    raise InputError(f"none of the images can be read; {reasons[0]}")
  return typical_side(sides)


@dataclasses.dataclass(frozen=True, eq=False)
class Files:
  """Image files that several threads decode on demand.

  Attributes:
    paths: of the N files.
    root: the folder that contains all of them.
  """

  paths: Sequence[str]
  size: int
  white: int = 65535
  root: str = ""

  @property
  def shape(self) -> tuple[int, ...]:
    """(N, size, size, 3)."""
    return (len(self.paths), self.size, self.size, 3)

  def __len__(self) -> int:
    return len(self.paths)

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    return threads.read(self._read, rows, self.shape[1:])

  def take(self, rows: np.ndarray) -> "Files":
    """Some of the files."""
    return dataclasses.replace(self, paths=[self.paths[int(row)] for row in rows])

  def identity(self) -> Iterator[bytes]:
    """What the decoded pixels depend on: each file's name, size and time of change."""
    yield f"white {self.white}".encode()
    above = len(os.path.join(self.root, ""))
    blocks = [self.paths[i : i + 1024] for i in range(0, len(self.paths), 1024)]
    stamps = threads.pool().map(lambda block: [_stamp(p, above) for p in block], blocks)
    yield from itertools.chain.from_iterable(stamps)

  def names(self) -> list[str]:
    """The places of the files below `root`, as text of any system."""
    # Faster than `os.path.relpath`, of which a million take ten seconds.
    above = len(os.path.join(self.root, ""))
    names = (path[above:].replace(os.sep, "/") for path in self.paths)
    return [os.fsencode(name).decode(errors="replace") for name in names]

  def _read(self, row: int) -> np.ndarray:
    path = self.paths[row]
    try:
      return read(path, self.size, self.white)
    except UNREADABLE as error:
      raise InputError(
        f"cannot read the image {path}: {_reason(error, path)}. Mend or remove the "
        "file, or leave out all such files by --config.data.on_bad_image=skip."
      ) from error


def _stamp(path: str, above: int) -> bytes:
  try:
    stat = os.stat(path)
    state = f"{stat.st_size} {stat.st_mtime_ns}"
  except OSError:
    state = "missing"  # reported when it is read
  return os.fsencode(path[above:]) + f"\0{state}".encode()


def unreadable(paths: Sequence[str]) -> dict[int, str]:
  """Decodes all files and returns the rows of those that fail, each with the reason."""

  def check(block: range) -> dict[int, str]:
    failed = {}
    for row in block:
      try:
        read(paths[row], 1)
      except UNREADABLE as error:
        failed[row] = _reason(error, paths[row])
    return failed

  # In blocks, because every queued file costs memory.
  rows = range(len(paths))
  blocks = [rows[i : i + 64] for i in rows[::64]]
  found = threads.pool().map(check, blocks)
  bar = tqdm.tqdm(found, "checking", len(blocks), unit=" x 64 images", disable=None)
  return {row: reason for failed in bar for row, reason in failed.items()}


def _reason(error: BaseException, path: str) -> str:
  if isinstance(error, Image.UnidentifiedImageError):
    return file_kinds.describe(path) or "not an image that Pillow knows"
  return str(error) or type(error).__name__
