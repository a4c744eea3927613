"""The self-test: good here, and each check fails when its subject is broken."""

import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
import tiny  # noqa: F401  the backbone
from flax import linen as nn
from programs import ROOT, call

from ncl_jax import cli
from ncl_jax.preflight import self_check
from ncl_jax.preflight.self_check import arithmetic, machine, storage, training
from ncl_jax.runtime import checkpoint, sharding
from ncl_jax.training import state as state_lib


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
  """All checks, of a small network: verdict, lines, where, and each first step."""
  place = tmp_path_factory.mktemp("machine")
  lines, steps = [], {}
  config, first_step = training.small_config(), training._first_step
  config.data.image_size = 8
  config.model.update(backbone="resnet_tiny", width=4)

  def recorded(config, source, mesh):
    run = first_step(config, source, mesh)

    def kept(*arguments):
      steps[mesh.size] = run(*arguments)
      return steps[mesh.size]

    return kept

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(training, "_first_step", recorded)
    patch.setattr(
      training, "small_config", lambda: config.copy_and_resolve_references()
    )
    patch.setattr(training, "STEPS", 1)
    verdict = self_check.run(place / "new" / "work", lines.append)
  return verdict, lines, place, steps


def test_every_check_passes_here(whole_run):
  verdict, lines, place, _ = whole_run
  assert verdict and lines[-1] == "PASS: all checks"
  words = [line.split()[:2] for line in lines[:-1]]
  names = ["versions", "devices", "matmul", "precision", "loss", "step"]
  # On this machine there may be an accelerator that the tests do not use.
  assert [name for _, name in words] == [*names, "checkpoint", "speed"]
  assert all(word == "PASS" or name == "devices" for word, name in words)
  text = "\n".join(lines)
  assert f"jax {jax.__version__}," in text and "8 x cpu" in text
  assert "8 devices from one" in text and "images/s" in text
  assert "the same bit for bit" in text and "GiB free" in text
  assert not (place / "new").exists()


def test_a_check_that_raises_fails_and_the_others_run(monkeypatch):
  lines = []

  def fault():
    raise RuntimeError("no\n  device")

  for module, name in [
    (machine, "devices"),
    (training, "step"),
    (training, "speed"),
    (arithmetic, "loss"),
  ]:
    monkeypatch.setattr(module, name, fault)
  monkeypatch.setattr(
    storage, "save_and_restore", lambda _: self_check.Result("checkpoint", None, "")
  )
  assert not self_check.run(show=lines.append)
  assert lines[1].endswith("RuntimeError: no device")
  assert lines[2].startswith("PASS  matmul")
  assert lines[6].startswith("NOTE")
  assert lines[-1] == "FAIL: devices, loss, step, speed"


# Devices.


@pytest.mark.parametrize(
  ("asked", "says"), [("", 'pip install -U "jax[cuda13]"'), ("cpu", "is cpu")]
)
def test_an_accelerator_that_is_not_used_is_noted(monkeypatch, asked, says):
  monkeypatch.setattr(
    "glob.glob", lambda pattern: ["/dev/nvidia0"] * ("nvidia" in pattern)
  )
  monkeypatch.setenv("JAX_PLATFORMS", asked)
  seen = machine.devices()
  assert seen.ok is None and says in seen.detail


# The step.


def test_relu_comes_back(monkeypatch):
  relu = nn.relu
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
  with pytest.raises(RuntimeError), training._no_edges():
    assert nn.relu is not relu
    raise RuntimeError
  assert nn.relu is relu


@pytest.mark.parametrize("name", ["loss", "gradient", "statistics"])
def test_a_difference_between_devices_is_noticed(whole_run, monkeypatch, name):
  steps = whole_run[-1]
  change = {"factor": 1.0}

  def first_step(config, source, mesh):
    factor = change["factor"] if mesh.size == 1 else 1
    scaled = jax.tree.map(lambda x: x * factor, steps[mesh.size][name])
    return lambda *_: steps[mesh.size] | {name: scaled}

  monkeypatch.setattr(training, "_first_step", first_step)
  monkeypatch.setattr(state_lib, "make_init", lambda *_: lambda _: {})
  assert training.step().ok
  change["factor"] = 1 / 8
  assert training.step().ok is False


