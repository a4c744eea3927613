"""Decodes image files of any format and size to square uint8 RGB arrays."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import io
import os
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import tqdm
from absl import logging
from PIL import Image, ImageFile, ImageOps
from PIL import features as pillow_features

from ncl_jax.data import depth
from ncl_jax.errors import InputError
from ncl_jax.host import npz, resources

# What Pillow raises on files that are truncated, damaged or not images.
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)

# Files that decode to more pixels are refused; this many take 1.6 GB as RGB.
LARGEST_PIXELS = 1 << 29

# Larger images are decoded one at a time, so that not every thread holds one.
_LARGE_PIXELS = 1 << 26
_one_large = threading.Lock()

# The colour behind transparent pixels: most images were made for a white page.
BACKGROUND = (255, 255, 255)

HEIC = "a HEIC picture, which Pillow does not decode: convert it, as by heif-convert"
_SVG = "an SVG drawing: convert it to PNG"
_PDF = "a PDF document: convert its pages to PNG"
_JXL = "a JPEG XL picture: convert it to JPEG or PNG"
_AVIF = "an AVIF picture, which this Pillow does not decode"
_RAW = "a camera's raw file: convert it to JPEG or TIFF"
# Pictures that Pillow does not decode, by their endings, and what to do.
UNKNOWN_ENDINGS = {
  **dict.fromkeys((".heic", ".heif"), HEIC),
  **dict.fromkeys((".cr2", ".cr3", ".nef", ".arw", ".dng"), _RAW),
  ".svg": _SVG,
  ".pdf": _PDF,
  ".jxl": _JXL,
  ".avif": _AVIF,
}

# Number of files whose bit depth is inspected.
SAMPLE = 256

# The largest size chosen automatically for photographs.
LARGEST_DEFAULT_SIDE = 256


@functools.cache
def extensions() -> frozenset[str]:
  """Lower-case file endings that this Pillow can decode, such as ".jpg".

  Formats that Pillow names but cannot decode by itself (PostScript, MPEG, HDF5 and
  others) are left out.
  """
  Image.init()
  lacking = {"EPS", "MPEG", "IPTC"}
  for name, feature in (("AVIF", "avif"), ("WEBP", "webp"), ("JPEG2000", "jpg_2000")):
    if not pillow_features.check(feature):
      lacking.add(name)
  for name, (factory, _) in Image.OPEN.items():
    if isinstance(factory, type) and issubclass(factory, ImageFile.StubImageFile):
      lacking.add(name)
  known = Image.OPEN.keys() - lacking
  return frozenset(
    e for e, name in Image.registered_extensions().items() if name in known
  )


def read(path: str | io.BytesIO, size: int, white: int = 65535) -> np.ndarray:
  """Decodes one file to RGB, upright, and scales its centre square to `size` pixels.

  A JPEG of at least twice that size is decoded at a half, a quarter or an eighth. The
  discarded frequencies would be averaged away by the scaling.

  Args:
    path: any file that Pillow opens, or its bytes. The first frame of an animation is
      read. Transparent pixels are placed on white (`BACKGROUND`).
    size: side of the result in pixels.
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
      return np.asarray(
        _square(_rgb(ImageOps.exif_transpose(image), white, path), size)
      )


def _opened(path: str | io.BytesIO) -> Image.Image:
  try:
    return Image.open(path)
  except Image.DecompressionBombError:
    # Pillow's limit, a third of ours, does not consider reduced decoding.
    with _one_large, _no_limit():
      return Image.open(path)


@contextlib.contextmanager
def _no_limit() -> Iterator[None]:
  """Disables Pillow's limit on pixels; `read` has its own."""
  limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
  try:
    yield
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
    ground = Image.new("RGBA", image.size, (*BACKGROUND, 255))
    image = Image.alpha_composite(ground, image)
  return image.convert("RGB")


def _is_wide(image: Image.Image) -> bool:
  """Whether its pixels are wider than bytes: 16 or 32 bits, or floating-point."""
  return image.mode.startswith(("I", "F"))


