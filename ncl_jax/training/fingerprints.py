"""Cache keys: what a result was computed from, as short texts that tell inputs apart.

Every cache of results takes its keys from here, so that none leaves out an input: the
data, the weights and settings, and the code. Paths are no part of a key: data that were
moved are the same data. `data` and `network` return 16 hexadecimal digits.

A split is told from another by its shape, dtype, labels, levels, captions, partners and
pixels. Arrays of up to `WHOLE_BYTES` are hashed whole. Of larger ones, and of images
that are decoded when asked for, `SAMPLED` evenly spread images are hashed. Image files
are not decoded: the names and sizes of up to `LISTED` files are hashed, and the bytes
of `SAMPLED`. A change of a large set is therefore missed if it keeps the number of
images, the labels, and each file's name and size, and touches no sampled image.
"""

import functools
import hashlib
import os
import pathlib
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

import ncl_jax
from ncl_jax import config as config_lib
from ncl_jax.data import decode
from ncl_jax.data.source import Source, Split
from ncl_jax.host import paths
from ncl_jax.runtime import tensors

WHOLE_BYTES = 2 << 30
SAMPLED = 256
LISTED = 200_000
_BLOCK = 4096  # images hashed at a time

# Hashing takes seconds for gigabytes: once a process for each split.
_splits: "weakref.WeakKeyDictionary[Split, dict[str, Any]]" = (
  weakref.WeakKeyDictionary()
)


def split(part: Split) -> dict[str, Any]:
  """What tells a split from another; its arrays must not change afterwards.

  Returns:
    "shape" (list of int), "dtype", "label_dtype", and digests: "labels", "pixels",
    "levels" (name -> digest), "captions" and "partners" ("" where there are none).
  """
  if part not in _splits:
    captions = () if part.captions is None else (f"{len(x)} {x}" for x in part.captions)
    _splits[part] = {
      "shape": list(part.images.shape),
      "dtype": str(getattr(part.images, "dtype", np.dtype(np.uint8))),
      "labels": _array(part.labels),
      "label_dtype": str(part.labels.dtype),
      "levels": {name: _array(part.levels[name]) for name in sorted(part.levels)},
      "pixels": _pixels(part),
      "captions": "" if part.captions is None else _digest(captions),
      "partners": _partners(part),
    }
  return _splits[part]


def data(source: Source, *names: str) -> str:
  """Digest of the splits of a data set that a result reads; without names, of all."""
  parts = {name: split(source.split(name)) for name in names or sorted(source.splits)}
  names_of = {key: list(value) for key, value in source.level_names.items()}
  whole = [parts, list(source.class_names), names_of, source.texts, source.divided]
  return _digest([repr(whole)])[:16]


def training_set(source: Source) -> dict[str, Any]:
  """What tells one training set from another, for data.json.

  Returns:
    The shape of the images, their number, the classes in the order of their numbers,
    and digests of labels, names of the files, pixels, captions and partners.
  """
  seen = split(source.split("train"))
  return {
    "image_shape": list(source.image_shape),
    "training_images": source.num_examples("train"),
    "classes": list(source.class_names),
    "labels": seen["labels"],
    "names": source.names,
    "pixels": seen["pixels"],
    "captions": seen["captions"],
    "partners": seen["partners"],
  }


def network(config: ConfigDict, variables: Any) -> str:
  """Digest of a run's settings, but for the place of its data, and of its weights."""
  config = config.copy_and_resolve_references()
  with config.unlocked():
    config.data.source = config.data.decoded_cache = ""
  return tensors.digest({config_lib.to_json(config): variables})[:16]


@functools.cache
def versions() -> dict[str, str]:
  """The part of a key that says by which code a result was made.

  Of this package all code that a result can depend on counts, as it was when this
  process first asked: reports, commands and plans are made from results.
  """
  root = pathlib.Path(ncl_jax.__file__).parent
  told: list[str | bytes] = []
  for path in sorted(root.rglob("*.py")):
    name = path.relative_to(root)
    if name.parts[0] not in ("report", "cli", "preflight"):
      told += [name.as_posix(), path.read_bytes()]
  return {
    "ncl_jax": ncl_jax.__version__,
    "jax": jax.__version__,
    "code": _digest(told)[:16],
  }


def stamp(spec: str) -> tuple[tuple[str, int, int], ...]:
  """Tells whether a data set that was loaded may have changed on disk since.

  Of a folder, itself and the folders two levels below count: files that come and go are
  seen, and one that is overwritten is not. Empty for what is no file.
  """
  _, _, place = spec.partition(":")
  if not place or paths.scheme(place) or not (path := paths.local(place)).exists():
    return ()
  folders = (e for level in ("*", "*/*") for e in path.glob(level) if e.is_dir())
  stats = [(entry, entry.stat()) for entry in [path, *sorted(folders)]]
  return tuple((str(entry), stat.st_size, stat.st_mtime_ns) for entry, stat in stats)


def _pixels(part: Split) -> str:
  images, count = part.images, len(part)
  # The same whether they are decoded when used or were decoded once.
  files = images if isinstance(images, decode.Files) else part.files
  if files is not None and not isinstance(images, np.ndarray):
    return _of_files(files.paths)
  if isinstance(images, np.ndarray) and images.nbytes <= WHOLE_BYTES:
    blocks = (images[i : i + _BLOCK] for i in range(0, count, _BLOCK))
  else:
    rows = np.array(decode.spread(count, SAMPLED), np.int64)
    blocks = (images[part] for part in np.array_split(rows, -(-len(rows) // 32)))
  return _digest(blocks)


def _of_files(paths: Sequence[str]) -> str:
  """Of image files, wherever their folder lies."""
  above = os.path.commonprefix(list(paths)).rfind(os.sep) + 1
  chosen = [paths[i] for i in decode.spread(len(paths), LISTED)]
  read = [paths[i] for i in decode.spread(len(paths), SAMPLED)]

  def told() -> Iterator[str | bytes]:
    # A broken link is reported when it is decoded.
    for path in chosen:
      size = os.path.getsize(path) if os.path.exists(path) else -1
      yield os.fsencode(path[above:].replace(os.sep, "/")) + f" {size}".encode()
    for path in read:
      try:
        yield pathlib.Path(path).read_bytes()
      except OSError:
        yield "unreadable"

  return _digest(told())


def _partners(part: Split) -> str:
  if part.partners is None:
    return ""
  rows = np.arange(len(part))
  if not isinstance(part.images, np.ndarray) or part.images.nbytes > WHOLE_BYTES:
    rows = np.array(decode.spread(len(part), SAMPLED), np.int64)
  blocks = (rows[i : i + _BLOCK] for i in range(0, len(rows), _BLOCK))
  return _digest(part.partners(block, np.random.default_rng(0)) for block in blocks)


def _array(values: np.ndarray) -> str:
  return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


def _digest(parts: Iterable[str | bytes | np.ndarray]) -> str:
  """SHA-256 of parts; the length of each counts, so that they cannot run together."""
  state = hashlib.sha256()
  for part in parts:
    if isinstance(part, np.ndarray):
      data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    else:
      text = part.encode(errors="surrogatepass") if isinstance(part, str) else part
      data = memoryview(text)
    state.update(data.nbytes.to_bytes(8, "big"))
    state.update(data)
  return state.hexdigest()
