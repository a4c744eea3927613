"""Source `idx:FOLDER`: the four files of MNIST, Fashion-MNIST and similar sets."""

import gzip
import math
import pathlib
import zlib

import numpy as np

from ncl_jax.data import labels as labels_lib
from ncl_jax.data.decode import square
from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError

FASHION = (
  *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
  *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
PREFIXES = {"train": "train", "test": "t10k"}


def load(folder: pathlib.Path, image_size: int = 0) -> Source:
  """Reads `train-images-idx3-ubyte`, `train-labels-idx1-ubyte` and the same of t10k.

  The files may be gzipped, and their names may end in .gz and have a dot before "idx".
  The classes get Fashion-MNIST's names if the path contains "fashion", else numbers. An
  `image_size` of 0 leaves images unchanged.
  """
  if folder.is_file():
    raise InputError(f"idx:{folder} is a file; allowed: the folder of the four files")
  if not folder.is_dir():
    raise InputError(f"no folder {folder}")
  pixels, labels = {}, {}
  for split, prefix in PREFIXES.items():
    images_file = _find(folder, f"{prefix}-images", "idx3-ubyte")
    labels_file = _find(folder, f"{prefix}-labels", "idx1-ubyte")
    pixels[split], labels[split] = read(images_file, 3), read(labels_file, 1)
    if len(pixels[split]) != len(labels[split]):
      raise InputError(
        f"{len(pixels[split])} images in {images_file} but {len(labels[split])} labels"
        f" in {labels_file}"
      )
  numbers, names = labels_lib.numbered(labels, f"{folder}")
  splits = {
    split: Split(square(images[..., None], image_size), numbers[split])
    for split, images in pixels.items()
  }
  if "fashion" in str(folder).lower() and len(names) <= len(FASHION):
    names = FASHION
  return Source(f"idx:{folder}", splits, names)


def _find(folder: pathlib.Path, stem: str, kind: str) -> pathlib.Path:
  names = [f"{stem}{dot}{kind}{end}" for dot in "-." for end in ("", ".gz")]
  for name in names:
    if (folder / name).is_file():
      return folder / name
  raise InputError(f"{folder} has none of the files {', '.join(names)}")


def read(path: pathlib.Path, ndim: int) -> np.ndarray:
  """Reads an IDX file of unsigned bytes with `ndim` axes, gzipped or not.

  Layout: bytes 0, 0, 8 (unsigned byte), number of axes; the sizes as big-endian 32-bit
  integers; the values, last axis fastest.

  Reference: the MNIST database, http://yann.lecun.com/exdb/mnist.
  """
  data = path.read_bytes()
  if data.startswith(b"\x1f\x8b"):
    try:
      data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
      raise InputError(f"{path} is a damaged gzip file: {error}") from error
  magic = bytes([0, 0, 8, ndim])
  header = 4 + 4 * ndim
  if data[:4] != magic or len(data) < header:
    raise InputError(
      f"{path} begins with the bytes {data[:4].hex(' ') or '(none)'}; allowed:"
      f" {magic.hex(' ')}, an IDX file of unsigned bytes with {ndim} axes"
    )
  shape = tuple(int(n) for n in np.frombuffer(data, ">u4", ndim, 4))
  if len(data) - header != math.prod(shape):
    raise InputError(
      f"{path} announces {' x '.join(map(str, shape))} = {math.prod(shape)} bytes but"
      f" holds {len(data) - header}"
    )
  return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
