"""The loss in the train step: every implementation, and a learned temperature."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ncl_jax import config as config_lib
from ncl_jax import losses, optimizers
from ncl_jax.errors import InputError
from ncl_jax.methods import implementations
from ncl_jax.runtime import sharding
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib


def mesh_of(devices):
  return jax.make_mesh(
    (devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices]
  )


FORMS = [("tiled", 1), ("gathered", 2), ("ring", 8), ("plain", 8)]


def force(monkeypatch, form):
  """Selects for a small batch the implementation of a large one."""
  monkeypatch.setattr(implementations, "CPU_BLOCK", 4)
  if form != "plain":
    monkeypatch.setattr(implementations, "PLAIN_BYTES", 0)
  if form == "ring":
    monkeypatch.setattr(implementations, "GATHER_BYTES", 0)


@pytest.mark.parametrize(("form", "devices"), FORMS)
def test_every_form_is_the_plain_loss(form, devices, monkeypatch, x64):
  z = np.random.default_rng(0).normal(size=(24, 2, 5))
  expected = losses.nt_xent(z, temperature=0.2)
  force(monkeypatch, form)
  assert implementations.choose(48, 5, devices) == form
  mesh = mesh_of(devices)
  rows = NamedSharding(mesh, PartitionSpec("data"))

  def compute(z, temperature):
    return implementations.each_nt_xent(z, temperature, mesh)

  known = jax.jit(lambda z: compute(z, 0.2), in_shardings=rows)
  np.testing.assert_allclose(known(z), expected, rtol=1e-12)
  traced = jax.jit(compute, in_shardings=(rows, None))
  np.testing.assert_allclose(traced(z, 0.2), expected, rtol=1e-12)
  text = known.lower(z).compile().as_text()
  assert (form == "ring") == ("collective-permute" in text)
  assert (form == "plain") == bool(re.search(rf"\[{48 // devices},48\]", text))


def test_a_batch_of_the_recipe_is_small():
  assert implementations.choose(2 * 256, 256, 1) == "plain"
  # Wide embeddings: over many devices their gradients would be summed on each.
  assert implementations.choose(2 * 4096, 2048, 32) == "gathered"


@pytest.mark.parametrize(("form", "devices"), FORMS)
def test_precision_reaches_every_form(form, devices, monkeypatch):
  force(monkeypatch, form)
  for precision in losses.PRECISIONS:
    settings = 0.2, mesh_of(devices), precision
    text = (
      jax.jit(lambda z, rest=settings: implementations.each_nt_xent(z, *rest))
      .lower(jnp.ones((24, 2, 5)))
      .as_text()
    )
    products = re.findall("dot_general.*", text)
    sign = "[HIGHEST, HIGHEST]" if precision == "highest" else "bf16>"
    assert products and all(sign in line for line in products)


def test_the_temperature_is_capped_and_never_decays():
  optimizer = optimizers.partition(
    optimizers.lars(0.1, weight_decay=1.0),
    optimizers.sgd(0.1),
    optimizers.log_scale(lambda step: 100.0),
  )
  highest = np.log(optimizers.LARGEST_SCALE)
  params = {"backbone": jnp.ones((2, 2)), "loss": {"log_scale": jnp.log(50.0)}}
  state = optimizer.init(params)
  seen = []
  # To the cap in 7 steps of about 0.1, 10 against it; then the gradient turns.
  for sign in (-1.0,) * 17 + (1.0,) * 17 + (0.0,):
    gradients = jax.tree.map(lambda p, s=sign: s * jnp.ones_like(p), params)
    updates, state = optimizer.update(gradients, state, params)
    params = jax.tree.map(jnp.add, params, updates)
    seen.append(float(params["loss"]["log_scale"]))
  assert seen[0] == pytest.approx(np.log(50) + 0.1, abs=1e-3)
  assert max(seen) == pytest.approx(highest, abs=1e-6)
  assert seen[16] == pytest.approx(highest, abs=1e-6)
  assert seen[33] < highest - 0.1


def test_no_decay_without_a_gradient():
  optimizer = optimizers.log_scale(lambda step: 1.0)
  params = {"log_scale": jnp.float32(2.0)}
  updates, _ = optimizer.update(
    {"log_scale": jnp.zeros(())}, optimizer.init(params), params
  )
  assert updates["log_scale"] == 0


def test_refuses_to_learn_from_beyond_the_cap():
  config = tiny.config()
  config.loss.learn_temperature = True
  config.loss.temperature = 0.005
  with pytest.raises(InputError, match="must be at least 0.01"):
    config_lib.validate(config)


def test_a_step_in_tiles_that_learns_its_temperature(monkeypatch):
  force(monkeypatch, "gathered")
  config, source = tiny.config(), tiny.source()
  config.loss.learn_temperature = True
  config.loss.l1 = 0.3
  config.optimizer.warmup_epochs = 0.0
  config_lib.validate(config)
  config = config_lib.resolve(config, source)
  mesh = mesh_of(4)
  optimizer, learning_rate = optimizer_lib.make_optimizer(config, 3)
  step = step_lib.make_step(config, source, mesh, optimizer, learning_rate)
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  before = float(state.params["loss"]["log_scale"])
  assert before == pytest.approx(np.log(5))
  images = {
    name: source.split("train").__dict__[name + "s"][:16] for name in ("image", "label")
  }
  state, values, z = step(state, sharding.to_global(mesh, images))
  assert values["temperature"] == pytest.approx(0.2)

  def mean(log_scale):
    z_ = jax.device_get(z)
    return losses.nt_xent(z_, temperature=jnp.exp(-log_scale)).mean()

  loss, slope = jax.jit(jax.value_and_grad(mean))(jnp.float32(before))
  rows = jax.device_get(z).reshape(-1, z.shape[-1])
  norms = [np.abs(row).sum() / np.linalg.norm(row) for row in rows if row.any()]
  penalty = 0.3 * sum(norms) / len(rows)
  assert penalty > 0.3
  np.testing.assert_allclose(values["loss"], loss + penalty, rtol=1e-5)
  # Adam's first step, whatever the size of the gradient.
  moved = float(state.params["loss"]["log_scale"]) - before
  assert moved == pytest.approx(-np.sign(slope) * optimizers.SCALE_RATE, rel=1e-3)
