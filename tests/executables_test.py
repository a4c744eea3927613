"""Programs of earlier starts: the same ones, and only where nothing has changed."""

import dataclasses
import os
import pathlib
import subprocess
import sys
import time
import types

import flax
import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from ncl_jax import config as config_lib
from ncl_jax import executables, sharding, writer
from ncl_jax import step as step_lib
from tests import tiny


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Where programs are kept within a test, beside a cache of JAX's own."""
  monkeypatch.setattr(executables, "_folder", tmp_path / "executables")
  # As in a process that begins now, whose code lies there for long.
  monkeypatch.setattr(executables, "_BEGAN", time.time() + 3600)
  executables._code.cache_clear()
  usual = jax.config.jax_compilation_cache_dir
  _use(tmp_path / "jax")
  yield tmp_path / "executables"
  _use(usual)
  executables._code.cache_clear()


def _use(cache):
  jax.config.update("jax_compilation_cache_dir", str(cache))
  compilation_cache.reset_cache()


@dataclasses.dataclass
class Made:
  """Makes a program, and counts how often it was traced."""

  factor: float = 3.0
  callback: bool = False
  traced: int = 0

  def __call__(self, about=(), x=None, name="f", devices=1, options=None):
    def f(x):
      self.traced += 1
      if self.callback:
        jax.debug.callback(lambda x: None, x)
      return {"y": x * self.factor}

    # What a process has looked at once is not looked at again.
    executables._code.cache_clear()
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
  found, sources = kept(folder)
  assert (len(found), len(sources)) == (1 if "about" in change else 2, 2)


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


@pytest.fixture
def module(monkeypatch, tmp_path):
  """A module with a file, among those of this process."""
  file = tmp_path / "map.py"
  file.write_text("factor = 3.0")
  made = types.ModuleType("map")
  made.__file__ = str(file)
  monkeypatch.setitem(sys.modules, "map", made)
  return made


@pytest.mark.parametrize("change", ["edited", "touched", "elsewhere", "gone", "more"])
def test_other_code_is_seen(folder, monkeypatch, module, change):
  file = pathlib.Path(module.__file__)
  made = Made()
  made()
  before = file.stat()
  if change == "edited":
    file.write_text("factor = 35.0")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    made.factor = 35.0
  elif change == "touched":
    os.utime(file, ns=(1, 1))
  elif change == "elsewhere":
    module.__file__ = str(file.with_name("copy.py"))
    os.link(file, module.__file__)  # with the very same dates
  elif change == "gone":
    monkeypatch.delitem(sys.modules, "map")
  else:
    other = types.ModuleType("other")
    other.__file__ = str(file.with_name("other.py"))
    pathlib.Path(other.__file__).write_text("")
    monkeypatch.setitem(sys.modules, "other", other)
  for traced in (2, 2):
    np.testing.assert_array_equal(made(), made.factor * np.arange(4))
    assert made.traced == traced
  # The same text is the same program.
  assert [len(names) for names in kept(folder)] == [1 + (change == "edited"), 2]


def test_code_that_tracing_imports_is_seen(folder, monkeypatch, module):
  """It is not there to be looked at before; it is on record."""
  made = Made()

  def import_it(*_):
    monkeypatch.setitem(sys.modules, "map", module)

  monkeypatch.delitem(sys.modules, "map")
  usual = executables._write
  monkeypatch.setattr(executables, "_write", lambda *a: (usual(*a), import_it()))
  made()
  monkeypatch.delitem(sys.modules, "map")
  made()
  assert made.traced == 1
  monkeypatch.delitem(sys.modules, "map", raising=False)
  pathlib.Path(module.__file__).write_text("factor = 35.0")
  made()
  assert made.traced == 2


@pytest.mark.parametrize("when", ["before", "while it was traced"])
def test_code_that_changes_in_a_running_process_is_not_trusted(
  folder, monkeypatch, module, when
):
  """What runs is then no longer what is in the file."""
  made = Made()
  file = pathlib.Path(module.__file__)
  if when == "before":
    monkeypatch.setattr(executables, "_BEGAN", file.stat().st_ctime - 0.1)
  else:
    usual = executables._packed
    monkeypatch.setattr(
      executables, "_packed", lambda x: (file.write_text("factor = 35.0"), usual(x))[1]
    )
  made()
  assert [len(names) for names in kept(folder)] == [1, 0]
  monkeypatch.undo()


@pytest.mark.parametrize("file", ["/nowhere/at.zip/all.py", "a\0b"])
def test_code_that_cannot_be_looked_at_is_not_trusted(folder, module, file):
  module.__file__ = file
  made = Made()
  made(), made()
  assert made.traced == 2 and [len(names) for names in kept(folder)] == [1, 0]


