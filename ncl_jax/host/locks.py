"""File locks that the kernel releases when a process ends, for whatever reason."""

import contextlib
import errno
import os
import pathlib
import socket
import time
from collections.abc import Callable, Iterator

from absl import logging

from ncl_jax.errors import naming

# Errors of flock on file systems without locks, such as Lustre without its option.
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


@contextlib.contextmanager
def held(file: pathlib.Path, busy: Callable[[str], None]) -> Iterator[None]:
  """Holds a lock; on file systems without locks, this only logs a warning.

  Args:
    file: the lock file; created if necessary, and names its owner. It stays.
    busy: called with the owner's name each second while another process holds the
      lock, and raises to give up.
  """
  with file.open("a+", encoding="utf-8") as opened:
    # Not around the yield, because errors inside concern other files.
    with naming(file):
      while not _acquired(opened.fileno(), file):
        opened.seek(0)
        busy(opened.read().strip() or "another process")
        time.sleep(1)
      opened.truncate(0)
      # Unbuffered: what a full disk refuses would be written again on closing.
      os.write(
        opened.fileno(), f"process {os.getpid()} on {socket.gethostname()}\n".encode()
      )
    yield


def _acquired(descriptor: int, file: pathlib.Path) -> bool:
  try:
    import fcntl  # not on Windows

    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  except (OSError, ImportError) as error:
    if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
      raise
    logging.warning(
      "%s cannot be locked: its file system has no locks (%s). Start no other "
      "program that writes to %s",
      *(file, error, file.parent),
    )
  return True
