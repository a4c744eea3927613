"""Paths from users: ~ is expanded, and URLs are refused."""

import os
import pathlib
import re

from ncl_jax.errors import InputError

# At least two characters, because C:/ is a drive. One slash, because pathlib reduces
# "://" to ":/".
_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):[/\\]")


def scheme(path: str | os.PathLike) -> str:
  """The scheme of a URL in lower case; "" for a path.

  >>> scheme("gs://bucket/run"), scheme("gs:/bucket/run"), scheme("C:/run")
  ('gs', 'gs', '')
  """
  found = _URL.match(os.fspath(path))
  return found[1].lower() if found else ""


def local(path: str | os.PathLike) -> pathlib.Path:
  """A local path with ~ expanded.

  Raises:
    InputError: for a URL of any scheme, or the ~ of an unknown user.
  """
  if name := scheme(path):
    raise InputError(
      f"{os.fspath(path)!r} is a URL ({name}:); allowed: paths of mounted file systems."
      f" Copy or mount the files and give that path (for a folder named {name!r} with a"
      f" colon, write ./{name}:/...)"
    )
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError as error:
    raise InputError(f"{os.fspath(path)!r}: {error}") from error


def shipped(folder: str) -> pathlib.Path:
  """A folder that comes with the package: inside it if installed, else beside it."""
  package = pathlib.Path(__file__).parents[1]
  inside = package / folder
  return inside if inside.is_dir() else package.parent / folder
