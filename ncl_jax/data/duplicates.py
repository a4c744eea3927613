"""Finds image files that are copies of others, because a test set must be new."""

import contextlib
import hashlib
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from ncl_jax.data import threads

# Every file is opened if another has its size, which takes too long for more files.
MOST_FILES = 200_000

_TAIL = 4096


def copies(paths: Sequence[str]) -> list[list[str]]:
  """Groups of two or more files with the same bytes, in the order given.

  Files are compared by size, then by their last bytes; only if both agree are they read
  completely. Files that cannot be read are in no group. More than `MOST_FILES` files
  are not compared. `paths` must be unique.
  """
  if len(paths) > MOST_FILES:
    return []
  groups = [list(paths)]
  for tell in (os.path.getsize, _tail, _digest):
    groups = [part for group in groups for part in _parts(group, tell)]
  return groups


def describe(
  groups: Iterable[Sequence[str]], test: Iterable[str], root: str | os.PathLike
) -> str:
  """A sentence about copies, "" for none; names are relative to the folder `root`."""
  groups, tests = list(groups), set(test)
  if not groups:
    return ""
  extra = sum(len(group) - 1 for group in groups)
  leaks = sum(
    sum(path in tests for path in group)
    for group in groups
    if any(path not in tests for path in group)
  )
  first, second = (os.path.relpath(path, root) for path in groups[0][:2])
  text = f"{extra} files are copies of others, such as {second} of {first}"
  if extra == 1:
    text = f"one file is a copy of another, {second} of {first}"
  if leaks:
    text += f"; {leaks} test images are training images too, which flatters accuracy"
  return text


def _parts(group: list[str], tell: Callable[[str], object]) -> list[list[str]]:
  def told(block: list[str]) -> list[tuple[object, str]]:
    found: list[tuple[object, str]] = []
    for path in block:
      with contextlib.suppress(OSError):
        found.append((tell(path), path))
    return found

  found: dict[object, list[str]] = defaultdict(list)
  # In blocks, because a task takes longer than many of the files.
  blocks = [group[i : i + 64] for i in range(0, len(group), 64)]
  for key, path in itertools.chain.from_iterable(threads.pool().map(told, blocks)):
    found[key].append(path)
  return [part for part in found.values() if len(part) > 1]


def _tail(path: str) -> bytes:
  with open(path, "rb") as file:
    file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
    return file.read()


def _digest(path: str) -> bytes:
  if os.path.getsize(path) <= _TAIL:
    return b""  # that was all of it
  with open(path, "rb") as file:
    return hashlib.file_digest(file, "sha256").digest()
