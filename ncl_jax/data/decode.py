"""From image files of any kind and size to square uint8 RGB arrays."""

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
from ncl_jax.host import resources

# What Pillow raises on files that are cut short, damaged or no images at all.
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)

# A file of more pixels, as far as they are decoded, is refused: 1.6 GB as RGB.
LARGEST_PIXELS = 1 << 29

# Above this, one picture is decoded at a time: each thread would hold one.
_LARGE_PIXELS = 1 << 26
_one_large = threading.Lock()

# What shows through where an image is transparent: most were made for a white page.
BACKGROUND = (255, 255, 255)

HEIC = "a HEIC picture, which Pillow does not decode: convert it, as by heif-convert"
# Endings of such files.
HEIC_ENDINGS = (".heic", ".heif")

# Files of which the depth is asked.
SAMPLE = 256

# Where no size is given and the files are photographs.
LARGEST_DEFAULT_SIDE = 256


@functools.cache
def extensions() -> frozenset[str]:
  """Endings of the files that Pillow decodes here, such as ".jpg", in small letters.

  Left out are formats that Pillow names but does not decode by itself (PostScript,
  MPEG, HDF5 and the like), and those that this build of Pillow lacks.
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
  """Decodes one file: RGB, upright, the centre square in `size` x `size` pixels.

  A JPEG of twice that size or more is decoded at a half, a quarter or an eighth: the
  rest of its frequencies would be averaged away.

  Args:
    path: any file that Pillow opens, or its bytes; of an animation the first frame is
      read, what is transparent is laid on white (`BACKGROUND`).
    size: side of the result in pixels.
    white: of grey pixels of 16 bits, the value that becomes 255, see `depth`.

  Returns:
    uint8 [size, size, 3].

  Raises:
    One of `UNREADABLE` on a file that is no complete image, has pixels that `depth`
    does not take, or more than `LARGEST_PIXELS`, as far as they are decoded.
  """
  with _opened(path) as image:
    large = image.width * image.height > LARGEST_PIXELS
    if image.format == "JPEG" and (image.mode == "RGB" or large):
      # One side may be much longer: the shorter is not to fall below `size`.
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
    # Pillow's limit, a third of ours, knows nothing of reduced decoding.
    with _one_large, _no_limit():
      return Image.open(path)


@contextlib.contextmanager
def _no_limit() -> Iterator[None]:
  """No limit of Pillow's; `read` has its own."""
  limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
  try:
    yield
  finally:
    Image.MAX_IMAGE_PIXELS = limit


def _rgb(image: Image.Image, white: int, path: str | io.BytesIO) -> Image.Image:
  if _is_wide(image):
    # Pillow's own conversion clips 16-bit values at 255: all white.
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
  """Whether its pixels are no bytes: of 16 or 32 bits, or floating-point."""
  return image.mode.startswith(("I", "F"))


def white(paths: Sequence[str], name: str) -> int:
  """The value that becomes 255 in the 16-bit images of a data set, see `depth.white`.

  Args:
    paths: of the files, of which up to `SAMPLE` are looked at.
    name: of the set, for the messages.
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
      return None  # told when it is met

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

  Args:
    images: uint8 [N, H, W, C].
    size: side of the result in pixels; 0 = leave the images as they are.

  Returns:
    uint8 [N, size, size, C].
  """
  if size == 0 or images.shape[1:3] == (size, size):
    return images
  count, _, _, channels = images.shape
  result = np.empty((count, size, size, channels), np.uint8)
  for i, c in np.ndindex(count, channels):
    result[i, :, :, c] = np.asarray(_square(Image.fromarray(images[i, :, :, c]), size))
  return result


def typical_side(shorter_sides: Sequence[int]) -> int:
  """The side to use where none is given: the median one, at most 256 pixels."""
  return min(LARGEST_DEFAULT_SIDE, round(float(np.median(shorter_sides))))


def spread(count: int, most: int = 64) -> list[int]:
  """Up to `most` positions, evenly spread over `range(count)`."""
  return np.linspace(0, count - 1, min(count, most)).astype(int).tolist()


def file_side(paths: Sequence[str]) -> int:
  """`typical_side` of image files, from the headers of a few."""
  sides = []
  for i in spread(len(paths)):
    try:
      with _opened(paths[i]) as image:
        sides.append(min(image.size))
    except UNREADABLE:
      continue
  if not sides:
    raise InputError(f"cannot read {paths[0]}, nor others beside it: no images?")
  return typical_side(sides)


@dataclasses.dataclass(frozen=True, eq=False)
class Files:
  """Image files, decoded by several threads when asked for.

  Attributes:
    paths: of the N files.
    size: side of the decoded images in pixels.
    white: see `read`.
    root: the folder that all of them are in.
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
  """Images decoded by several threads, each into its place: no second copy is made.

  Args:
    read_row: from a position to an image, uint8 of `shape`.
    rows: positions [n].
    shape: (H, W, C).

  Returns:
    uint8 [n, H, W, C].
  """
  images = np.empty((len(rows), *shape), np.uint8)

  def one(i: int) -> None:
    images[i] = read_row(int(rows[i]))

  for _ in _pool().map(one, range(len(rows))):
    pass
  return images


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
  """Threads for the life of the process; starting them for each batch takes time."""
  return concurrent.futures.ThreadPoolExecutor(_threads(), "decode")


def _threads() -> int:
  """A few more than cores, as some wait for the disk."""
  return min(32, resources.cores() + 4)


def unreadable(paths: Sequence[str]) -> dict[str, str]:
  """Decodes all files and gives those that fail, each with the reason."""

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
    # In blocks, because every waiting file costs memory.
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


# What is often found under the name of an image: how it begins, from which byte, what
# it is.
_FOREIGN = (
  (4, (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypheim", b"ftypmif1"), HEIC),
  (4, (b"ftypavif", b"ftypavis"), "an AVIF picture, which this Pillow does not decode"),
  (0, (b"\xff\x0a", b"\0\0\0\x0cJXL "), "a JPEG XL picture: convert it to JPEG or PNG"),
  (0, (b"%PDF",), "a PDF document: convert its pages to PNG"),
  (0, (b"<svg", b"<?xml"), "an SVG drawing: convert it to PNG"),
  (0, (b"<!doc", b"<!DOC", b"<html", b"<HTML"), "a web page: download the image again"),
  (0, (b"version https://git-lfs",), "a pointer of Git LFS: run git lfs pull"),
)


def _foreign(path: str) -> str:
  """What a file is that Pillow does not know; "" if that is not known here either."""
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
