"""Compiled programs outlive the process; those that a kill cut off are removed.

JAX writes an entry in place. One that is cut off fails to load at every later start,
and is never written again while its file exists.
"""

import os
import pathlib
import re
import zlib

import jax
from absl import logging

from ncl_jax.host import paths

try:
  import zstandard
except ImportError:
  zstandard = None  # then JAX writes and reads zlib

DEFAULT = "~/.cache/ncl_jax/compiled"

_ENTRY = re.compile(r".+-[0-9a-f]{64}-cache")
_ZSTD = b"\x28\xb5\x2f\xfd"
_STAMP = ".ncl_jax_checked"

# The coarsest time stamps of file systems in use.
_GRAIN = 2_000_000_000


def set_up() -> None:
  """Chooses the cache's folder, unless the user did, and removes unreadable entries.

  To be called before anything is compiled. JAX_COMPILATION_CACHE_DIR names another
  folder; empty, it turns the cache off.
  """
  folder = jax.config.values["jax_compilation_cache_dir"]
  if folder is None:
    folder = str(pathlib.Path(DEFAULT).expanduser())
    jax.config.update("jax_compilation_cache_dir", folder)
  # JAX keeps what took a second to compile; the small programs of a start, dozens, cost
  # as much together.
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  if folder and not paths.scheme(folder):
    remove_unreadable(folder)


def remove_unreadable(folder: str | os.PathLike) -> list[str]:
  """Deletes the entries of a cache that cannot be decompressed.

  Only entries written since the last call are read, so that a start stays quick. A
  folder that is missing or cannot be written to is left as it is. Any number of
  processes may call this at once, and go on compiling.

  Args:
    folder: JAX's compilation cache.

  Returns:
    Names of the files deleted.
  """
  path = pathlib.Path(folder)
  stamp = path / _STAMP
  removed: list[str] = []
  try:
    last = _number(stamp)
    # The time now by the clock of the file system, which may be another machine's.
    stamp.touch()
    now = stamp.stat().st_ctime_ns
    # A stamp from the future, after a clock was set back, would hide new entries.
    since = last - _GRAIN if last <= now else 0
    for entry in sorted(path.iterdir()):
      if _ENTRY.fullmatch(entry.name):
        try:
          if _remove_if_unreadable(entry, since):
            removed.append(entry.name)
        except PermissionError:
          now = last  # another user's: whoever may look at it next time, shall
    # Last, and with the time before the first look: whatever is written meanwhile is
    # looked at next time. Cut off, it is a smaller number, and more is looked at.
    stamp.write_text(str(now))
  except OSError:
    pass  # missing, read-only: JAX itself does without, too
  if removed:
    logging.info(
      "%d compiled programs in %s were cut off and are removed", len(removed), path
    )
  return removed


def _number(stamp: pathlib.Path) -> int:
  try:
    return int(stamp.read_bytes())
  except (FileNotFoundError, ValueError):
    return 0


def _remove_if_unreadable(entry: pathlib.Path, since: int) -> bool:
  """Whether `entry` was deleted; one that vanishes meanwhile is another process's."""
  try:
    before = entry.stat()
    # The change time, as that of modification is old in a file that was copied.
    if before.st_ctime_ns < since or _is_readable(entry.read_bytes()):
      return False
    after = entry.stat()
    if (before.st_ino, before.st_mtime_ns) != (after.st_ino, after.st_mtime_ns):
      return False  # being written now, hence newer than the stamp will be
    # Should a living process be half-way, it writes on into the deleted file: its
    # entry is lost, and compiled once more by the next start.
    entry.unlink()
    entry.with_name(entry.name.removesuffix("-cache") + "-atime").unlink(True)
  except FileNotFoundError:
    return False
  return True


def _is_readable(data: bytes) -> bool:
  if data.startswith(_ZSTD):
    if zstandard is None:
      return True  # of another environment; this one never reads it
    try:
      zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError:
      return False
    return True
  try:
    zlib.decompress(data)
  except zlib.error:
    return False
  return True
