"""Programs of earlier starts: the same ones, and only where nothing has changed."""

import dataclasses
import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from ncl_jax import executables, sharding, writer
from tests import tiny


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Where programs are kept within a test, beside an empty cache of JAX's own."""
  monkeypatch.setattr(executables, "_folder", tmp_path / "executables")
  usual = jax.config.jax_compilation_cache_dir
  _use(tmp_path / "jax")
  yield tmp_path / "executables"
  _use(usual)


def _use(cache):
  jax.config.update("jax_compilation_cache_dir", str(cache))
  compilation_cache.reset_cache()


@dataclasses.dataclass
class Made:
  """Makes a program, and counts how often it was traced."""

  factor: float = 3.0
  traced: int = 0

  def __call__(self, about=(), x=None, name="f", devices=1, options=None):
    def f(x):
      self.traced += 1
      return {"y": x * self.factor}

    x = jax.numpy.arange(4.0) if x is None else x
    mesh = sharding.make_mesh(jax.devices()[:devices])
    whole = sharding.replicated(mesh)
    function = jax.jit(f, in_shardings=whole, out_shardings=whole)
    x = jax.device_put(x, whole)
    program = executables.compiled(
      name, function, (x,), dict(about), mesh, options=options
    )
    return program(x)["y"]


def kept(folder):
  """The programs, and what they were made from."""
  names = sorted(path.name for path in folder.iterdir())
  return [n for n in names if "." not in n], [n for n in names if n.endswith(".json")]


def test_the_second_is_not_traced(folder):
  made = Made()
  first, second = made(), made()
  assert made.traced == 1
  np.testing.assert_array_equal(first, [0, 3, 6, 9])
  np.testing.assert_array_equal(first, second)
  assert [len(names) for names in kept(folder)] == [1, 1]


@pytest.mark.parametrize(
  "change",
  [
    {"about": {"config": 1}},
    {"x": np.arange(5.0, dtype=np.float32)},
    {"x": np.arange(4, dtype=np.int32)},
    {"devices": 2},
    {"options": {"xla_backend_optimization_level": 0}},
  ],
)
def test_another_one_is_another(folder, change):
  made = Made()
  made()
  want = 3 * change.get("x", np.arange(4))
  np.testing.assert_array_equal(made(**change), want)
  np.testing.assert_array_equal(made(**change), want)
  made()
  assert made.traced == 2
  # The settings alone make no other program.
  programs_, sources = kept(folder)
  assert (len(programs_), len(sources)) == (1 if "about" in change else 2, 2)


def test_the_settings_of_jax_count(folder, monkeypatch):
  made = Made()
  made()
  monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", "") + " ")
  made()
  assert made.traced == 2
  jax.config.update("jax_default_matmul_precision", "float32")
  try:
    made()
  finally:
    jax.config.update("jax_default_matmul_precision", None)
  assert made.traced == 3


@pytest.mark.parametrize("change", ["edited", "touched", "deleted"])
def test_a_changed_file_is_seen(folder, monkeypatch, tmp_path, change):
  file = tmp_path / "map.py"
  file.write_text("factor = 3.0")
  module = types.ModuleType("map")
  module.__file__ = str(file)
  monkeypatch.setitem(sys.modules, "map", module)
  made = Made()
  made()
  if change == "edited":
    before = file.stat()
    file.write_text("factor = 35.0")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    made.factor = 35.0
  elif change == "touched":
    os.utime(file, ns=(1, 1))
  else:
    file.unlink()
  np.testing.assert_array_equal(made(), made.factor * np.arange(4))
  assert made.traced == 2
  np.testing.assert_array_equal(made(), made.factor * np.arange(4))
  assert made.traced == 2
  # The same text is the same program, and what it was made from is known anew.
  assert [len(names) for names in kept(folder)] == [1 + (change == "edited"), 1]


@pytest.mark.parametrize("which", [0, 1], ids=["program", "source"])
@pytest.mark.parametrize("what", ["empty", "half", "other", "deleted"])
def test_what_a_kill_cut_off_is_made_anew(folder, what, which):
  made = Made()
  made()
  path = folder / kept(folder)[which][0]
  whole = path.read_bytes()
  half = whole[: len(whole) // 2]
  if what == "deleted":
    path.unlink()
  else:
    path.write_bytes({"empty": b"", "half": half, "other": whole[::-1]}[what])
  np.testing.assert_array_equal(made(), [0, 3, 6, 9])
  assert made.traced == 2
  if which == 0:
    # JAX's own cache answers, and what it has loaded is not kept: it would lack parts.
    assert kept(folder)[0] == []
    compilation_cache.reset_cache()
    for entry in (folder.parent / "jax").glob("*-cache"):
      entry.unlink()
    np.testing.assert_array_equal(made(), [0, 3, 6, 9])
  traced = made.traced
  np.testing.assert_array_equal(made(), [0, 3, 6, 9])
  assert made.traced == traced


def test_the_oldest_go(folder, monkeypatch):
  monkeypatch.setattr(executables, "KEPT", 4)
  for factor, name in enumerate("abc"):
    Made(factor)(name=name)
    for path in folder.glob(f"{name}-*"):
      os.utime(path, (ord(name), ord(name)))
  assert [path.name[0] for path in sorted(folder.iterdir())] == ["b", "b", "c", "c"]


def test_a_folder_that_cannot_be_costs_time_alone(folder):
  folder.parent.joinpath("executables").write_bytes(b"")
  made = Made()
  made(), made()
  assert made.traced == 2


def test_off_unless_turned_on(folder, monkeypatch):
  monkeypatch.setattr(executables, "_folder", None)
  made = Made()
  made(), made()
  assert made.traced == 2
  assert not folder.exists()
  executables.set_up()
  assert executables._folder == folder.parent / "jax" / "executables"
  monkeypatch.setattr(executables, "_folder", None)
  jax.config.update("jax_compilation_cache_dir", "")
  executables.set_up()
  assert executables._folder is None


def test_one_pair_of_programs_for_all_seeds(tmp_path):
  """A start that finds both trains as one that has compiled its own."""
  data = tiny.npz(tmp_path / "tiny.npz")
  found = [
    _launch(tmp_path / run, data, tmp_path / cache, seed)
    for run, cache, seed in (("zero", "a", 0), ("one", "a", 1), ("own", "b", 1))
  ]
  assert found == [0, 2, 0]
  zero, one, own = (
    writer.read(tmp_path / run / "metrics.jsonl") for run in ("zero", "one", "own")
  )
  assert one == own
  assert one[0]["loss"] != zero[0]["loss"]


def _launch(workdir, data, cache, seed):
  """How many programs a training finds, in a process of its own."""
  command = [sys.executable, "-m", "launch.train", f"--workdir={workdir}"]
  command += [f"--config={tiny.__file__}:ncl", f"--config.data.source=arrays:{data}"]
  command += [f"--config.seed={seed}"]
  environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}
  done = subprocess.run(command, env=environment, capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return done.stderr.count("is that of an earlier start")
