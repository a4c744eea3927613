"""From image files of any kind and size to square uint8 RGB arrays."""

import concurrent.futures
import dataclasses
import functools
import io
from collections.abc import Sequence

import numpy as np
import tqdm
from PIL import Image, ImageOps

from ncl_jax.errors import InputError

EXTENSIONS = frozenset(
  (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
)

# What Pillow raises on files that are cut short, damaged or no images at all.
UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)

# What shows through where an image is transparent: most were made for a white page.
BACKGROUND = (255, 255, 255)

# Where no size is given and the files are photographs.
LARGEST_DEFAULT_SIDE = 256


def read(path: str | io.BytesIO, size: int) -> np.ndarray:
  """Decodes one file: RGB, upright, the centre square in `size` x `size` pixels.

  A JPEG of twice that size or more is decoded at a half, a quarter or an eighth: the
  rest of its frequencies would be averaged away.

  Args:
    path: any file that Pillow opens, or its bytes; of an animation the first frame is
      read, what is transparent is laid on white (`BACKGROUND`), 16 bits become 8.
    size: side of the result in pixels.

  Returns:
    uint8 [size, size, 3].

  Raises:
    One of `UNREADABLE` on a file that is no complete image.
  """
  with Image.open(path) as image:
    if image.format == "JPEG" and image.mode == "RGB":
      # One side may be much longer: the shorter is not to fall below `size`.
      image.draft("RGB", (size, size))
    return np.asarray(_square(_rgb(ImageOps.exif_transpose(image)), size))


def _rgb(image: Image.Image) -> Image.Image:
  if image.mode == "F":
    raise ValueError("floating-point pixels have no defined range")
  if image.mode.startswith("I"):
    # Pillow's own conversion clips 16-bit values at 255: all white.
    wide = np.clip(np.asarray(image), 0, 65535)
    image = Image.fromarray((wide >> 8).astype(np.uint8))
  if image.has_transparency_data:
    image = image.convert("RGBA")
    ground = Image.new("RGBA", image.size, (*BACKGROUND, 255))
    image = Image.alpha_composite(ground, image)
  return image.convert("RGB")


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
      with Image.open(paths[i]) as image:
        sides.append(min(image.size))
    except UNREADABLE:
      continue
  if not sides:
    raise InputError(f"cannot read {paths[0]}, nor others beside it: no images?")
  return typical_side(sides)


@dataclasses.dataclass(frozen=True, eq=False)
class Files:
  """Image files, decoded by several threads when asked for."""

  paths: Sequence[str]
  size: int

  @property
  def shape(self) -> tuple[int, ...]:
    """(N, size, size, 3)."""
    return (len(self.paths), self.size, self.size, 3)

  def __len__(self) -> int:
    return len(self.paths)

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    return in_threads(self._read, rows, self.shape[1:])

  def _read(self, row: int) -> np.ndarray:
    path = self.paths[row]
    try:
      return read(path, self.size)
    except UNREADABLE as error:
      raise InputError(
        f"cannot read the image {path}: {_reason(error)}. Mend or remove the file, or"
        " leave out all such files by --config.data.on_bad_image=skip."
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
  return concurrent.futures.ThreadPoolExecutor(thread_name_prefix="decode")


def unreadable(paths: Sequence[str]) -> dict[str, str]:
  """Decodes all files and gives those that fail, each with the reason."""

  def reason(path: str) -> str:
    try:
      read(path, 1)
    except UNREADABLE as error:
      return _reason(error)
    return ""

  failed = {}
  with (
    concurrent.futures.ThreadPoolExecutor() as pool,
    tqdm.tqdm(total=len(paths), desc="checking", unit="image", disable=None) as bar,
  ):
    # In blocks, because every waiting file costs memory.
    for start in range(0, len(paths), 1024):
      block = paths[start : start + 1024]
      reasons = zip(block, pool.map(reason, block), strict=True)
      failed.update({path: text for path, text in reasons if text})
      bar.update(len(block))
  return failed


def _reason(error: BaseException) -> str:
  if isinstance(error, Image.UnidentifiedImageError):
    return "not an image that Pillow knows"
  return str(error) or type(error).__name__
