"""Sprite sheets: all images, small, in few files."""

import dataclasses
import io

import numpy as np
import PIL.Image

from ncl_jax import checks
from ncl_jax.data.source import Images

COLUMNS = 32  # images in a row of a sheet, and rows of a sheet
SIDE = 96  # pixels of the longer side at most
BUDGET = 16 << 20  # bytes of all sheets: with base64 and the codes within 30 MB
_BLOCK = 8  # of JPEG: an image shares none with the next


@dataclasses.dataclass(frozen=True)
class Sprite:
  """Sheets of thumbnails in the order of the images, row by row.

  Attributes:
    width, height: of a thumbnail, in pixels.
    tile: (width, height) that each has on its sheet, at least its own.
    columns, rows: of thumbnails in a sheet, also in the last.
    mime: of the sheets.
  """

  width: int
  height: int
  tile: tuple[int, int]
  columns: int
  rows: int
  mime: str
  sheets: tuple[bytes, ...]


def sprite(images: Images, budget: int = BUDGET) -> Sprite:
  """Makes the sheets in the best form that fits.

  The forms are PNG of at most 96 pixels, and JPEG of 96, 64, 48, 32 and 16; the last is
  taken even if it does not fit.

  Args:
    images: uint8 [N, H, W, C] with C 1 or 3.
    budget: bytes of all sheets.
  """
  count = len(images)
  columns = min(COLUMNS, count)
  rows = min(COLUMNS, -(-count // columns))
  blocks = np.split(np.arange(count), range(columns * rows, count, columns * rows))
  forms = [("png", SIDE), *(("jpeg", side) for side in (SIDE, 64, 48, 32, 16))]
  for kind, side in forms:
    sheets: list[bytes] = []
    for block in blocks:
      pixels = images[block]
      checks.pixels("images", pixels)
      small = _small(pixels, side)
      sheets.append(_encode(_sheet(small, columns, rows), kind))
      # What has been made tells about the rest, so that no form is made in vain.
      large = sum(map(len, sheets)) * len(blocks) > budget * len(sheets)
      if large and (kind, side) != forms[-1]:
        break
    else:
      break
  height, width = small.shape[1:3]
  return Sprite(
    width, height, _tile(small), columns, rows, f"image/{kind}", tuple(sheets)
  )


def _tile(small: np.ndarray) -> tuple[int, int]:
  height, width = (-(-side // _BLOCK) * _BLOCK for side in small.shape[1:3])
  return width, height


def _small(images: np.ndarray, side: int) -> np.ndarray:
  """The images, reduced to at most `side` pixels if they are larger."""
  longest = max(images.shape[1:3])
  if longest <= side:
    return images
  height, width = (max(1, round(x * side / longest)) for x in images.shape[1:3])
  small = [
    np.asarray(_picture(image).resize((width, height), PIL.Image.Resampling.BOX))
    for image in images
  ]
  return np.stack(small).reshape(len(images), height, width, images.shape[3])


def _picture(image: np.ndarray) -> PIL.Image.Image:
  return PIL.Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)


def _sheet(small: np.ndarray, columns: int, rows: int) -> np.ndarray:
  count, height, width, channels = small.shape
  w, h = _tile(small)
  margins = ((0, columns * rows - count), (0, h - height), (0, w - width), (0, 0))
  tiles = np.pad(small, margins, mode="edge")
  tiles = tiles.reshape(rows, columns, h, w, channels).swapaxes(1, 2)
  return np.ascontiguousarray(tiles.reshape(rows * h, columns * w, channels))


def _encode(sheet: np.ndarray, kind: str) -> bytes:
  buffer = io.BytesIO()
  how = {"quality": 80, "subsampling": 0} if kind == "jpeg" else {"compress_level": 6}
  _picture(sheet).save(buffer, kind, **how)
  return buffer.getvalue()