def test_one_device_has_nothing_to_compare_with(whole_run, monkeypatch):
  one = whole_run[-1][1]
  mesh = sharding.make_mesh(jax.devices()[:1])
  monkeypatch.setattr(state_lib, "make_init", lambda *_: lambda _: {})
  monkeypatch.setattr(sharding, "make_mesh", lambda *_: mesh)
  monkeypatch.setattr(training, "_first_step", lambda *_: lambda *_: one)
  seen = training.step()
  assert seen.ok and "one device, nothing to compare" in seen.detail
  wrong = one | {"loss": 1.01 * one["loss"]}
  monkeypatch.setattr(training, "_first_step", lambda *_: lambda *_: wrong)
  assert training.step().ok is False


# The checkpoint.


@pytest.mark.parametrize("item", [0, 1])
def test_a_changed_checkpoint_is_noticed(tmp_path, monkeypatch, item):
  restore = checkpoint.Checkpoints.restore

  def changed(self, step, **items):
    trees = list(restore(self, step, **items))
    leaves, structure = jax.tree.flatten(trees[item])
    leaves[0] = jnp.nextafter(leaves[0], jnp.inf) if leaves[0].ndim else leaves[0] + 1
    trees[item] = jax.tree.unflatten(structure, leaves)
    return trees

  monkeypatch.setattr(checkpoint.Checkpoints, "restore", changed)
  seen = storage.save_and_restore(tmp_path)
  assert seen.ok is False and seen.detail.startswith("1 changed of")
  assert not list(tmp_path.iterdir())


def test_a_checkpoint_that_cannot_be_written(tmp_path, monkeypatch):
  def full(*unused, **trees):
    raise OSError("no space left")

  monkeypatch.setattr(checkpoint.Checkpoints, "save", full)
  (tmp_path / "mine").write_text("stays")
  with pytest.raises(OSError, match="no space"):
    storage.save_and_restore(tmp_path)
  assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# The program.


@pytest.mark.parametrize(("verdict", "code"), [(True, 0), (False, 1)])
def test_the_exit_code_is_the_verdict(monkeypatch, verdict, code):
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  monkeypatch.setattr(self_check, "run", lambda workdir: verdict)
  assert call("check") == (code, "", "")


@pytest.mark.slow
def test_as_a_user_calls_it(tmp_path):
  done = subprocess.run(
    [sys.executable, "-m", "launch.check", f"--workdir={tmp_path}"],
    cwd=ROOT,
    env=os.environ | {"JAX_NUM_CPU_DEVICES": "2"},
    capture_output=True,
    text=True,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert done.stdout.splitlines()[-1] == "PASS: all checks"
  assert "2 devices from one" in done.stdout
  assert not list(tmp_path.iterdir())


# What a process of two runs, each with two devices.
PROCESS = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
index, port, workdir = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", 2, int(index))
from ncl_jax import cli
from ncl_jax.preflight import self_check
sys.exit(not self_check.run(workdir))
"""


@pytest.mark.slow
def test_two_processes(tmp_path):
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]
  processes = [
    subprocess.Popen(
      [sys.executable, "-c", PROCESS, str(index), str(port), str(tmp_path)],
      cwd=ROOT,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )
    for index in range(2)
  ]
  said = [process.communicate(timeout=500)[0] for process in processes]
  assert [process.returncode for process in processes] == [0, 0], said
  assert "4 x cpu" in said[0] and "2 process(es)" in said[0]
  assert "4 devices from one" in said[0] and "PASS: all checks" in said[0]
  assert "PASS" not in said[1]
  assert not list(tmp_path.iterdir())
