"""Executables of earlier starts, found without tracing them again.

JAX's own cache (see `compile_cache`) is asked with a program that has been traced and
lowered, which takes Python longer than loading the answer takes. Here it is asked for
by what it is made from: settings, shapes, devices, and every file of Python that had
been imported when it was compiled. If one of these has changed, were it a file's date
alone, it is traced and lowered once more; what was compiled from the same text, for the
same devices, is still the program.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import pickle
import platform
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from absl import logging
from jax.experimental import serialize_executable
from jax.sharding import Mesh

from ncl_jax import sharding

# Files kept, of programs and of what they were made from; of the former a ResNet's
# takes half a MiB.
KEPT = 128

_folder: pathlib.Path | None = None


def set_up() -> None:
  """Turns this on, in JAX's cache's folder; after `compile_cache.set_up`.

  For programs whose code is files alone. Where functions are replaced while they run,
  as in a notebook, a program from before would come back.
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
    traced: called when it has been traced, or need not be.

  Returns:
    The program, to be called with arguments of the same shapes.
  """
  folder = _folder_for(mesh)
  if folder is None:
    trace = function.trace(*arguments)
    traced()
    return trace.lower().compile(options)
  leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
  shapes = [(str(path), x.shape, str(x.dtype)) for path, x in leaves]
  machine = [options, *_machine(mesh)]
  source = folder / f"{name}-{_digest(machine, sorted(about.items()), shapes)}.json"
  path = _unchanged(source)
  if path:
    traced()
    found = _read(path, mesh)
    if found:
      logging.info("the program %r is that of an earlier start", name)
      return found
  trace = function.trace(*arguments)
  traced()
  lowered = trace.lower()
  path = folder / f"{name}-{_digest(machine, lowered.as_text())}"
  found = _read(path, mesh)
  if found is None:
    with _answers_of_jax_cache() as answers:
      found = lowered.compile(options)
    # What JAX has loaded cannot be stored again: it would lack parts.
    if answers:
      return found
  _write(path, found, source)
  return found


def _folder_for(mesh: Mesh) -> pathlib.Path | None:
  # Several processes must all compile or all not, and only on CPU has it been seen
  # that a program comes back as it was.
  if jax.process_count() > 1 or sharding.platform(mesh) != "cpu":
    return None
  return _folder


def _digest(*what: Any) -> str:
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


def _unchanged(source: pathlib.Path) -> pathlib.Path | None:
  """The program that was made from this, if the code is still the same."""
  try:
    known = json.loads(source.read_text())
    if all(_stamp(file) == stamp for file, stamp in known["files"].items()):
      return source.with_name(known["program"])
  except (OSError, ValueError, KeyError):
    pass  # unknown, or cut off by a kill
  return None


def _read(path: pathlib.Path, mesh: Mesh) -> jax.stages.Compiled | None:
  devices = list(mesh.devices.flat)
  try:
    stored = pickle.loads(zlib.decompress(path.read_bytes()))
    program, inputs, outputs = stored
    return serialize_executable.deserialize_and_load(
      program, inputs, outputs, devices[0].client, devices
    )
  except OSError:
    return None
  # Cut off by a full disk, or of another machine after all.
  except (zlib.error, jax.errors.JaxRuntimeError) as error:
    logging.info("%s is of no use (%r): compiled anew", path, error)
    path.unlink(missing_ok=True)
    return None


def _write(path: pathlib.Path, program: Any, source: pathlib.Path) -> None:
  """Keeps a program, and what it was made from."""
  files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
  known = {"program": path.name, "files": {f: _stamp(f) for f in files if f}}
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
      stored = pickle.dumps(serialize_executable.serialize(program))
      _replace(path, zlib.compress(stored, 1))
    _replace(source, json.dumps(known).encode())
    by_age = sorted(path.parent.iterdir(), key=lambda p: p.stat().st_mtime)
    for old in by_age[:-KEPT]:
      old.unlink(missing_ok=True)
  # Not every program can be stored, nor every folder written to.
  except (OSError, ValueError, NotImplementedError) as error:
    logging.info("the program %s is not kept: %r", path.name, error)


def _replace(path: pathlib.Path, data: bytes) -> None:
  """Writes a file at once: another process sees the old one or the whole new one."""
  part = path.with_name(f"{path.name}.{os.getpid()}")
  part.write_bytes(data)
  part.replace(path)


def _stamp(file: str) -> list[int] | None:
  try:
    found = os.stat(file)
  except OSError:
    return None
  return [found.st_mtime_ns, found.st_size]


@contextlib.contextmanager
def _answers_of_jax_cache() -> Iterator[list[str]]:
  """Grows when a program is found there."""
  answers: list[str] = []

  def listen(event: str, **_: Any) -> None:
    if event.endswith("/cache_hits"):
      answers.append(event)

  jax.monitoring.register_event_listener(listen)
  try:
    yield answers
  finally:
    jax.monitoring.unregister_event_listener(listen)
