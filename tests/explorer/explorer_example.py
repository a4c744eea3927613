"""Small explorations: four classes with awkward names, CL dense and NCL sparse."""

import numpy as np

from ncl_jax.report.explorer import Exploration, Side

NAMES = ("\"quoted\" 'shoe'", "<script>alert(1)</script>", "שלום עולם", "猫 & dog")
TITLE = '<Shoes> & "shirts" שלום'
DEAD = 5  # dimension of NCL
EMPTY = 7  # image without a code in NCL


def codes(n: int = 40, width: int = 12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Labels, a dense rotation and the sparse codes that it rotates; rows unit or 0."""
  rng = np.random.default_rng(0)
  labels = (np.arange(n) % 4).astype(np.int32)
  sparse = np.where(rng.uniform(size=(n, width)) < 0.2, rng.uniform(size=(n, width)), 0)
  sparse[np.arange(n), labels] += 1 + rng.uniform(size=n)
  sparse[:, DEAD] = 0
  sparse /= np.linalg.norm(sparse, axis=1, keepdims=True)
  rotation, _ = np.linalg.qr(rng.normal(size=(width, width)))
  dense = sparse @ rotation
  sparse[EMPTY] = 0
  return labels, dense.astype(np.float32), sparse.astype(np.float32)


def images(n: int = 40, size: int = 12, channels: int = 1) -> np.ndarray:
  """A bright square at a place and of a grey of the image's own."""
  out = np.full((n, size, size, channels), 20, np.uint8)
  for i, image in enumerate(out):
    x, y = i % 8, i // 8 % 8
    image[y : y + 4, x : x + 4] = 255 - i % 200
  return out


def make(**changes) -> Exploration:
  """The exploration; fields may be replaced."""
  labels, dense, sparse = codes()
  rng = np.random.default_rng(1)
  fields = {
    "title": TITLE,
    "images": images(),
    "labels": labels,
    "class_names": NAMES,
    "sides": (Side("CL", dense), Side("NCL", sparse, rng.normal(size=12))),
  }
  return Exploration(**fields | changes)


def transformers() -> Exploration:
  """The same of a transformer with two heads, which sees three quarters of an image.

  The first looks at the patch whose number is the image's, modulo 9, and half as much
  at all others; the second at all alike.
  """
  _, _, sparse = codes()
  maps = np.ones((40, 2, 9))
  maps[:, 0] = 0.5
  maps[np.arange(40), 0, np.arange(40) % 9] = 1
  maps = maps.reshape(40, 2, 3, 3)
  return make(sides=(Side("NCL", sparse, attention=maps, seen=0.75),))


WORDS = ("</script>", "shoe", "נעל", "<b>")


def two_towers(**changes) -> Exploration:
  """The same with texts for NCL, and with other images for CL, mirrored."""
  _, dense, sparse = codes()
  captions = np.array([f"{WORDS[i % 4]} {i // 8} & </script>" for i in range(40)])
  words = np.maximum(np.random.default_rng(2).normal(size=(4, 12)), 0)
  words /= np.linalg.norm(words, axis=1, keepdims=True)
  fields = {
    "captions": captions,
    "words": WORDS,
    "partners": images()[:, :, ::-1],
    "sides": (
      Side("CL", dense, partners=dense[::-1]),
      Side(
        "NCL",
        sparse,
        words=words.astype(np.float32),
        captions=np.repeat(sparse[::8], 8, 0)[np.argsort(np.arange(40) % 4)],
      ),
    ),
  }
  return make(**fields | changes)
