"""Locks of directories: one process at a time writes there.

Local files are locked by the kernel. In a bucket, an object is the lock. Its holder
renews it, because nothing else would end it when the holder is killed.
"""

import contextlib
import datetime
import os
import pathlib
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from absl import logging

from ncl_jax.errors import InputError, SaveError
from ncl_jax.host import bucket, locks, paths

# A lock in a bucket ends so long after it was last renewed.
LEASE_SECONDS = 60.0
# So many renewals in that time: a live holder is recognised by the next one.
_RENEWALS = 6


@contextlib.contextmanager
def hold(file: pathlib.Path, use: str) -> Iterator[Callable[[], None]]:
  """Locks the directory of a lock file, which names its owner; makes it if necessary.

  The kernel releases a local lock when the process ends, for whatever reason. On file
  systems without locks, this only logs a warning. In a bucket, the lock of a process
  that was killed ends after `LEASE_SECONDS`; this waits for it.

  Yields:
    Function that raises SaveError if another process has taken the lock, which is
    possible in a bucket that could not be reached for `LEASE_SECONDS`.

  Raises:
    InputError: if a running process holds the lock; names it, and the `use` made.
  """
  if paths.in_bucket(file):
    lease = _Lease(file, use)
    lease.acquire()
    try:
      yield lease.check
    finally:
      lease.release()
    return
  file.parent.mkdir(parents=True, exist_ok=True)
  with locks.held(file, lambda owner: _refuse(file, owner, use)):
    yield lambda: None


def _refuse(file: pathlib.Path, owner: str, use: str) -> NoReturn:
  raise InputError(
    f"{file.parent} is in use: {owner} is {use} there. Wait for it, stop it, or choose "
    "another --workdir"
  )


class _Lease:
  """A lock in a bucket: an object that its holder writes again and again.

  Only the server's clock counts. Of two processes that write the same generation of the
  object at the same time, one fails.
  """

  def __init__(self, file: pathlib.Path, use: str):
    self._file, self._use = file, use
    self._blob = bucket.blob(file)
    self._identity = uuid.uuid4().hex
    self._seconds = LEASE_SECONDS
    self._renewed, self._released = time.monotonic(), threading.Event()
    self._taken_by = ""
    self._thread = threading.Thread(target=self._renew, daemon=True)

  def acquire(self) -> None:
    """Takes the lock, after the end of a lease that is not renewed any more.

    Raises:
      InputError: if the holder renews it.
    """
    generation, seen = 0, None
    while (now := self._write(generation)) is not None:
      found = self._blob.bucket.get_blob(self._blob.name)
      generation = found.generation if found else 0
      if found is None:
        continue
      owner, seconds = _read(found)
      end = found.updated + datetime.timedelta(seconds=seconds)
      until = f"{owner}, whose lease lasts until {end:%Y-%m-%d %H:%M:%S} UTC"
      if seen not in (None, generation):
        _refuse(self._file, f"{until} and was just renewed,", self._use)
      # The server tells `now` in whole seconds: without a lease there is nothing left.
      left = (end - now).total_seconds() if seconds else 0.0
      if seen is None and left > 0:
        logging.info("%s is locked by %s: waiting", self._file.parent, until)
      seen = generation
      if left > 0:
        generation = 0  # asks for the time
        time.sleep(min(left, seconds / _RENEWALS / 2))
    self._thread.start()

  def check(self) -> None:
    """Raises SaveError if another process has taken the lock; waits while it may."""
    while time.monotonic() > self._renewed + self._seconds and not self._taken_by:
      time.sleep(0.1)
    if self._taken_by:
      raise SaveError(
        f"{self._file.parent} was taken over by {self._taken_by}: this process could "
        f"not renew its lock for {self._seconds:g} seconds. What was saved before is "
        "kept"
      )

  def release(self) -> None:
    """Gives the lock back."""
    self._released.set()
    self._thread.join()
    if not self._taken_by:
      try:
        self._blob.delete(if_generation_match=self._blob.generation)
      except Exception as error:  # noqa: BLE001  it ends by itself
        logging.warning("%s could not be deleted: %s", self._file, error)

  def _write(self, generation: int, **options: Any) -> datetime.datetime | None:
    """As `bucket.write`; also succeeds if the answer to an earlier write was lost."""
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    self._blob.metadata = {
      "owner": owner,
      "seconds": str(self._seconds),
      "identity": self._identity,
    }
    began = time.monotonic()
    now = bucket.write(self._blob, f"{owner}\n".encode(), generation, **options)
    if now is not None:
      found = self._blob.bucket.get_blob(self._blob.name)
      if not found or (found.metadata or {}).get("identity") != self._identity:
        return now
      self._blob = found
    self._renewed = began
    return None

  def _renew(self) -> None:
    pause = self._seconds / _RENEWALS
    while not self._released.wait(pause):
      try:
        # Not repeated by the client: the next renewal is soon.
        refused = self._write(self._blob.generation, retry=None, timeout=pause)
        if refused is not None:
          found = self._blob.bucket.get_blob(self._blob.name)
          self._taken_by = _read(found)[0] if found else "another process"
          return
      # Whatever it is: there may be time for another attempt.
      except Exception as error:  # noqa: BLE001
        logging.warning("%s could not be renewed: %s", self._file, error)


def _read(found: Any) -> tuple[str, float]:
  """Owner of a lock and length of its lease in seconds."""
  # Nobody holds a local lock file that was copied with its directory.
  told = found.metadata or {}
  return told.get("owner", "another process"), float(told.get("seconds", 0))
