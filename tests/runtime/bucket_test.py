"""Work directories in a bucket, against an emulator of Google Cloud Storage."""

import os
import threading
import time

import emulated
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax.errors import InputError, SaveError
from ncl_jax.host import bucket, paths
from ncl_jax.runtime import checkpoint, jsonl, lock

# Of the clients' connections, which end with the process.
pytestmark = pytest.mark.filterwarnings(
  "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def root():
  """gs://BUCKET of an emulator that the whole module uses."""
  with emulated.bucket("tests") as url:
    yield url


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
