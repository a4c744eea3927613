"""The self-test: good here, and each check fails when its subject is broken."""

import dataclasses
import os
import pathlib
import re
import socket
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny  # noqa: F401  the backbone
from flax import linen as nn

from ncl_jax import losses
from ncl_jax.models import layers
from ncl_jax.preflight import self_check
from ncl_jax.preflight.self_check import arithmetic, machine, result, storage, training
from ncl_jax.runtime import checkpoint, sharding
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
  """One run of all checks: its verdict, its lines, where, and each first step."""
  place = tmp_path_factory.mktemp("machine")
  lines, steps = [], {}
  first_step = training._first_step

  def recorded(config, source, mesh):
    run = first_step(config, source, mesh)

    def kept(*arguments):
      steps[mesh.size] = run(*arguments)
      return steps[mesh.size]

    return kept

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(training, "_first_step", recorded)
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
  assert not list(place.iterdir())


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


# Arithmetic.


def test_the_reference_is_the_definition():
  z = np.random.default_rng(0).normal(size=(3, 2, 4))
  z[1, 0] = 0

  def by_loops(z):
    rows = [row / (np.linalg.norm(row) or 1) for row in z.reshape(6, 4)]
    total = 0
    for i, f in enumerate(rows):
      s = {j: f @ g / 0.5 for j, g in enumerate(rows) if j != i}
      total += np.log(sum(np.exp(list(s.values())))) - s[i + 1 - 2 * (i % 2)]
    return total / 6

  value, gradient = arithmetic.reference_loss(z, 0.5)
  np.testing.assert_allclose(value, by_loops(z), rtol=1e-12)
  direction = np.random.default_rng(1).normal(size=z.shape)
  direction[1, 0] = 0  # there the gradient is 0 by definition
  slope = (by_loops(z + 1e-6 * direction) - by_loops(z - 1e-6 * direction)) / 2e-6
  np.testing.assert_allclose((gradient * direction).sum(), slope, rtol=1e-7)


def test_distance():
  assert result.distance({"a": [3.0, 4.0]}, {"a": [3.0, 5.0]}) == 1 / 34**0.5
  assert result.worst(0.1, result.distance([np.nan], [1.0])) == np.inf


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_coarse_products_are_noticed(monkeypatch, dtype):
  exact = jnp.matmul

  def coarse(a, b, precision):
    a, b = (x.astype(dtype).astype(jnp.float32) for x in (a, b))
    return exact(a, b, precision=precision)

  monkeypatch.setattr(jnp, "matmul", coarse)
  assert arithmetic.matmul().ok is False
  assert arithmetic.default_precision().ok is (None if dtype == "bfloat16" else False)
  assert arithmetic.loss().ok is False


def test_coarse_products_of_one_device_are_noticed(monkeypatch):
  put = jax.device_put

  def on(x, device):
    return jax.tree.map(rounded, put(x, device)) if device.id == 5 else put(x, device)

  monkeypatch.setattr(jax, "device_put", on)
  seen = arithmetic.matmul()
  assert seen.ok is False and f"on {jax.devices()[5]}" in seen.detail


@pytest.mark.parametrize("factor", [1.001, np.nan])
def test_a_wrong_loss_is_noticed(monkeypatch, factor):
  right = losses.nt_xent
  monkeypatch.setattr(losses, "nt_xent", lambda *a, **k: factor * right(*a, **k))
  assert arithmetic.loss().ok is False


def test_a_wrong_gradient_is_noticed(monkeypatch):
  right = losses.nt_xent

  def half(z, temperature):
    value = right(z, temperature=temperature)
    return (value + jax.lax.stop_gradient(value)) / 2

  monkeypatch.setattr(losses, "nt_xent", half)
  assert arithmetic.loss().ok is False


def test_one_wrong_device_is_named(monkeypatch):
  bad = jax.devices()[5]
  to_global = sharding.to_global

  def on_devices(mesh, copies):
    where = [device == bad for device in mesh.devices.flat]
    return to_global(mesh, np.where(np.reshape(where, (-1, 1, 1, 1)), -copies, copies))

  monkeypatch.setattr(sharding, "to_global", on_devices)
  seen = arithmetic.loss()
  assert seen.ok is False and f"on {bad}" in seen.detail


# The step.


SEEDS = 20


@pytest.fixture(scope="module")
def on_one_device():
  """Programs and results that no fault below reaches: made once."""
  return {"float64": {}, "smooth": {}}


