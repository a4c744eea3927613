"""Which files this Pillow decodes, and what to do with the others."""

import functools
import re

from PIL import Image, ImageFile
from PIL import features as pillow_features

_HEIC = "a HEIC picture, which Pillow does not decode: convert it, as by heif-convert"
_SVG = "an SVG drawing: convert it to PNG"
_PDF = "a PDF document: convert its pages to PNG"
_JXL = "a JPEG XL picture: convert it to JPEG or PNG"
_AVIF = "an AVIF picture, which this Pillow does not decode"
_RAW = "a camera's raw file: convert it to JPEG or TIFF"

# By their endings.
BY_ENDING = {
  **dict.fromkeys((".heic", ".heif"), _HEIC),
  **dict.fromkeys((".cr2", ".cr3", ".nef", ".arw", ".dng"), _RAW),
  ".svg": _SVG,
  ".pdf": _PDF,
  ".jxl": _JXL,
  ".avif": _AVIF,
}

# Files that are often named like images: how they begin, and what they are.
_BY_CONTENT = (
  (rb"....ftyp(hei[cxm]|hevc|mif1)", _HEIC),
  (rb"....ftyp(avif|avis)", _AVIF),
  (rb"\xff\x0a|\0\0\0\x0cJXL ", _JXL),
  (rb"%PDF", _PDF),
  (rb"<svg|<\?xml", _SVG),
  (rb"(?i:<!doc|<html)", "a web page: download the image again"),
  (rb"version https://git-lfs", "a pointer of Git LFS: run git lfs pull"),
)


@functools.cache
def extensions() -> frozenset[str]:
  """Lower-case file endings that this Pillow can decode, such as ".jpg"."""
  Image.init()
  # Pillow names these but cannot decode them by itself.
  lacking = {"EPS", "MPEG", "IPTC"}
  for name, feature in (("AVIF", "avif"), ("WEBP", "webp"), ("JPEG2000", "jpg_2000")):
    if not pillow_features.check(feature):
      lacking.add(name)
  for name, (factory, _) in Image.OPEN.items():
    if isinstance(factory, type) and issubclass(factory, ImageFile.StubImageFile):
      lacking.add(name)
  return frozenset(
    end
    for end, name in Image.registered_extensions().items()
    if name in Image.OPEN.keys() - lacking
  )


def describe(path: str) -> str:
  """Describes a file that Pillow cannot identify; "" if it is unknown here too."""
  try:
    with open(path, "rb") as file:
      start = file.read(64)
  except OSError:
    return ""
  if not start:
    return "an empty file"
  return next((what for how, what in _BY_CONTENT if re.match(how, start, re.S)), "")
