"""The compile cache: what a kill cut off is removed and compiled again."""

import os
import pathlib
import subprocess
import sys
import zlib

import jax
import pytest
import tiny

from ncl_jax.runtime import compile_cache, jsonl

# A program that compiles one function and says how often the cache answered.
PROGRAM = """
import jax
from ncl_jax import compile_cache

compile_cache.set_up()
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
jax.jit(lambda x: x * 3 + 1)(2.0)
names = [event.rsplit("/", 1)[-1] for event in seen]
print(names.count("cache_hits"), names.count("cache_misses"))
"""

NAME = "jit_f-" + "0123456789abcdef" * 4


def compile_in(folder):
  environment = os.environ | {
    "JAX_COMPILATION_CACHE_DIR": str(folder),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "PYTHONWARNINGS": "error",
  }
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  hits, misses = map(int, done.stdout.split())
  return hits, misses


def test_a_cut_off_entry_is_compiled_once_more(tmp_path):
  hits, written = compile_in(tmp_path)
  assert hits == 0 and written >= 1
  found = sorted(tmp_path.glob("*-cache"))
  assert len(found) == written
  whole = found[0].read_bytes()
  found[0].write_bytes(whole[: len(whole) // 2])
  # Set up anew, the program finds the others and writes this one.
  assert compile_in(tmp_path) == (written - 1, 1)
  assert zlib.decompress(found[0].read_bytes())
  assert compile_in(tmp_path) == (written, 0)


@pytest.fixture
def cache(tmp_path):
  """A good entry, and files that are none."""
  good = zlib.compress(b"program" * 100)
  (tmp_path / f"{NAME}-cache").write_bytes(good)
  (tmp_path / f"{NAME}-atime").write_bytes(b"")
  (tmp_path / "notes-cache").write_bytes(b"not an entry")
  (tmp_path / "xla").mkdir()
  return tmp_path


def names(folder):
  return {p.name for p in folder.iterdir()} - {compile_cache._STAMP}


def bad(i):
  return NAME[:-2] + f"{i:02x}-cache"


def test_exactly_the_unreadable_are_removed(cache):
  before = names(cache)
  whole = (cache / f"{NAME}-cache").read_bytes()
  contents = [b"", whole[:1], whole[:-1], bytes(len(whole)), whole[:-1] + b"?"]
  for i, content in enumerate(contents):
    (cache / bad(i)).write_bytes(content)
  (cache / bad(0).replace("-cache", "-atime")).write_bytes(b"")
  gone = compile_cache.remove_unreadable(cache)
  assert gone == [bad(i) for i in range(len(contents))]
  assert names(cache) == before


def test_zstandard(cache, monkeypatch):
  frame = b"\x28\xb5\x2f\xfd" + b"cut off"
  (cache / bad(0)).write_bytes(frame)
  monkeypatch.setattr(compile_cache, "zstandard", None)
  assert compile_cache.remove_unreadable(cache) == []  # another environment's

  class Zstandard:
    class ZstdError(Exception):
      pass

    class ZstdDecompressor:
      def decompress(self, data):
        if data == frame:
          raise Zstandard.ZstdError

  monkeypatch.setattr(compile_cache, "zstandard", Zstandard)
  (cache / bad(1)).write_bytes(frame + b", whole")
  assert compile_cache.remove_unreadable(cache) == [bad(0)]


def test_old_entries_are_not_read_again(cache, monkeypatch):
  monkeypatch.setattr(compile_cache, "_GRAIN", 0)
  read = []
  monkeypatch.setattr(
    compile_cache, "_is_readable", lambda data: read.append(data) or True
  )
  compile_cache.remove_unreadable(cache)
  compile_cache.remove_unreadable(cache)
  assert len(read) == 1
  # Copied with its old times, it is new here nevertheless.
  (cache / bad(0)).write_bytes(b"x")
  os.utime(cache / bad(0), (1, 1))
  compile_cache.remove_unreadable(cache)
  assert read[1:] == [b"x"]


@pytest.mark.parametrize("stamp", [b"", b"\0\0", b"9" * 25])
def test_a_stamp_that_tells_nothing_hides_nothing(cache, stamp):
  (cache / compile_cache._STAMP).write_bytes(stamp)
  (cache / bad(0)).write_bytes(b"")
  assert compile_cache.remove_unreadable(cache) == [bad(0)]


def test_an_entry_that_is_being_written_stays(cache, monkeypatch):
  (cache / bad(0)).write_bytes(b"half")

  def go_on(data):
    (cache / bad(0)).write_bytes(b"half and more")
    return data != b"half"

  monkeypatch.setattr(compile_cache, "_is_readable", go_on)
  assert compile_cache.remove_unreadable(cache) == []
  monkeypatch.undo()
  assert compile_cache.remove_unreadable(cache) == [bad(0)]  # next time, cut off


def test_an_entry_that_vanishes_is_another_processs(cache, monkeypatch):
  (cache / bad(0)).write_bytes(b"")

  def vanish(data):
    (cache / bad(0)).unlink(missing_ok=True)
    return False

  monkeypatch.setattr(compile_cache, "_is_readable", vanish)
  assert bad(0) not in compile_cache.remove_unreadable(cache)


def test_an_entry_of_another_user_is_left_to_that_user(cache, monkeypatch):
  for i in range(2):
    (cache / bad(i)).write_bytes(b"")
  unlink = pathlib.Path.unlink

  def refuse(path, *args):
    if path.name == bad(0):
      raise PermissionError(path)
    unlink(path, *args)

  with monkeypatch.context() as patch:
    patch.setattr(compile_cache, "_GRAIN", 0)
    patch.setattr("pathlib.Path.unlink", refuse)
    assert compile_cache.remove_unreadable(cache) == [bad(1)]
  assert compile_cache.remove_unreadable(cache) == [bad(0)]


@pytest.mark.parametrize("fault", [PermissionError, OSError])
def test_a_folder_that_cannot_be_written_is_left(cache, monkeypatch, fault):
  def touch(*unused):
    raise fault("read-only")

  monkeypatch.setattr("pathlib.Path.touch", touch)
  (cache / bad(0)).write_bytes(b"")
  assert compile_cache.remove_unreadable(cache) == []


def test_a_missing_folder_is_not_made(tmp_path):
  assert compile_cache.remove_unreadable(tmp_path / "none") == []
  assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("chosen", [None, "mine", "", "gs://bucket/cache"])
def test_the_folder_is_the_users_or_the_default(tmp_path, monkeypatch, chosen):
  monkeypatch.setattr(compile_cache, "DEFAULT", str(tmp_path / "default"))
  before = jax.config.jax_compilation_cache_dir
  wanted = chosen if chosen != "mine" else str(tmp_path)
  try:
    jax.config.update("jax_compilation_cache_dir", wanted)
    compile_cache.set_up()
    found = jax.config.jax_compilation_cache_dir
  finally:
    jax.config.update("jax_compilation_cache_dir", before)
  assert found == (str(tmp_path / "default") if chosen is None else wanted)


def test_one_pair_of_programs_for_all_seeds(tmp_path):
  """A start that finds both trains as one that has compiled its own."""
  data = tiny.npz(tmp_path / "tiny.npz")
  caches = [
    _train(tmp_path / run, data, tmp_path / cache, seed)
    for run, cache, seed in (("zero", "a", 0), ("one", "a", 1), ("own", "b", 1))
  ]
  # The second start adds nothing to what the first one left.
  assert caches[0] == caches[1]
  programs = [name.rsplit("-", 2)[0] for name in caches[0]]
  assert programs.count("jit_init") == programs.count("jit_steps") == 1
  zero, one, own = (
    jsonl.read(tmp_path / run / "metrics.jsonl") for run in ("zero", "one", "own")
  )
  assert one == own
  assert one[0]["loss"] != zero[0]["loss"]


def _train(workdir, data, cache, seed):
  """The cache's entries after a training in a process of its own."""
  command = [sys.executable, "-m", "launch.train", f"--workdir={workdir}"]
  command += [f"--config={tiny.__file__}:ncl", f"--config.data.source=arrays:{data}"]
  command += [f"--config.seed={seed}"]
  environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
  done = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return sorted(path.name for path in cache.glob("*-cache"))
