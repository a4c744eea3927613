"""The self-check's step: every fault of one device is caught, on every seed."""

import re
import types

import jax
import jax.numpy as jnp
import pytest
import tiny  # noqa: F401  the backbone

from ncl_jax import losses
from ncl_jax.models import layers
from ncl_jax.preflight.self_check import training
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib

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

  first_step, make_init = training._first_step, state_lib.make_init

  def kept(config, source, mesh):
    run = first_step(config, source, mesh)

    def once(source, state):
      images = source.split("train").images.tobytes()
      if images not in known:
        known[images] = run(source, state)
      return known[images]

    return once if mesh.size == 1 else run

  monkeypatch.setattr(training, "_first_step", kept)
  monkeypatch.setattr(
    state_lib, "make_init", lambda *a: known.setdefault("init", make_init(*a))
  )

  def run():
    with training._no_edges() as allowed:
      check = training.comparison(allowed)
      return [check(seed) for seed in range(SEEDS)]

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