def white(paths: Sequence[str], name: str) -> int:
  """The value that becomes 255 in a data set's 16-bit images, see `depth.white`.

  Up to `SAMPLE` of the files are inspected. `name` is that of the set, for messages.
  """

  def values(path: str) -> np.ndarray | None:
    try:
      with _opened(path) as image:
        if not _is_wide(image):
          return None
        pixels = np.asarray(image)
        depth.check(pixels, path)
        return pixels
    except UNREADABLE:
      return None  # reported when it is read for use

  chosen = [paths[i] for i in spread(len(paths), SAMPLE)]
  found = (values(path) for path in chosen)
  return depth.white(
    (pixels for pixels in found if pixels is not None),
    f"{name}, up to {len(chosen)} files",
  )


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
  sides, reason = [], ""
  for i in spread(len(paths)):
    try:
      with _opened(paths[i]) as image:
        sides.append(min(image.size))
    except UNREADABLE as error:
      reason = reason or f"{paths[i]}: {_reason(error, paths[i])}"
  if not sides:
    raise InputError(f"none of the images can be read; {reason}")
  return typical_side(sides)


@dataclasses.dataclass(frozen=True, eq=False)
class Files:
  """Image files that several threads decode on demand.

  Attributes:
    paths: of the N files.
    size: side of the decoded images in pixels.
    white: see `read`.
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
    return in_threads(self._read, rows, self.shape[1:])

  def take(self, rows: np.ndarray) -> "Files":
    """Some of the files."""
    return dataclasses.replace(self, paths=[self.paths[int(row)] for row in rows])

  def resized(self, size: int) -> "Files":
    """The same files, decoded to another size."""
    return dataclasses.replace(self, size=size)

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


def in_threads(read_row, rows: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
  """Decodes images in several threads, directly into uint8 [n, H, W, C].

  Args:
    read_row: takes a position and returns an image, uint8 of `shape`.
    rows: positions [n].
    shape: (H, W, C).
  """
  images = np.empty((len(rows), *shape), np.uint8)

  def one(i: int) -> None:
    images[i] = read_row(int(rows[i]))

  for _ in _pool().map(one, range(len(rows))):
    pass
  return images


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
  """Threads that live as long as the process; starting them per batch takes time."""
  return concurrent.futures.ThreadPoolExecutor(_threads(), "decode")


def _threads() -> int:
  """A few more threads than cores, because some wait for the disk."""
  return min(32, resources.cores() + 4)


def unreadable(paths: Sequence[str]) -> dict[str, str]:
  """Decodes all files and returns those that fail, each with the reason."""

  def reason(path: str) -> str:
    try:
      read(path, 1)
    except UNREADABLE as error:
      return _reason(error, path)
    return ""

  failed = {}
  with (
    concurrent.futures.ThreadPoolExecutor(_threads()) as pool,
    tqdm.tqdm(total=len(paths), desc="checking", unit="image", disable=None) as bar,
  ):
    # In blocks, because every queued file costs memory.
    for start in range(0, len(paths), 1024):
      block = paths[start : start + 1024]
      reasons = zip(block, pool.map(reason, block), strict=True)
      failed.update({path: text for path, text in reasons if text})
      bar.update(len(block))
  return failed


def _reason(error: BaseException, path: str) -> str:
  if isinstance(error, Image.UnidentifiedImageError):
    return _foreign(path) or "not an image that Pillow knows"
  return str(error) or type(error).__name__


# Files that are often named like images: offset, first bytes, and what they are.
_FOREIGN = (
  (4, (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypheim", b"ftypmif1"), HEIC),
  (4, (b"ftypavif", b"ftypavis"), _AVIF),
  (0, (b"\xff\x0a", b"\0\0\0\x0cJXL "), _JXL),
  (0, (b"%PDF",), _PDF),
  (0, (b"<svg", b"<?xml"), _SVG),
  (0, (b"<!doc", b"<!DOC", b"<html", b"<HTML"), "a web page: download the image again"),
  (0, (b"version https://git-lfs",), "a pointer of Git LFS: run git lfs pull"),
)


def _foreign(path: str) -> str:
  """Describes a file that Pillow cannot identify; "" if it is unknown here too."""
  try:
    with open(path, "rb") as file:
      start = file.read(64)
  except OSError:
    return ""
  if not start:
    return "an empty file"
  for offset, beginnings, what in _FOREIGN:
    if start[offset:].startswith(beginnings):
      return what
  return ""
