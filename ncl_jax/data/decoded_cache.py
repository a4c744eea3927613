"""Decodes images once into files that epochs, restarts, seeds and methods share.

An entry is NAME-SIDEpx-DIGEST.npy, which is mapped into memory. The digest covers what
the pixels depend on: names, sizes and times of change of the files, the size of the
images, the versions of the decoder, Pillow and its codecs. An entry that is being
written ends in .partial. One process writes it and others wait; after a kill, the next
one continues.

Tables, such as labels that are spread over all records, are kept in the same way.
"""

import contextlib
import dataclasses
import hashlib
import io
import math
import os
import pathlib
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np
from absl import logging

from ncl_jax.data import decode, threads
from ncl_jax.data.prefetch import prefetch
from ncl_jax.data.source import Images, Source
from ncl_jax.errors import InputError, naming
from ncl_jax.host import locks, npz

KEY = "data.decoded_cache"

# Written and synchronised at a time; the last block is decoded again after a kill.
BLOCK_BYTES = 64 << 20

# Images of an entry that are compared with their files when it is opened.
COMPARED = 16

_SECONDS_BETWEEN_LINES = 15.0  # of the log


@runtime_checkable
class Stored(Images, Protocol):
  """Images that are decoded from files on demand."""

  def identity(self) -> Iterable[bytes]:
    """What the pixels depend on, besides the shape and the decoder."""


@dataclasses.dataclass(frozen=True, eq=False)
class Decoded(Images):
  """The images of an entry, uint8 [N, H, W, C], mapped into memory."""

  pixels: np.ndarray

  @property
  def shape(self) -> tuple[int, ...]:
    """(N, H, W, C)."""
    return self.pixels.shape

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    return threads.take(self.pixels, rows)


def cached(source: Source, folder: pathlib.Path) -> Source:
  """The source with its image files decoded once, into entries in `folder`.

  Images that are in memory stay there. The batches are the same, bit for bit.

  Raises:
    InputError: if the folder's disk lacks the space, before anything is decoded; for an
      image that cannot be decoded; or for an entry that does not hold its files'
      pixels.
  """
  found = entries(source, folder)
  check_space(folder, found)
  splits = dict(source.splits)
  for name, entry in found.items():
    images = entry.open(f"{name} images of {source.name}")
    splits[name] = dataclasses.replace(splits[name], images=images)
  return dataclasses.replace(source, splits=splits)


def entries(source: Source, folder: pathlib.Path) -> dict[str, "Entry"]:
  """Split name -> its entry, of the splits that are decoded on demand."""
  found: dict[str, Entry] = {}
  for name, split in source.splits.items():
    images = split.images
    if isinstance(images, Stored):
      digest = _digest([f"{images.shape}".encode(), *images.identity()])
      title = f"{_plain(source.title)}-{images.shape[1]}px-{digest}.npy"
      found[name] = Entry(folder / title, images)
  return found


def check_space(folder: pathlib.Path, found: dict[str, "Entry"]) -> tuple[int, int]:
  """(bytes still to be written, bytes free); InputError if the disk lacks the space."""
  free = shutil.disk_usage(_existing(folder)).free
  missing = {entry.file: entry.missing() for entry in found.values()}
  needed = sum(missing.values())
  if needed > free:
    others = ", ".join(
      f"{path.name} ({path.stat().st_size / 2**30:,.1f} GiB)"
      for path in sorted(folder.glob("*px-*"))
      if path.suffix in (".npy", ".partial") and path.with_suffix(".npy") not in missing
    )
    raise InputError(
      f"{KEY} is {folder}: the decoded images take {needed / 2**30:,.2f} GiB more, and "
      f"{free / 2**30:,.2f} GiB are free there. Free some space, name another folder, "
      "lower data.image_size, or leave the setting empty to decode images whenever they"
      f" are used. Other entries there: {others or 'none'}."
    )
  return needed, free


