"""The map on some dimensions, and by degrees: the same in training and evaluation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax import losses, optimizers, sharding, update
from ncl_jax import step as step_lib
from ncl_jax.evaluators import program

pytestmark = pytest.mark.usefixtures("two_blocks")

DIMS, PER_EPOCH = 3, 4


@pytest.fixture(scope="module")
def setting():
  config, source = tiny.config("ncl,relu"), tiny.source()
  config.loss.map_dims, config.loss.map_anneal_epochs = DIMS, 2.0
  config_lib.validate(config)
  config = config_lib.resolve(config, source)
  mesh = sharding.make_mesh(jax.devices()[:1])
  optimizer = optimizers.partition(optimizers.sgd(0.1), optimizers.sgd(0.1))
  state = step_lib.build(lambda: step_lib.init_state(config, source, optimizer), mesh)
  return config, source, mesh, optimizer, state


def test_training_sees_the_map_come_in_on_the_first_dimensions(setting):
  config, _, _, optimizer, state = setting
  go = jax.jit(
    update.make_update(
      config, 2, optimizer, lambda _: jnp.asarray(0.1), steps_per_epoch=PER_EPOCH
    )
  )
  views = np.random.default_rng(0).normal(size=(8, 2, 8, 8, 1)).astype(np.float32)

  def seen(step):
    _, values, z = go(state.replace(step=jnp.int32(step)), views, jnp.arange(8) % 2)
    # The loss is of what is given out.
    expected = losses.nt_xent(z, temperature=config.loss.temperature).mean()
    np.testing.assert_allclose(values["loss"], expected, rtol=1e-5)
    return np.asarray(z)

  none, half, whole, later = (seen(step) for step in (0, 4, 8, 11))
  assert none[..., :DIMS].min() < 0
  positive = np.maximum(none[..., :DIMS], 0)
  np.testing.assert_allclose(whole[..., :DIMS], positive, atol=1e-6)
  middle = (positive + none[..., :DIMS]) / 2
  np.testing.assert_allclose(half[..., :DIMS], middle, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(later, whole)
  for z in (half, whole):
    np.testing.assert_array_equal(z[..., DIMS:], none[..., DIMS:])


def test_evaluation_sees_the_same_dimensions(setting):
  config, source, mesh, _, state = setting
  found = program.extract(config, state.items()["model"], source, "test", mesh)
  f, z = found.layer("f", config.loss.map), found.z
  expected = np.concatenate([np.maximum(z[:, :DIMS], 0), z[:, DIMS:]], axis=1)
  expected /= np.linalg.norm(expected, axis=1, keepdims=True)
  np.testing.assert_allclose(f, expected, rtol=1e-5, atol=1e-6)
  assert f[:, :DIMS].min() >= 0 > f[:, DIMS:].min()