@pytest.mark.parametrize("file", [None, pathlib.Path("x.py"), 3])
def test_what_is_no_file_is_left_out(folder, module, file):
  module.__file__ = file
  made = Made()
  made(), made()
  assert made.traced == 1


@pytest.mark.parametrize("which", [0, 1], ids=["program", "source"])
@pytest.mark.parametrize("what", ["empty", "half", "other", "deleted"])
def test_what_a_kill_cut_off_is_made_anew(folder, what, which):
  made = Made()
  made()
  path = folder / kept(folder)[which][0]
  whole = path.read_bytes()
  half = whole[: len(whole) // 2]
  # Of what can be decompressed and read, other things than one expects.
  other = b"[1]" if which else executables.zlib.compress(executables.pickle.dumps(3))
  if what == "deleted":
    path.unlink()
  else:
    path.write_bytes({"empty": b"", "half": half, "other": other}[what])
  for _ in range(2):
    np.testing.assert_array_equal(made(), [0, 3, 6, 9])
  assert made.traced == 2


@flax.struct.dataclass
class Old:
  """A tree."""

  y: jax.Array


@flax.struct.dataclass
class New:
  """The same under another name: so is the text of what is made with it."""

  y: jax.Array


def test_the_same_text_with_another_tree_is_another(folder):
  mesh = sharding.make_mesh(jax.devices()[:1])
  x = jax.numpy.arange(4.0)
  whole = sharding.replicated(mesh)
  for wrap in (lambda x: {"y": x}, Old, New):
    function = jax.jit(lambda tree: tree, in_shardings=whole, out_shardings=whole)
    tree = jax.device_put(wrap(x), whole)
    same = executables.compiled("f", function, (tree,), {}, mesh)(tree)
    assert type(same) is type(tree)


def test_the_longest_unused_go(folder, monkeypatch):
  monkeypatch.setattr(executables, "KEPT", 4)
  for factor, name in enumerate("cab"):
    if name == "b":
      Made(0)(name="c")  # used: of the two, a is the older now
    Made(factor)(name=name)
    for path in folder.glob(f"{name}-*"):
      os.utime(path, (factor + 1, factor + 1))
  assert [path.name[0] for path in sorted(folder.iterdir())] == ["b", "b", "c", "c"]


@pytest.mark.parametrize("fault", ["a file", "a callback"])
def test_what_cannot_be_kept_costs_time_alone(folder, fault):
  if fault == "a file":
    folder.write_bytes(b"")
  made = Made(callback=fault == "a callback")
  for _ in range(2):
    np.testing.assert_array_equal(made(), [0, 3, 6, 9])
  assert made.traced == 2
  assert fault == "a file" or kept(folder)[0] == []


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


def test_jax_keeps_its_cache(folder):
  """It is left out for the one program, and then used as before."""
  Made()()
  assert jax.config.jax_enable_compilation_cache
  jax.jit(lambda x: x * 7 + 5)(2.0)
  names = [path.name for path in (folder.parent / "jax").glob("*-cache")]
  assert any("lambda" in name for name in names)
  assert not any(name.startswith("jit_f-") for name in names)


@pytest.mark.parametrize("seed", [0, 2**31, 2**32 + 5, 2**63 - 1])
@pytest.mark.parametrize("wide", [False, True])
def test_a_seed_given_is_a_seed_known(seed, wide):
  config = tiny.config()
  config.seed = seed
  with jax.enable_x64(wide):
    given = jax.jit(jax.random.key)(step_lib.seed_of(config))
    np.testing.assert_array_equal(
      jax.random.key_data(given), jax.random.key_data(jax.random.key(seed))
    )


def test_the_first_state_is_that_of_its_seed(two_blocks, quick_to_compile):
  source = tiny.source()
  config = tiny.config("dino")
  config.seed = 2**32 + 5
  config = config_lib.resolve(config, source)
  mesh = sharding.make_mesh(jax.devices()[:1])
  optimizer, _ = step_lib.make_optimizer(config, 3)
  made = step_lib.make_init(config, source, optimizer, mesh)(step_lib.seed_of(config))
  want = step_lib.build(lambda: step_lib.init_state(config, source, optimizer), mesh)
  jax.tree.map(np.testing.assert_array_equal, made, want)
  config.seed = 6
  other = step_lib.build(lambda: step_lib.init_state(config, source, optimizer), mesh)
  first, second = (x.params["prototypes"] for x in (made, other))
  assert not np.array_equal(first, second)


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
