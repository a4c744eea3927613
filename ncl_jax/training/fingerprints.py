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

import ast
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
def code(*modules: str) -> str:
  """Digest of the source of modules and of all of this package that they import.

  Read once a process: an edit during a run is seen by the next one.

  >>> code("ncl_jax.evaluators.knn") == code("ncl_jax.evaluators.sepin")
  False
  """
  parts = sorted((file.name, file.read_bytes()) for file in sources(*modules))
  return _digest(part for pair in parts for part in pair)[:16]


def sources(*modules: str) -> list[pathlib.Path]:
  """The files of modules and of all of this package that they import, also late."""
  files: list[pathlib.Path] = []
  # Of `a.b` also the package `a`: Python runs it first.
  split = [module.split(".") for module in modules]
  left = [".".join(x[: i + 1]) for x in split for i in range(len(x))]
  while left:
    file = _file(left.pop())
    if file and file not in files:
      files.append(file)
      left += _imports(file)
  return files


def versions(*modules: str) -> dict[str, str]:
  """The part of a key that says by which code a result was made."""
  return {
    "ncl_jax": ncl_jax.__version__,
    "jax": jax.__version__,
    "code": code(*modules),
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


def _file(module: str) -> pathlib.Path | None:
  """The file of a module of this package; None for any other name."""
  parts = module.split(".")
  if parts[0] != ncl_jax.__name__:
    return None
  place = pathlib.Path(ncl_jax.__file__).parent.joinpath(*parts[1:])
  for file in (place / "__init__.py", place.with_suffix(".py")):
    if file.is_file():
      return file
  return None


@functools.cache
def _imports(file: pathlib.Path) -> frozenset[str]:
  """Names that may be modules: of `from a.b import c` a, a.b and a.b.c."""
  names: list[str] = []
  for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      names += [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      names += [f"{node.module}.{alias.name}" for alias in node.names]
  split = [name.split(".") for name in names]
  return frozenset(".".join(x[: i + 1]) for x in split for i in range(len(x)))
