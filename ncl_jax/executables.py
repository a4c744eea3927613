"""Executables of earlier starts, found without tracing them again.

JAX's own cache (see `compile_cache`) is asked with a program that has been traced and
lowered, which takes Python longer than loading the answer takes. Here a program is
found in two steps. By its text, as there: what was compiled from the same text, for the
same machine, is the same program. And, without having the text, by what it was made
from: settings, shapes, devices, and each file of code in the process, by place, date
and size. A file that is another or has changed, were it by its date alone, and the text
is made anew.

What code is replaced by while it runs cannot be seen so: see `set_up`.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import pathlib
import pickle
import platform
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from absl import logging
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from ncl_jax import sharding, speed

# Files kept, the latest used: programs, half a MiB a ResNet's, and what they were made
# from.
KEPT = 256

_folder: pathlib.Path | None = None
# Seconds since the process began, or where the system does not tell, surely more.
_AGE = speed.since_process_began()
_BEGAN = time.time() - (60 if math.isnan(_AGE) else _AGE)


def set_up() -> None:
  """Turns this on, in JAX's cache's folder; after `compile_cache.set_up`.

  For programs whose code is that of their files. Where functions are replaced while
  they run, as in a notebook, a program from before could come back.
  """
  global _folder
  cache = jax.config.values["jax_compilation_cache_dir"]
  if cache and "://" not in cache:
    _folder = pathlib.Path(cache) / "executables"


def compiled(
  name: str,
  function: Any,
  arguments: tuple[Any, ...],
  about: Mapping[str, Any],
  mesh: Mesh,
  *,
  options: dict[str, Any] | None = None,
  traced: Callable[[], None] = lambda: None,
) -> jax.stages.Compiled:
  """A jitted function, compiled; by an earlier start if that can be.

  Args:
    name: of the program, for its files.
    function: from `jax.jit`.
    arguments: what it will be called with, or their shapes.
    about: everything that it was made from, but for the code: what `repr` tells of it.
    mesh: its devices.
    options: of the compiler.
    traced: called when it has been traced, or seems to need no tracing.

  Returns:
    The program, to be called with arguments of the same shapes.
  """
  # Several processes must all compile or all not, and only on CPU has it been seen
  # that a program comes back as it was.
  alone = jax.process_count() == 1 and sharding.platform(mesh) == "cpu"
  if _folder is None or not alone:
    trace = function.trace(*arguments)
    traced()
    return trace.lower().compile(options)
  machine = [options, *_machine(mesh)]
  leaves, tree = jax.tree.flatten(arguments)
  shapes = [(x.shape, x.dtype, getattr(x, "weak_type", None)) for x in leaves]
  code = _code()
  files = sorted(code or ())
  made_from = machine, sorted(about.items()), tree, shapes, sys.path, files
  source = _folder / f"{name}-{_digest(made_from)}.json"
  path = None if code is None else _unchanged(source)
  if path:
    traced()
    found = _read(path, mesh)
    if found is not None:
      logging.info("the program %r is that of an earlier start", name)
      _use(source, path)
      return found
  trace = function.trace(*arguments)
  traced()
  lowered = trace.lower()
  trees = lowered.in_tree, lowered.out_tree
  path = _folder / f"{name}-{_digest((machine, trees, lowered.as_text()))}"
  found = _read(path, mesh)
  if found is None:
    # What JAX's cache has loaded could not be stored again: it would lack parts.
    with _without_jax_cache():
      found = lowered.compile(options)
    _write(path, functools.partial(_packed, found))
  now = _imported()
  if code is not None and now is not None and code <= now:
    known = json.dumps({"program": path.name, "files": sorted(now - code)})
    _write(source, known.encode)
  return found


def _digest(what: Any) -> str:
  return hashlib.sha256(repr(what).encode()).hexdigest()


def _machine(mesh: Mesh) -> list[Any]:
  """What a program's text does not tell."""
  try:
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    instructions = next(x for x in lines if x.startswith(("flags", "Features")))
  except (OSError, StopIteration):
    instructions = f"{platform.node()} {platform.processor()}"
  return [
    [(d.id, d.device_kind) for d in mesh.devices.flat],
    instructions,
    sys.version,
    jax.__version__,
    jax.lib.__version__,
    sorted(jax.config.values.items(), key=lambda item: item[0]),
    os.environ.get("XLA_FLAGS"),
  ]


# A file's place, the times of its content and of any change to it, and its size.
Stamp = tuple[str, int, int, int]


@functools.cache
def _code() -> frozenset[Stamp] | None:
  """`_imported` of the first call: what is imported later depends on what is found."""
  return _imported()


def _imported() -> frozenset[Stamp] | None:
  """All files of code in this process, as they were when they were imported.

  None if there is one that cannot be looked at, or has changed since the process began.
  """
  modules = [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]
  names = [module.get("__file__") for module in modules]
  found = [_stamp(os.path.abspath(name)) for name in names if isinstance(name, str)]
  stamps = [stamp for stamp in found if stamp and max(stamp[1:3]) < _BEGAN * 1e9]
  return frozenset(stamps) if len(stamps) == len(found) else None


def _stamp(file: str) -> Stamp | None:
  try:
    found = os.stat(file)
  except (OSError, ValueError):
    return None
  return file, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def _unchanged(source: pathlib.Path) -> pathlib.Path | None:
  """The program that was made from this, if all of its code is still the same."""
  try:
    known = json.loads(source.read_text())
    if all(_stamp(stamp[0]) == tuple(stamp) for stamp in known["files"]):
      return source.with_name(known["program"])
  except Exception:  # noqa: BLE001 - unknown, or whatever has become of the file
    pass
  return None


def _read(path: pathlib.Path, mesh: Mesh) -> jax.stages.Compiled | None:
  devices = list(mesh.devices.flat)
  try:
    program, inputs, outputs = pickle.loads(zlib.decompress(path.read_bytes()))
    return serialize_executable.deserialize_and_load(
      program, inputs, outputs, devices[0].client, devices
    )
  except FileNotFoundError:
    return None
  except Exception as error:  # noqa: BLE001 - whatever has become of the file
    logging.info("%s is of no use, it is made anew: %r", path, error)
    return None


def _packed(program: jax.stages.Compiled) -> bytes:
  return zlib.compress(pickle.dumps(serialize_executable.serialize(program)), 1)


def _write(path: pathlib.Path, content: Callable[[], bytes]) -> None:
  """Writes a file at once: others see the old one or the whole new one."""
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as part:
      try:
        part.write(content())
        part.close()
        os.replace(part.name, path)
      except BaseException:
        os.unlink(part.name)
        raise
  except Exception as error:  # noqa: BLE001
    # It is there to save time: with a callback in the program, or nowhere to write to,
    # it is done without.
    logging.info("%s is not kept: %r", path.name, error)
  with contextlib.suppress(OSError):  # beside another process that makes room, too
    by_age = sorted((p.stat().st_mtime_ns, p) for p in path.parent.iterdir())
    for _, old in by_age[:-KEPT]:
      old.unlink(missing_ok=True)


def _use(*paths: pathlib.Path) -> None:
  """Makes them the latest used."""
  with contextlib.suppress(OSError):
    for path in paths:
      os.utime(path)


@contextlib.contextmanager
def _without_jax_cache() -> Iterator[None]:
  before = jax.config.values["jax_enable_compilation_cache"]
  jax.config.update("jax_enable_compilation_cache", False)
  compilation_cache.reset_cache()  # it had made up its mind
  try:
    yield
  finally:
    jax.config.update("jax_enable_compilation_cache", before)
    compilation_cache.reset_cache()
