"""Every public numeric function on a sharded batch, on Auto and on Explicit axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from numeric_functions import IMAGES, LOSSES, METRICS, draw


def split(axis_type):
  mesh = jax.make_mesh((8,), ("data",), (axis_type,))
  rows = NamedSharding(mesh, PartitionSpec("data"))
  return [jax.device_put(x, rows) for x in draw()]


# On Auto axes losses/families_test.py compares them with one device.
ON_AUTO = ("moco_v3", "byol", "barlow_twins", "vicreg", "dino")


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_equal_one_device(name, x64):
  def total(a, b, y):
    # Not a plain sum: each row has a weight of its own.
    return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(LOSSES[name](a, b, y)))

  compute = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))
  expected = compute(*draw())
  for axis_type in [AxisType.Explicit] + [AxisType.Auto] * (name not in ON_AUTO):
    given = split(axis_type)
    seen = compute(*given)
    for x, y in zip(jax.tree.leaves(seen), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
    if axis_type is AxisType.Explicit:
      assert seen[1][0].sharding.is_equivalent_to(given[0].sharding, 2)


@pytest.mark.parametrize("name", METRICS)
def test_metrics_equal_one_device(name, x64):
  compute = jax.jit(METRICS[name])
  expected = compute(*draw())
  # Explicit axes become Auto within: both are tried where XLA itself has failed.
  for axis_type in [AxisType.Explicit] + [AxisType.Auto] * (name == "activated"):
    seen = compute(*split(axis_type))
    for x, y in zip(jax.tree.leaves(seen), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["nt_xent", "cross_entropy"])
def test_outside_jit_and_below_a_set_mesh(name, x64):
  expected = LOSSES[name](*draw())
  given = split(AxisType.Explicit)
  seen = LOSSES[name](*given)
  np.testing.assert_allclose(seen, expected, rtol=1e-9)
  assert jax.typeof(seen).sharding.spec[0] == "data"  # a row's loss stays with the row
  with jax.set_mesh(given[0].sharding.mesh):
    np.testing.assert_allclose(jax.jit(LOSSES[name])(*given), expected, rtol=1e-9)


@pytest.mark.parametrize("name", IMAGES)
def test_operations_on_images_equal_one_device(name):
  rng = np.random.default_rng(0)
  x, r = rng.random((2, 4, 4, 3), np.float32), np.array([0.5, 1.5], np.float32)
  compute = jax.jit(IMAGES[name])
  expected = compute(x, r)
  for axis_type in (AxisType.Explicit, AxisType.Auto):
    mesh = jax.make_mesh((2,), ("data",), (axis_type,), devices=jax.devices()[:2])
    rows = NamedSharding(mesh, PartitionSpec("data"))
    seen = compute(*(jax.device_put(y, rows) for y in (x, r)))
    np.testing.assert_allclose(seen, expected, atol=1e-6)
