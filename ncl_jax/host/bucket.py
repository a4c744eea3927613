"""Buckets of Google Cloud Storage: tried once; writes depend on what is there.

google-cloud-storage is imported only when a path is in a bucket.
"""

import datetime
import email.utils
import functools
import os
import pathlib
import re
import traceback
from collections.abc import Callable
from typing import Any

from ncl_jax.errors import Failed, InputError
from ncl_jax.host import network

_HOST = "storage.googleapis.com"
# For the answer to the first request, with its repetitions.
_PATIENCE = 8.0
# Modules that send requests.
_CLIENTS = re.compile(r"(gcsfs|google\.(auth|cloud))(\.|$)")
# How tensorstore tells a request's.
_STATUS = re.compile(
  r"(UNAVAILABLE|UNAUTHENTICATED|PERMISSION_DENIED|DEADLINE_EXCEEDED|ABORTED"
  r"|RESOURCE_EXHAUSTED): .*gs://"
)


@functools.lru_cache(maxsize=64)
def require(name: str) -> None:
  """Asks once for an object of a bucket, to refuse a wrong one before any work is done.

  Raises:
    InputError: without credentials, or if they or the bucket are refused.
    Failed: if there is no answer in a few seconds.
  """
  if not os.environ.get("STORAGE_EMULATOR_HOST") and network.offline([_HOST]):
    raise _unreachable(name, f"{_HOST} accepts no connection")
  # gcsfs needs the same permission, and would repeat its request for a minute.
  _request(
    name,
    lambda client, **limits: next(
      iter(client.list_blobs(name, max_results=1, **limits)), None
    ),
  )


def blob(path: pathlib.Path) -> Any:
  """The object of a path, as `google.cloud.storage.Blob`.

  Raises:
    InputError, Failed: as `require`.
  """
  name, _, key = path.as_posix().removeprefix("gs://").partition("/")
  return _bucket(name).blob(key)


@functools.lru_cache(maxsize=8)
def _bucket(name: str) -> Any:
  # Orbax asks for the bucket in the same way before it deletes a checkpoint.
  return _request(name, lambda client, **limits: client.get_bucket(name, **limits))


def _request(name: str, ask: Callable[..., Any]) -> Any:
  """The result of a first request; its failure becomes a sentence."""
  from google.api_core import exceptions
  from google.auth.exceptions import GoogleAuthError
  from google.cloud import storage
  from google.cloud.storage import retry
  from requests.exceptions import RequestException

  limits = {"timeout": _PATIENCE, "retry": retry.DEFAULT_RETRY.with_timeout(_PATIENCE)}
  try:
    return ask(storage.Client(), **limits)
  except exceptions.NotFound as error:
    raise InputError(f"there is no bucket gs://{name}") from error
  except exceptions.Forbidden as error:
    raise _forbidden(name, error) from error
  except (exceptions.RetryError, exceptions.ServerError, RequestException) as error:
    cause = getattr(error, "cause", None) or error
    raise _unreachable(name, _sentence(cause)) from error
  except (GoogleAuthError, exceptions.GoogleAPICallError, OSError) as error:
    if getattr(error, "retryable", False):
      raise _unreachable(name, _sentence(error)) from error
    raise InputError(
      f"gs://{name} cannot be opened ({_sentence(error)}). Run gcloud auth "
      "application-default login, and set GOOGLE_CLOUD_PROJECT"
    ) from error


def _forbidden(name: str, error: BaseException) -> InputError:
  return InputError(
    f"gs://{name} may not be used ({_sentence(error)}). Needed are the roles "
    "storage.objectUser and storage.bucketViewer"
  )


def _unreachable(name: str, reason: str) -> Failed:
  return Failed(
    f"gs://{name} cannot be reached ({reason}). Check the network, then run the same "
    "command again"
  )


def failure(error: BaseException) -> str:
  """The sentence of a failed request to a bucket, "" for any other error."""
  frames = traceback.walk_tb(error.__traceback__)
  ours = any(_CLIENTS.match(frame.f_globals.get("__name__", "")) for frame, _ in frames)
  if not ours and not _STATUS.match(str(error)):
    return ""
  return f"a request to the bucket failed: {_sentence(error)}"


def _sentence(error: BaseException) -> str:
  """The innermost cause that has a text, in one line."""
  cause: BaseException | None = error
  text = ""
  while cause is not None:
    known = isinstance(cause, OSError) and cause.strerror
    text = known or text or str(getattr(cause, "message", "") or cause)
    cause = cause.__cause__ or cause.__context__
  # Without the details that tensorstore adds, some of them thousands of letters long.
  text = re.sub(r" \[\w+='.*", "", text, flags=re.S) or type(error).__name__
  return " ".join(text.split())[:300]


def write(
  target: Any, content: bytes, generation: int, **options: Any
) -> datetime.datetime | None:
  """Writes an object if nobody has written it since.

  Args:
    target: from `blob`; afterwards has the new generation.
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
  except exceptions.Forbidden as error:
    raise _forbidden(target.bucket.name, error) from error
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
