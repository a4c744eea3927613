"""The compilation cache: its folder, and what a kill leaves in it."""

import os
import subprocess
import sys

import jax
import pytest
import tiny

from ncl_jax.host import bucket, paths
from ncl_jax.runtime import compile_cache, jsonl

# A program that compiles one function and says how often the cache answered.
PROGRAM = """
import jax
from ncl_jax.runtime import compile_cache

compile_cache.set_up()
seen = []
jax.monitoring.register_event_listener(lambda event, **_: seen.append(event))
jax.jit(lambda x: x * 3 + 1)(2.0)
names = [event.rsplit("/", 1)[-1] for event in seen]
print(names.count("cache_hits"), names.count("cache_misses"))
"""


def compile_in(folder):
  environment = os.environ | {
    "JAX_COMPILATION_CACHE_DIR": str(folder),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
  }
  done = subprocess.run(
    [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True
  )
  assert done.returncode == 0, done.stderr
  hits, misses = map(int, done.stdout.split())
  return hits, misses


def test_a_cut_off_entry_is_a_miss_and_not_an_error(tmp_path):
  hits, written = compile_in(tmp_path)
  assert hits == 0 and written >= 1
  found = sorted(tmp_path.glob("*-cache"))
  assert len(found) == written
  whole = found[0].read_bytes()
  found[0].write_bytes(whole[: len(whole) // 2])
  assert compile_in(tmp_path)[0] == written - 1


@pytest.mark.parametrize("chosen", [None, "mine", "", "gs://bucket/cache"])
def test_the_folder_is_the_users_or_the_default(tmp_path, monkeypatch, chosen):
  monkeypatch.setattr(compile_cache, "DEFAULT", str(tmp_path / "default"))
  monkeypatch.setattr(paths.importlib.util, "find_spec", lambda name: name)
  monkeypatch.setattr(bucket, "require", lambda name: None)
  monkeypatch.setenv("EPATH_USE_TF", "0")
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
  command += [f"--config.seed={seed}", "--config.train.epochs=1"]
  environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
  done = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return sorted(path.name for path in cache.glob("*-cache"))
