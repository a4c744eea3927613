"""The self-check's step: every fault of one device is caught, on every seed."""

import functools
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny  # noqa: F401  the backbone

from ncl_jax import losses
from ncl_jax.models import layers
from ncl_jax.preflight.self_check import training
from ncl_jax.runtime import compiler
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib

SEEDS = 20

pytestmark = pytest.mark.usefixtures("optimized")


FAULTS = (
  "none",
  "gradients are not summed",
  "statistics of one device",
  "another loss on one device",
  "low precision on one device",
  "negatives of its own",
)


@pytest.fixture(scope="module")
def kept():
  """Programs and what one device gave: made once."""
  return {"float64": {}, "smooth": {}}


@pytest.fixture(params=["float64", "smooth"])
def compare(request, kept, monkeypatch):
  """The comparison as on a CPU, or as on any other device, of a smaller network.

  With a fault's name for the argument, all devices have a program with that fault.
  """
  known = kept[request.param]
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

  first_step, make_init = training._first_step, state_lib.make_init

  def one_device_once(config, source, mesh):
    run = first_step(config, source, mesh)

    def once(source, state):
      images = source.split("train").images.tobytes()
      if images not in known:
        known[images] = run(source, state)
      return known[images]

    return once if mesh.size == 1 else run

  monkeypatch.setattr(training, "_first_step", one_device_once)
  monkeypatch.setattr(
    state_lib, "make_init", lambda *a: known.setdefault("init", make_init(*a))
  )

  def run(fault=None, seeds=SEEDS):
    with training._no_edges() as allowed:
      if fault is not None:
        monkeypatch.setattr(step_lib, "make_step", broken_step(known, fault))
      check = training.comparison(allowed)
      return [check(seed) for seed in range(seeds)]

  return run


def broken_step(known, fault):
  """`make_step` of programs that, for more than one device, have a fault."""
  make_step, number = step_lib.make_step, np.int32(FAULTS.index(fault))

  def make(config, source, mesh, *rest):
    step = make_step(config, source, mesh, *rest)

    @jax.jit
    def broken(number, *arguments):
      with pytest.MonkeyPatch.context() as patch:
        break_devices(patch, number, mesh.size)
        return step(*arguments)

    def compiled(options):
      return functools.partial(known["broken"], number)

    def lower(*arguments):
      if "broken" not in known:
        lowered = broken.lower(number, *arguments)
        known["broken"] = lowered.compile(compiler.cpu_effort(1, mesh))
      return types.SimpleNamespace(compile=compiled)

    return types.SimpleNamespace(lower=lower) if mesh.size > 1 else step

  return make


def rounded(x):
  return x.astype(jnp.bfloat16).astype(x.dtype)


def break_devices(patch, number, parts):
  """Breaks the step while it is traced, by the fault of that number in `FAULTS`.

  The number is an argument of the program, so that one program has all the faults.
  Device 5 is the one at fault.
  """

  def has(fault):
    return number == FAULTS.index(fault)

  def own(x):
    rows = jnp.arange(len(x)) * parts // len(x) == 5
    return rows.reshape(-1, *[1] * (x.ndim - 1))

  nt_xent, conv2d, move = losses.nt_xent, layers.conv2d, layers.BatchNorm._move

  def loss(z, **settings):
    # Each device's part of the gradient, never summed: here that of device 5.
    alone = has("gradients are not summed") & ~own(z)
    rows = nt_xent(jnp.where(alone, jax.lax.stop_gradient(z), z), **settings)
    other = has("another loss on one device") & own(rows)
    rows = jnp.where(other, 1.01 * rows, rows)
    settings = {"temperature": settings["temperature"]}
    shards = z.reshape(parts, -1, *z.shape[1:])
    shards = jax.vmap(functools.partial(nt_xent, **settings))(shards)
    return jnp.where(has("negatives of its own"), shards.reshape(rows.shape), rows)

  def convolution(x, kernel, *settings):
    low = conv2d(rounded(x), rounded(kernel), *settings)
    bad = has("low precision on one device") & own(low)
    return jnp.where(bad, low, conv2d(x, kernel, *settings))

  def statistics(self, grouped, mean, var):
    last = jnp.concatenate([grouped[-len(grouped) // parts :]] * parts)
    alone = has("statistics of one device")
    return move(self, jnp.where(alone, last, grouped), mean, var)

  patch.setattr(losses, "nt_xent", loss)
  patch.setattr(layers, "conv2d", convolution)
  patch.setattr(layers.BatchNorm, "_move", statistics)


def test_a_healthy_machine_passes_on_every_seed(compare):
  found = compare()
  assert [str(seen) for seen in found if not seen.ok] == []
  # Rounding alone, and with room.
  limit = 0.1 * float(found[0].detail.split("allowed ")[1])
  worst = [max(map(float, re.findall(r"\d\.\de-?\d+", s.detail[:-6]))) for s in found]
  assert max(worst) < limit


@pytest.mark.parametrize(
  "fault", [*FAULTS[1:-1], pytest.param(FAULTS[-1], marks=pytest.mark.slow)]
)
def test_a_fault_is_caught_on_every_seed(compare, fault):
  assert [str(seen) for seen in compare(fault) if seen.ok] == []


def test_the_program_with_faults_is_good_without_one(compare):
  assert [str(seen) for seen in compare("none", seeds=2) if not seen.ok] == []
