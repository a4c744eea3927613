"""Checkpoints: there and back, on another number of devices, and what is refused."""

import errno
import fcntl
import gc
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ncl_jax.errors import InputError, SaveError, naming
from ncl_jax.runtime import checkpoint, lock


def on(devices):
  mesh = jax.make_mesh(
    (devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices]
  )
  return NamedSharding(mesh, PartitionSpec())


def trees(sharding, fill=1.0):
  params = {"a": jnp.full((3, 2), fill), "b": {"kernel": jnp.arange(4.0) * fill}}
  optimizer = optax.sgd(optax.constant_schedule(0.1), momentum=0.9)
  model = {"params": params, "batch_stats": {"mean": jnp.zeros(2)}}
  train = {"step": jnp.int32(7), "opt_state": optimizer.init(params)}
  return jax.device_put((model, train), sharding)


def assert_same(a, b):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    assert x.dtype == y.dtype
    np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("saved_on", "read_on"), [(8, 1), (1, 8)])
def test_round_trip_across_device_counts(tmp_path, saved_on, read_on):
  model, train = trees(on(saved_on))
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    assert checkpoints.latest_step() is None
    checkpoints.save(7, model=model, train=train)
  empty_model, empty_train = trees(on(read_on), fill=0.0)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    assert checkpoints.latest_step() == 7
    again = checkpoints.restore(7, model=empty_model, train=empty_train)
  assert_same(again, (model, train))
  assert all(len(x.sharding.device_set) == read_on for x in jax.tree.leaves(again))
  alone, step = checkpoint.load_model(tmp_path, empty_model, on(read_on))
  assert step == 7
  assert_same(alone, model)


def test_a_full_disk_is_told_before_anything_is_written(tmp_path, monkeypatch):
  model, train = trees(on(1))
  size = sum(x.nbytes for x in jax.tree.leaves((model, train)))
  usage = shutil.disk_usage(tmp_path)
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    for step, free in ((7, size), (8, size - 1)):
      monkeypatch.setattr(
        checkpoint.shutil,
        "disk_usage",
        lambda path, free=free: usage._replace(free=free),
      )
      if step == 8:
        with pytest.raises(SaveError, match="step 8 needs .*Earlier .* kept"):
          checkpoints.save(step, model=model, train=train)
      else:
        checkpoints.save(step, model=model, train=train)
    assert checkpoints.latest_step() == 7
  assert not list(tmp_path.glob("checkpoints/8*"))


def test_keeps_the_newest(tmp_path):
  model, train = trees(on(1))
  with checkpoint.Checkpoints(tmp_path, keep=2) as checkpoints:
    for step in (1, 2, 3):
      checkpoints.save(step, model=model, train=train)
  with pytest.raises(FileNotFoundError, match=r"step 1 .*there are 2, 3"):
    checkpoint.load_model(tmp_path, model, on(1), step=1)


def test_relative_paths_with_spaces(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  model, train = trees(on(1))
  folder = pathlib.Path("out", "run ü 1")
  with checkpoint.Checkpoints(folder) as checkpoints:
    checkpoints.save(1, model=model, train=train)
  assert checkpoint.load_model(folder, model, on(1))[1] == 1


def test_home(tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  model, train = trees(on(1))
  with checkpoint.Checkpoints("~/run") as checkpoints:
    checkpoints.save(1, model=model, train=train)
  assert (tmp_path / "run" / "checkpoints" / "1").is_dir()
  assert checkpoint.load_model("~/run", model, on(1))[1] == 1


def test_the_failure_of_a_save_is_told_though_closing_repeats_it(tmp_path, monkeypatch):
  """As Orbax does where a bucket refuses the first request of a save."""
  model, train = trees(on(1))

  def refused(*_, **__):
    raise OSError("refused, 401")

  with (
    pytest.raises(SaveError, match="step 3 could not be written .*refused, 401"),
    checkpoint.Checkpoints(tmp_path) as checkpoints,
  ):
    monkeypatch.setattr(checkpoints._manager, "save", refused)
    monkeypatch.setattr(checkpoints._manager, "close", refused)
    checkpoints.save(3, model=model, train=train)
  # Without one, a failure to close is an error.
  with (
    pytest.raises(OSError, match="refused, 401"),
    checkpoint.Checkpoints(tmp_path) as checkpoints,
  ):
    monkeypatch.setattr(checkpoints._manager, "close", refused)


def test_what_kills_and_cut_off_copies_leave_is_not_taken_for_a_checkpoint(tmp_path):
  model, train = trees(on(1))
  with checkpoint.Checkpoints(tmp_path / "run") as checkpoints:
    for step in (1, 3):
      checkpoints.save(step, model=model, train=train)
  copy = shutil.copytree(tmp_path / "run", tmp_path / "copy")
  folder = copy / "checkpoints"
  (folder / "5").mkdir()
  (folder / "7.orbax-checkpoint-tmp").mkdir()
  (folder / "8").write_text("")
  (folder / "notes.txt").write_text("not a checkpoint")
  assert checkpoint.load_model(copy, model, on(1))[1] == 3
  with pytest.raises(FileNotFoundError, match="step 5 .*there are 1, 3"):
    checkpoint.load_model(copy, model, on(1), step=5)
  with checkpoint.Checkpoints(copy) as checkpoints:
    assert checkpoints.latest_step() == 3
    assert_same(checkpoints.restore(3, model=model, train=train), (model, train))
    checkpoints.save(4, model=model, train=train)
  assert checkpoint.load_model(copy, model, on(1))[1] == 4
  assert list(folder.glob("incomplete-5-*"))
  with (
    pytest.raises(SaveError, match="step 2 could not .* one of step 4 already"),
    checkpoint.Checkpoints(copy) as checkpoints,
  ):
    checkpoints.save(2, model=model, train=train)


# Orbax leaves what it was about to read to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damaged_files_are_told(tmp_path):
  model, train = trees(on(1))
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, model=model, train=train)
  for file in (tmp_path / "checkpoints" / "1" / "model").rglob("*"):
    if file.is_file() and file.parent.name == "d":
      file.write_bytes(file.read_bytes()[:10])
  with pytest.raises(InputError, match="step 1 .*is damaged; remove "):
    checkpoint.load_model(tmp_path, model, on(1))
  gc.collect()  # here, not in the middle of another test


def test_missing(tmp_path):
  model, _ = trees(on(1))
  with pytest.raises(FileNotFoundError, match="nowhere.*train there first"):
    checkpoint.load_model(tmp_path / "nowhere", model, on(1))


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (lambda p: p | {"a": jnp.ones((3, 5))}, r"params/a: float32\[3, 2\] there, .*3, 5"),
    (lambda p: p | {"a": jnp.ones((3, 2), jnp.bfloat16)}, "bfloat16"),
    (lambda p: p | {"c": jnp.ones(1)}, "params/c: absent there"),
    (lambda p: {"a": p["a"]}, "params/b/kernel: .* absent here"),
  ],
)
def test_a_checkpoint_that_does_not_fit_names_the_tensor(tmp_path, change, says):
  model, train = trees(on(1))
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, model=model, train=train)
  wrong = model | {"params": change(model["params"])}
  with pytest.raises(InputError, match=says):
    checkpoint.load_model(tmp_path, wrong, on(1))