def table(
  folder: pathlib.Path | None,
  name: str,
  identity: Iterable[bytes],
  make: Callable[[], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
  """Arrays that are computed once and kept in `folder`.

  Args:
    folder: created if necessary; None = they are computed now.
    identity: what the arrays depend on, besides the decoder.
    make: computes them; no Python objects.
  """
  if folder is None:
    return make()
  file = folder / f"{_plain(name)}-{_digest(identity)}.npz"
  if not file.exists():
    with _alone(file, lambda: f"reading {name}"):
      if not file.exists():
        arrays = make()
        draft = file.with_suffix(".partial")
        with naming(draft), draft.open("wb") as opened:
          np.savez(opened, **arrays)  # type: ignore[arg-type]
          opened.flush()
          os.fsync(opened.fileno())
        draft.replace(file)
  return npz.read(file)


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
  """Where the images of a split are, or will be."""

  file: pathlib.Path
  images: Stored

  @property
  def partial(self) -> pathlib.Path:
    return self.file.with_suffix(".partial")

  @property
  def header(self) -> bytes:
    """Of a numpy file."""
    header = io.BytesIO()
    shape = tuple(map(int, self.images.shape))
    described = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()

  @property
  def row(self) -> int:
    """Bytes of an image."""
    return math.prod(self.images.shape[1:])

  @property
  def block(self) -> int:
    """Images that are written at a time."""
    return max(1, BLOCK_BYTES // self.row)

  def done(self) -> int:
    """Images that were written and will not be decoded again."""
    try:
      written = self.partial.stat().st_size - len(self.header)
    except FileNotFoundError:
      return 0
    # After a power failure the last block may hold zeros.
    return max(0, (written // self.row - 1) // self.block * self.block)

  def missing(self) -> int:
    """Bytes that are still to be written."""
    if self.file.exists():
      return 0
    return (len(self.images) - self.done()) * self.row

  def open(self, what: str) -> Decoded:
    """Opens the entry, and makes it first if necessary; `what` is for messages."""
    if not self.file.exists():
      with _alone(self.file, lambda: self._state(what)):
        if not self.file.exists():
          try:
            self._write(what)
          except InputError:
            # The files without the bad one make another entry: this one is of no use.
            self.partial.unlink(missing_ok=True)
            raise
    damaged = InputError(
      f"{self.file} does not hold the pixels of the {what}: it is damaged, or a file "
      "was replaced by another of its size and time. Delete it and run the same "
      "command again"
    )
    try:
      found = Decoded(np.asarray(np.load(self.file, mmap_mode="r")))
    except (ValueError, EOFError) as error:  # too short
      raise damaged from error
    rows = np.array(decode.spread(len(found), COMPARED), np.int64)
    if not np.array_equal(found[rows], self.images[rows]):
      raise damaged
    return found

  def _state(self, what: str) -> str:
    return f"decoding {self.done():,} of {len(self.images):,} {what}"

  def _write(self, what: str) -> None:
    done, count = self.done(), len(self.images)
    logging.info(
      "%s: decoding %d of %d %s once, into %s: %.2f GiB",
      *(KEY, count - done, count, what, self.file, self.missing() / 2**30),
    )

    def block(start: int) -> np.ndarray:
      return self.images[np.arange(start, min(start + self.block, count))]

    self.partial.touch()
    with naming(self.partial), self.partial.open("r+b") as opened:
      # The file only grows, in order, so that two writers, on a file system without
      # locks, write the same bytes to the same places.
      opened.write(self.header)
      opened.seek(done * self.row, os.SEEK_CUR)
      for pixels in prefetch(block, range(done, count, self.block)):
        opened.write(pixels.data)
        opened.flush()
        os.fsync(opened.fileno())
        logging.log_every_n_seconds(
          logging.INFO, "%s", _SECONDS_BETWEEN_LINES, self._state(what)
        )
    with contextlib.suppress(FileNotFoundError):  # the other writer was first
      self.partial.replace(self.file)


def _digest(parts: Iterable[bytes]) -> str:
  state = hashlib.sha256(decode.version().encode())
  for part in parts:
    # With the length of each, so that they cannot run together.
    state.update(len(part).to_bytes(8, "big") + part)
  return state.hexdigest()[:16]


def _plain(name: str) -> str:
  """A name that file systems take."""
  return re.sub(r"[^A-Za-z0-9_.]+", "_", name).strip("_.")[:64] or "images"


def _existing(folder: pathlib.Path) -> pathlib.Path:
  """The folder, or the folder that exists above it."""
  while not folder.exists():
    folder = folder.parent
  if not folder.is_dir():
    raise InputError(f"{KEY} is in {folder}, which is a file; allowed is a folder")
  return folder


@contextlib.contextmanager
def _alone(file: pathlib.Path, state: Callable[[], str]) -> Iterator[None]:
  """Makes the folder of an entry and waits while another process writes the entry."""
  _existing(file.parent)
  file.parent.mkdir(parents=True, exist_ok=True)

  def busy(owner: str) -> None:
    logging.log_every_n_seconds(
      logging.INFO,
      "%s: waiting for %s, which is %s",
      _SECONDS_BETWEEN_LINES,
      *(KEY, owner, state()),
    )

  with locks.held(file.with_name(f".{file.stem}.lock"), busy):
    yield
