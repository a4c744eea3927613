"""A bucket that cannot be used is one sentence, told before any work is done."""

import importlib.util
import logging
import os
import re
import socket
import subprocess
import sys
import threading

import emulated
import gate
import pytest
import tiny
from absl import logging as absl_logging
from programs import ROOT, call

from ncl_jax.errors import Failed
from ncl_jax.host import bucket, network, paths
from ncl_jax.runtime import checkpoint

if importlib.util.find_spec("gcsfs") is None:
  pytest.skip("gcsfs is not installed", allow_module_level=True)
# Of the clients' connections, which end with the process.
pytestmark = pytest.mark.filterwarnings(
  "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

WORKDIR = "gs://bucket-a/run"
PROGRAMS = sorted(
  path.stem
  for path in (ROOT / "launch").glob("*.py")
  if re.search(r'cli\.WORKDIRS?, "|run_on_checkpoint', path.read_text())
)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
  """No credentials, no project, an empty folder, and nothing known of any bucket."""
  for name in ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
  monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
  monkeypatch.setenv("NO_GCE_CHECK", "true")
  monkeypatch.setenv("EPATH_USE_TF", "0")
  monkeypatch.chdir(tmp_path)
  bucket.require.cache_clear()
  # A program asks for its bucket before its log is set up; an earlier one did that.
  handler = absl_logging.get_absl_handler()
  set_up = handler in logging.root.handlers
  logging.root.removeHandler(handler)
  yield
  if set_up:
    logging.root.addHandler(handler)
  bucket.require.cache_clear()
  assert os.listdir() == []


def refused(program, *more):
  """(exit code, the message) of a program that ends with one line."""
  flag = "--workdirs" if program == "disentangle" else "--workdir"
  code, out, err = call(program, f"{flag}={WORKDIR}", *more)
  assert out == "" and err.count("\n") == 1, err
  return code, err


@pytest.mark.parametrize("program", PROGRAMS)
def test_without_a_network_every_program_says_so(program, monkeypatch):
  monkeypatch.setattr(network, "offline", lambda hosts: True)
  code, err = refused(program)
  assert code == 1 and err.startswith(
    "error: gs://bucket-a cannot be reached (storage."
  )


def test_the_programs_are_those_with_a_work_directory():
  assert len(PROGRAMS) > 20 and {"train", "sweep", "knn", "export"} <= {*PROGRAMS}


def test_without_credentials_the_command_is_named(monkeypatch):
  monkeypatch.setattr(network, "offline", lambda hosts: False)
  code, err = refused("train", "--config=digits")
  assert code == 2 and "default credentials were not found" in err
  assert "Run gcloud auth application-default login, and set GOOGLE_CLOUD_PRO" in err


ANSWERS = {
  401: (2, r"gs://bucket-a cannot be opened \(.*Run gcloud auth"),
  403: (2, r"gs://bucket-a may not be used \(.*the gate.*storage\.bucketViewer"),
  404: (2, "there is no bucket gs://bucket-a"),
  503: (1, r"gs://bucket-a cannot be reached \(.*the gate.*\)\. Check the network"),
}


@pytest.mark.parametrize("status", ANSWERS)
def test_a_bucket_that_is_refused_is_one_sentence(status, monkeypatch):
  monkeypatch.setattr(bucket, "_PATIENCE", 0.1)
  expected, message = ANSWERS[status]
  with gate.Gate(refuse=lambda method, path: status).open() as url:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
    code, err = refused("train", "--config=digits")
  assert code == expected and re.search(message, err), err


def test_a_port_without_a_server_is_one_sentence(monkeypatch):
  monkeypatch.setattr(bucket, "_PATIENCE", 0.1)
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{free.getsockname()[1]}"
  monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
  code, err = refused("evaluate")
  assert code == 1 and "cannot be reached (Connection refused)" in err


def test_a_bucket_is_asked_until_it_answers(monkeypatch):
  asked = []

  def ask(name, request):
    asked.append(name)
    if len(asked) < 2:
      raise Failed("unreachable")

  monkeypatch.setattr(network, "offline", lambda hosts: False)
  monkeypatch.setattr(bucket, "_request", ask)
  with pytest.raises(Failed):
    paths.absolute(WORKDIR)
  for folder in ("run", "other"):
    assert str(paths.absolute(f"gs://bucket-a/{folder}")) == f"gs://bucket-a/{folder}"
  assert asked == ["bucket-a", "bucket-a"]


def test_of_other_errors_nothing_is_said():
  assert bucket.failure(ValueError("RESOURCE_EXHAUSTED: 3 GiB of hbm")) == ""
  assert bucket.failure(OSError(28, "No space left on device")) == ""


@pytest.fixture
def guarded():
  """The gate of an emulator with an empty bucket."""
  front = gate.Gate()
  with emulated.bucket("bucket-a", front):
    yield front


def train():
  """(exit code, whole output of standard error) of a run of 6 steps, in a process."""
  command = [sys.executable, "-m", "ncl_jax", "train", f"--workdir={WORKDIR}"]
  command += ["--config=digits:ncl", *tiny.FLAGS, "--config.train.epochs=3"]
  command += ["--config.train.checkpoint_every_epochs=1"]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
  return done.returncode, done.stderr


def test_a_bucket_that_may_only_be_read_is_refused(guarded):
  guarded.refuse = lambda method, path: 403 * (method == "POST")
  code, err = refused("train", "--config=digits")
  assert code == 2 and "may not be used" in err and "storage.objectUser" in err


@pytest.mark.slow
def test_permission_that_ends_during_a_run_costs_what_was_not_saved(guarded):
  saving = threading.Event()

  def refuse(method, path):
    if "checkpoints/4/" in path and method == "POST":
      saving.set()
    return 401 * saving.is_set()

  guarded.refuse = refuse
  code, err = train()
  last = err.strip().splitlines()[-1]
  assert saving.is_set() and code == 1 and "Traceback" not in err, err
  assert "of step 4 could not be written" in last and "refused by the gate" in last
  # It is not damage when a checkpoint may not be read.
  guarded.refuse = lambda method, path: 403 * (method == "GET" and "ocdbt" in path)
  code, err = train()
  last = err.strip().splitlines()[-1]
  assert code == 1 and "Traceback" not in err and "damaged" not in err, err
  assert f"{WORKDIR}/checkpoints/2 could not be read: a request to the bucket" in last
  guarded.refuse = lambda method, path: 0
  code, err = train()
  assert code == 0 and "resuming at step 2 of 6" in err, err
  assert checkpoint.steps(WORKDIR) == [4, 6]