def test_a_second_process_is_kept_out_until_the_first_is_done(tmp_path):
  """Locks of two open files exclude each other within a process, too."""
  model, train = trees(on(1))
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, model=model, train=train)
    checkpoints.wait()
    (tmp_path / "checkpoints" / "5").mkdir()
    with pytest.raises(InputError, match=r"in use: process \d+ on .* is writing check"):
      checkpoint.Checkpoints(tmp_path)
    assert (tmp_path / "checkpoints" / "5").is_dir()  # nothing was put aside
    assert checkpoint.load_model(tmp_path, model, on(1))[1] == 1  # reading is free
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(2, model=model, train=train)
  assert checkpoint.steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_it_goes_on_with_a_warning(tmp_path, monkeypatch, caplog, number):
  def refuse(file, how):
    raise OSError(number, "none here")

  monkeypatch.setattr(fcntl, "flock", refuse)
  with lock.hold(tmp_path / "lock", "training"):
    assert f"{tmp_path / 'lock'} cannot be locked" in caplog.text


def test_an_error_under_the_lock_keeps_its_own_file(tmp_path, monkeypatch):
  with (
    pytest.raises(OSError, match=r"^\[Errno 28\] full$") as told,
    lock.hold(tmp_path / "lock", "training"),
  ):
    raise OSError(errno.ENOSPC, "full")
  assert told.value.filename is None

  def broken(file, how):
    raise OSError(errno.EIO, "broken")

  monkeypatch.setattr(fcntl, "flock", broken)
  with (
    pytest.raises(OSError, match="broken: '.*lock'"),
    lock.hold(tmp_path / "lock", "training"),
  ):
    pass


def test_an_error_without_a_file_gets_its_name(tmp_path):
  with pytest.raises(OSError, match="full: 'a'") as told, naming("a"):
    raise OSError(errno.ENOSPC, "full")
  assert (told.value.errno, told.value.filename) == (errno.ENOSPC, "a")
  with pytest.raises(FileNotFoundError) as told, naming("a"):
    (tmp_path / "b").read_text()
  assert told.value.filename == str(tmp_path / "b")


def test_what_was_put_aside_before_is_in_nobodys_way(tmp_path):
  for _ in range(3):
    (tmp_path / "checkpoints" / "5" / "model").mkdir(parents=True)
    with checkpoint.Checkpoints(tmp_path) as checkpoints:
      assert checkpoints.latest_step() is None
  found = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
  assert [name.rsplit("-", 1)[0] for name in found] == ["incomplete-5"] * 3


# A limit on the size of files stands for a full disk.
_FULL = """
import resource, signal, sys
import numpy as np
from ncl_jax import cli
from ncl_jax.runtime.checkpoint import Checkpoints

workdir = sys.argv.pop()

def main():
  model = {"w": np.random.default_rng(0).normal(size=200_000)}
  with Checkpoints(workdir) as checkpoints:
    checkpoints.save(1, model={"w": np.zeros(3)}, train={"step": np.int32(1)})
    checkpoints.wait()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    checkpoints.save(2, model=model, train={"step": np.int32(2)})

cli.run(main)
"""


def test_a_checkpoint_that_cannot_be_written_costs_one_sentence(tmp_path):
  script = tmp_path / "full.py"
  script.write_text(_FULL)
  done = subprocess.run(
    [sys.executable, script, tmp_path / "run"], capture_output=True, text=True
  )
  assert done.returncode == 1
  (line,) = done.stderr.splitlines()
  assert line.startswith("error: the checkpoint of step 2 could not be written to")
  with checkpoint.Checkpoints(tmp_path / "run") as checkpoints:
    assert checkpoints.latest_step() == 1
