"""Which files this Pillow decodes, and what to do with the others."""

import functools

from PIL import Image, ImageFile
from PIL import features as pillow_features

HEIC = "a HEIC picture, which Pillow does not decode: convert it, as by heif-convert"
_SVG = "an SVG drawing: convert it to PNG"
_PDF = "a PDF document: convert its pages to PNG"
_JXL = "a JPEG XL picture: convert it to JPEG or PNG"
_AVIF = "an AVIF picture, which this Pillow does not decode"
_RAW = "a camera's raw file: convert it to JPEG or TIFF"

# By their endings.
BY_ENDING = {
  **dict.fromkeys((".heic", ".heif"), HEIC),
  **dict.fromkeys((".cr2", ".cr3", ".nef", ".arw", ".dng"), _RAW),
  ".svg": _SVG,
  ".pdf": _PDF,
  ".jxl": _JXL,
  ".avif": _AVIF,
}

# Files that are often named like images: offset, first bytes, and what they are.
_BY_CONTENT = (
  (4, (b"ftypheic", b"ftypheix", b"ftyphevc", b"ftypheim", b"ftypmif1"), HEIC),
  (4, (b"ftypavif", b"ftypavis"), _AVIF),
  (0, (b"\xff\x0a", b"\0\0\0\x0cJXL "), _JXL),
  (0, (b"%PDF",), _PDF),
  (0, (b"<svg", b"<?xml"), _SVG),
  (0, (b"<!doc", b"<!DOC", b"<html", b"<HTML"), "a web page: download the image again"),
  (0, (b"version https://git-lfs",), "a pointer of Git LFS: run git lfs pull"),
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
  for offset, beginnings, what in _BY_CONTENT:
    if start[offset:].startswith(beginnings):
      return what
  return ""
