"""Decodes images once into files that epochs, restarts, seeds and methods share.

An entry is NAME-SIDEpx-DIGEST.npy, which is mapped into memory. The digest covers what
the pixels depend on: names, sizes and times of change of the files, the size of the
images, the decoder's version, Pillow's and its codecs'. Changed files therefore make a
new entry. An entry that is being written ends in .partial until it is complete. One
process writes it and others wait; after a kill, the next one continues.

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
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

import numpy as np
import tqdm
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
class Decoded:
  """The images of an entry, uint8 [N, H, W, C], mapped into memory."""

  pixels: np.ndarray

  @property
  def shape(self) -> tuple[int, ...]:
    """(N, H, W, C)."""
    return self.pixels.shape

  def __len__(self) -> int:
    return len(self.pixels)

  def __getitem__(self, rows: np.ndarray, /) -> np.ndarray:
    return threads.take(self.pixels, rows)


def cached(source: Source, folder: pathlib.Path) -> Source:
  """The source with its image files decoded once, into entries in `folder`.

  Images that are in memory stay there. The batches are the same, bit for bit.

  Args:
    folder: for the entries; created if necessary.

  Raises:
    InputError: if the folder's disk lacks the space, before anything is decoded; for an
      image that cannot be decoded; or for an entry that does not hold its files'
      pixels.
  """
  entries = _entries(source, folder)
  _check_space(source, folder, entries)
  splits = dict(source.splits)
  for name, entry in entries.items():
    images = entry.open(f"{name} images of {source.name}")
    splits[name] = dataclasses.replace(splits[name], images=images)
  return dataclasses.replace(source, splits=splits)


def check_space(source: Source, folder: pathlib.Path) -> tuple[int, int]:
  """Checks that `cached` has space, and writes nothing.

  Returns:
    (bytes that it will write, bytes that are free).

  Raises:
    InputError: if the disk lacks the space.
  """
  return _check_space(source, folder, _entries(source, folder))


def table(
  folder: pathlib.Path,
  name: str,
  identity: Iterable[bytes],
  make: Callable[[], dict[str, np.ndarray]],
) -> dict[str, np.ndarray]:
  """Arrays that are computed once and kept in `folder`.

  Args:
    folder: created if necessary.
    identity: what the arrays depend on, besides the decoder.
    make: computes them; no Python objects.
  """
  _make(folder)
  file = folder / f"{_plain(name)}-{_digest(identity)}.npz"
  if not file.exists():
    with locks.held(_lock(file), _wait(lambda: f"reading {name}")):
      if not file.exists():
        content = io.BytesIO()
        np.savez(content, **make())  # type: ignore[arg-type]
        draft = file.with_suffix(".partial")
        with naming(draft), draft.open("wb") as opened:
          opened.write(content.getbuffer())
          opened.flush()
          os.fsync(opened.fileno())
        draft.replace(file)
  return npz.read(file)


@dataclasses.dataclass(frozen=True, eq=False)
class _Entry:
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
      _make(self.file.parent)
      with locks.held(_lock(self.file), _wait(lambda: self._state(what))):
        if not self.file.exists():
          self._write(what)
    expected = len(self.header) + len(self.images) * self.row
    if self.file.stat().st_size != expected:
      raise InputError(
        f"{self.file} has {self.file.stat().st_size} bytes, not {expected}: it is "
        "damaged. Delete it and run the same command again"
      )
    found = Decoded(np.asarray(np.load(self.file, mmap_mode="r")))
    rows = np.array(decode.spread(len(found), COMPARED), np.int64)
    if not np.array_equal(found[rows], self.images[rows]):
      raise InputError(
        f"{self.file} does not hold the pixels of the {what}: it is damaged, or a file "
        "was replaced by another of its size and time. Delete it and run the same "
        "command again"
      )
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
    with (
      self._discarded_on_bad_image(),
      naming(self.partial),
      self.partial.open("r+b") as opened,
      # disable=None: no bar without a terminal.
      tqdm.tqdm(
        total=count, initial=done, desc="decoding once", unit="image", disable=None
      ) as bar,
    ):
      # The file only grows, in order, so that two writers, on a file system without
      # locks, write the same bytes to the same places.
      opened.write(self.header)
      opened.seek(done * self.row, os.SEEK_CUR)
      for pixels in prefetch(block, range(done, count, self.block)):
        opened.write(pixels.data)
        opened.flush()
        os.fsync(opened.fileno())
        bar.update(len(pixels))
        logging.log_every_n_seconds(
          logging.INFO, "%s", _SECONDS_BETWEEN_LINES, self._state(what)
        )
    with contextlib.suppress(FileNotFoundError):  # the other writer was first
      self.partial.replace(self.file)

  @contextlib.contextmanager
  def _discarded_on_bad_image(self) -> Iterator[None]:
    """The files without the bad one make another entry: this one is of no use."""
    try:
      yield
    except InputError:
      self.partial.unlink(missing_ok=True)
      raise


def _entries(source: Source, folder: pathlib.Path) -> dict[str, _Entry]:
  """Split name -> its entry, of the splits that are decoded on demand."""
  found: dict[str, _Entry] = {}
  for name, split in source.splits.items():
    images = split.images
    if isinstance(images, Stored):
      digest = _digest([f"{images.shape}".encode(), *images.identity()])
      title = f"{_plain(source.title)}-{images.shape[1]}px-{digest}.npy"
      found[name] = _Entry(folder / title, images)
  return found


def _check_space(
  source: Source, folder: pathlib.Path, entries: dict[str, _Entry]
) -> tuple[int, int]:
  free = shutil.disk_usage(_existing(folder)).free
  missing = {entry.file: entry.missing() for entry in entries.values()}
  needed = sum(missing.values())
  if needed > free:
    others = [
      f"{path.name} ({path.stat().st_size / 2**30:,.1f} GiB)"
      for path in sorted(folder.glob("*-*px-*"))
      if path.suffix in (".npy", ".partial") and path.with_suffix(".npy") not in missing
    ]
    hint = f" Other entries there: {', '.join(others)}." if others else ""
    raise InputError(
      f"{KEY} is {folder}: the decoded images of {source.name} take "
      f"{needed / 2**30:,.2f} GiB more, and {free / 2**30:,.2f} GiB are free there. "
      "Free some space, name another folder, lower data.image_size, or leave the "
      f"setting empty to decode images whenever they are used.{hint}"
    )
  return needed, free


def _wait(state: Callable[[], str]) -> Callable[[str], None]:
  """What is done each second while another process writes an entry."""
  said = -math.inf

  def busy(owner: str) -> None:
    nonlocal said
    if time.monotonic() - said > _SECONDS_BETWEEN_LINES:
      said = time.monotonic()
      logging.info("%s: waiting for %s, which is %s", KEY, owner, state())

  return busy


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


def _make(folder: pathlib.Path) -> None:
  _existing(folder)
  folder.mkdir(parents=True, exist_ok=True)


def _lock(file: pathlib.Path) -> pathlib.Path:
  return file.with_name(f".{file.stem}.lock")
