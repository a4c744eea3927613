"""Paths from users: ~ is expanded; of URLs, only gs:// names a work directory."""

import importlib.util
import os
import pathlib
import re
from typing import cast

from ncl_jax.errors import InputError
from ncl_jax.host import bucket

# At least two characters, because C:/ is a drive. One slash, because pathlib reduces
# "://" to ":/".
_URL = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):[/\\]")
# Orbax cuts names off at "?" and "#"; "*" and brackets are patterns.
_BUCKET = re.compile(
  r"gs://[a-z0-9][a-z0-9._-]+[a-z0-9](/(?!\.{1,2}(/|$))[^/#?*[\]\\]+)*/?"
)


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
    copy = "Copy or mount the files and give that path"
    if name == "gs":
      copy += " (gcloud storage cp -r gs://... FOLDER, or gcsfuse)"
    raise InputError(
      f"{os.fspath(path)!r} is a URL ({name}:); allowed: paths of mounted file systems."
      f" {copy} (for a folder named {name!r} with a colon, write ./{name}:/...)"
    )
  try:
    return pathlib.Path(path).expanduser()
  except RuntimeError as error:
    raise InputError(f"{os.fspath(path)!r}: {error}") from error


def absolute(path: str | os.PathLike) -> pathlib.Path:
  """An absolute path with ~ expanded: local, or of a bucket of Google Cloud Storage.

  The path of a bucket has the methods of `pathlib.Path`, except for `resolve`, `mkdir`
  (which would create a missing bucket) and opening to append. The first path of each
  bucket asks whether it can be read.

  Raises:
    InputError: as `local`, except for gs://BUCKET/FOLDER. For that, if it is malformed,
      the packages for it are missing, or as `bucket.require`.
    Failed: if the bucket cannot be reached.
  """
  text = os.fspath(path)
  if not in_bucket(path):
    return local(text).resolve()
  if not _BUCKET.fullmatch(text):
    raise InputError(
      f"{text!r} is not the path of a bucket; allowed: gs://BUCKET/FOLDER/..., without "
      "//, .., #, ?, *, [, ] and \\, and with at least three letters for the bucket"
    )
  if importlib.util.find_spec("gcsfs") is None:
    raise InputError(
      f"{text!r}: paths of buckets need more packages: pip install 'ncl_jax[gcs]'"
    )
  # Else etils would start TensorFlow, if it is installed, to read and write.
  os.environ.setdefault("EPATH_USE_TF", "0")
  import fsspec
  from etils import epath

  # Kept listings would hide what Orbax and other processes write.
  fsspec.config.conf.setdefault("gcs", {})["use_listings_cache"] = False
  bucket.require(text.removeprefix("gs://").partition("/")[0])
  return cast(pathlib.Path, epath.Path(text.rstrip("/")))


def make(folder: pathlib.Path) -> None:
  """Makes a local folder and its parents if they are missing; a bucket has none."""
  if not in_bucket(folder):
    folder.mkdir(parents=True, exist_ok=True)


def entries(folder: pathlib.Path) -> list[pathlib.Path]:
  """The sorted content of a folder; [] if it is missing."""
  try:
    return sorted(folder.iterdir())
  except FileNotFoundError:  # also of an empty one in a bucket
    return []


def in_bucket(path: str | os.PathLike) -> bool:
  """Whether a path begins with gs:."""
  return scheme(path) == "gs"


def shipped(folder: str) -> pathlib.Path:
  """A folder that comes with the package: inside it if installed, else beside it."""
  package = pathlib.Path(__file__).parents[1]
  inside = package / folder
  return inside if inside.is_dir() else package.parent / folder
