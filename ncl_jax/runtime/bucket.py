"""Writes to a Google Cloud Storage bucket that depend on what is there.

google-cloud-storage is imported only when a path is in a bucket.
"""

import datetime
import email.utils
import functools
import pathlib
from typing import Any

from ncl_jax.errors import InputError


def blob(path: pathlib.Path) -> Any:
  """The object of a path, as `google.cloud.storage.Blob`.

  Raises:
    InputError: without credentials, a project or the bucket.
  """
  name, _, key = path.as_posix().removeprefix("gs://").partition("/")
  return _bucket(name).blob(key)


@functools.lru_cache(maxsize=8)
def _bucket(name: str) -> Any:
  from google.api_core import exceptions
  from google.auth.exceptions import DefaultCredentialsError
  from google.cloud import storage

  try:
    # Orbax asks for the bucket in the same way before it deletes a checkpoint.
    return storage.Client().get_bucket(name)
  except exceptions.NotFound as error:
    raise InputError(f"there is no bucket gs://{name}") from error
  except exceptions.Forbidden as error:
    raise InputError(
      f"gs://{name} may not be used ({error.message[:300]}). Needed are the roles "
      "storage.objectUser and storage.bucketViewer"
    ) from error
  except (DefaultCredentialsError, OSError) as error:
    raise InputError(
      f"gs://{name} cannot be opened ({str(error)[:300]}). Run gcloud auth "
      "application-default login, and set GOOGLE_CLOUD_PROJECT"
    ) from error


def write(
  target: Any, content: bytes, generation: int, **options: Any
) -> datetime.datetime | None:
  """Writes an object if nobody has written it since.

  Args:
    target: from `blob`; afterwards has the new generation.
    content: of the object.
    generation: that it had; 0 for none.
    **options: of `Blob.upload_from_string`.

  Returns:
    None if it was written, else the server's time.
  """
  from google.api_core import exceptions

  try:
    target.upload_from_string(content, if_generation_match=generation, **options)
  except exceptions.PreconditionFailed as error:
    return email.utils.parsedate_to_datetime(error.response.headers["Date"])
  return None


def append(path: pathlib.Path, line: bytes) -> None:
  """Adds a line to an object, or makes it; lines from other processes are kept."""
  from google.api_core import exceptions

  target, written = blob(path), None
  while True:
    found = target.bucket.get_blob(target.name)
    try:
      before = found.download_as_bytes() if found else b""
    except exceptions.NotFound:
      continue  # overwritten meanwhile
    if before == written:
      return  # the answer to the first attempt was lost, and it was repeated
    end = b"" if before.endswith(b"\n") or not before else b"\n"
    written = before + end + line
    if write(target, written, found.generation if found else 0) is None:
      return