@pytest.fixture(params=["float64", "smooth"])
def compare(request, on_one_device, monkeypatch):
  """The comparison as on a CPU, or as on any other device, of a smaller network."""
  known = on_one_device[request.param]
  config = training.small_config()
  config.data.image_size = 8
  config.model.update(
    backbone="resnet_tiny", width=4, projector_hidden=16, projector_out=8
  )
  monkeypatch.setattr(
    training, "small_config", lambda: config.copy_and_resolve_references()
  )
  if request.param == "smooth":
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")

  def run():
    with training._no_edges() as allowed:
      own = training.first_steps()

      def alone(source, state):
        images = source.split("train").images.tobytes()
        if images not in known:
          known[images] = own.alone(source, state)
        return known[images]

      init = known.setdefault("init", own.init)
      programs = dataclasses.replace(own, init=init, alone=alone)
      return [training.compare_steps(programs, s, allowed) for s in range(SEEDS)]

  return run


def own_gradients(z, own):
  """Each device's part of the gradient, never summed: here that of device 5."""
  return jnp.where(own, z, jax.lax.stop_gradient(z))


def rounded(x):
  return x.astype(jnp.bfloat16).astype(x.dtype)


def with_fault(monkeypatch, fault):
  """Breaks every program for more than one device; device 5 is the one at fault."""
  make_step, parts = step_lib.make_step, 1

  def make(config, source, mesh, *rest):
    step = make_step(config, source, mesh, *rest)

    def lower(*arguments):
      nonlocal parts
      parts = mesh.size
      return step.lower(*arguments)

    return types.SimpleNamespace(lower=lower)

  def own(x):
    rows = jnp.arange(len(x)) * parts // len(x) == 5
    return (rows | (parts == 1)).reshape(-1, *[1] * (x.ndim - 1))

  def bad(x):
    return own(x) & (parts > 1)

  nt_xent, conv2d, move = losses.nt_xent, layers.conv2d, layers.BatchNorm._move

  def no_sum(z, **settings):
    return nt_xent(own_gradients(z, own(z)), **settings)

  def own_negatives(z, **settings):
    shards = z.reshape(parts, -1, *z.shape[1:])
    settings = {"temperature": settings["temperature"]}
    return jnp.concatenate([nt_xent(shard, **settings) for shard in shards])

  def other_loss(z, **settings):
    rows = nt_xent(z, **settings)
    return jnp.where(bad(rows), 1.01 * rows, rows)

  def coarse(x, kernel, *settings):
    low = conv2d(rounded(x), rounded(kernel), *settings)
    return jnp.where(bad(low), low, conv2d(x, kernel, *settings))

  def own_statistics(self, grouped, mean, var):
    count = len(grouped) // parts
    return move(self, grouped[-count:], mean, var)

  monkeypatch.setattr(step_lib, "make_step", make)
  where, name, broken = {
    "gradients are not summed": (losses, "nt_xent", no_sum),
    "negatives of its own": (losses, "nt_xent", own_negatives),
    "another loss on one device": (losses, "nt_xent", other_loss),
    "low precision on one device": (layers, "conv2d", coarse),
    "statistics of one device": (layers.BatchNorm, "_move", own_statistics),
  }[fault]
  monkeypatch.setattr(where, name, broken)


def test_a_healthy_machine_passes_on_every_seed(compare):
  found = compare()
  assert [str(seen) for seen in found if not seen.ok] == []
  # Rounding alone, and with room.
  limit = 0.1 * float(found[0].detail.split("allowed ")[1])
  worst = [max(map(float, re.findall(r"\d\.\de-?\d+", s.detail[:-6]))) for s in found]
  assert max(worst) < limit


@pytest.mark.parametrize(
  "fault",
  [
    "gradients are not summed",
    "statistics of one device",
    "another loss on one device",
    "low precision on one device",
    pytest.param("negatives of its own", marks=pytest.mark.slow),
  ],
)
def test_a_fault_is_caught_on_every_seed(compare, monkeypatch, fault):
  with_fault(monkeypatch, fault)
  assert [str(seen) for seen in compare() if seen.ok] == []


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
def test_the_exit_code_is_the_verdict(verdict, code):
  program = (
    "import runpy, sys, types, ncl_jax.preflight as package\n"
    f"fake = types.SimpleNamespace(run=lambda workdir: {verdict})\n"
    "sys.modules['ncl_jax.preflight.self_check'] = package.self_check = fake\n"
    "runpy.run_module('launch.check', run_name='__main__')"
  )
  done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
  assert done.returncode == code, done.stderr


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
