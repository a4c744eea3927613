"""NT-Xent over 1, 2 and 8 devices: the same numbers, what moves, what is held."""

import math
import re

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ncl_jax.losses import nt_xent

ROWS, WHOLE = PartitionSpec("data"), PartitionSpec()


def on_devices(count, block, ring, temperature=None, check_vma=True):
  """The mean loss and its gradient, by z and, where traced, the temperature."""
  mesh = jax.make_mesh(
    (count,), ("data",), (AxisType.Auto,), devices=jax.devices()[:count]
  )

  def part(z, t):
    t = temperature or t
    return nt_xent(z, temperature=t, block_size=block, axis_name="data", ring=ring)

  def mean(z, t):
    losses = jax.shard_map(
      part, mesh=mesh, in_specs=(ROWS, WHOLE), out_specs=ROWS, check_vma=check_vma
    )
    return losses(z, t).mean()

  rows, whole = NamedSharding(mesh, ROWS), NamedSharding(mesh, WHOLE)
  return jax.jit(
    jax.value_and_grad(mean, argnums=0 if temperature else (0, 1)),
    in_shardings=(rows, whole),
    out_shardings=(whole, rows if temperature else (rows, whole)),
  )


@pytest.mark.parametrize("ring", [False, True])
def test_any_number_of_devices(ring):
  z = np.random.default_rng(0).normal(size=(24, 2, 8)).astype(np.float32)
  z[3], z[20, 1] = 0, 0
  losses, dz, _ = exact.nt_xent(z, 0.05)
  # Blocks of 4 do not divide the 6 rows of one of eight devices.
  results = [on_devices(count, 4, ring, 0.05)(z, 0.0) for count in (1, 2, 8)]
  for loss, gradient in results:
    limit = 1e-6 / 0.05
    np.testing.assert_allclose(loss, losses.mean(), rtol=0, atol=limit)
    np.testing.assert_allclose(loss, results[0][0], rtol=0, atol=limit)
    limit = 1e-5 * np.max(np.abs(dz))
    np.testing.assert_allclose(gradient, dz, rtol=0, atol=limit)


@pytest.mark.parametrize(("ring", "check_vma"), [(False, False), (True, True)])
def test_gradient_of_the_temperature(ring, check_vma, x64):
  z = np.random.default_rng(0).normal(size=(24, 2, 8))
  expected = exact.nt_xent(z, 0.3)
  loss, gradients = on_devices(8, None, ring, check_vma=check_vma)(z, 0.3)
  np.testing.assert_allclose(loss, expected[0].mean(), rtol=1e-12)
  for seen, target in zip(gradients, expected[1:], strict=True):
    np.testing.assert_allclose(seen, target, rtol=1e-10, atol=1e-15)


def test_a_loss_of_losses_inside():
  # Differentiated within the shard_map, where the cotangents of others must be known.
  z = np.random.default_rng(0).normal(size=(16, 2, 8)).astype(np.float32)
  mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))

  def gradient(z):
    def squares(z):
      return jnp.sum(nt_xent(z, temperature=0.5, axis_name="data") ** 2)

    return jax.grad(lambda z: jax.lax.psum(squares(z), "data"))(z)

  inside = jax.jit(jax.shard_map(gradient, mesh=mesh, in_specs=ROWS, out_specs=ROWS))(z)
  losses, _, _ = exact.nt_xent(z, 0.5)
  _, dz, _ = exact.nt_xent(z, 0.5, 2 * losses)
  np.testing.assert_allclose(inside, dz, rtol=0, atol=1e-5 * np.max(np.abs(dz)))


def moved(text):
  """Numbers that collectives of a compiled program deliver to a device, by kind."""
  found = {}
  kinds = "all-gather|reduce-scatter|all-reduce|collective-permute|all-to-all"
  for shapes, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", text):
    for shape in re.findall(r"\w+\[([\d,]*)\]", shapes):
      size = math.prod(int(side) for side in shape.split(",") if side)
      found[kind] = found.get(kind, 0) + size
  return found


def compiled(n, d, block, ring):
  z = jax.ShapeDtypeStruct((n, 2, d), jnp.float32)
  return on_devices(8, block, ring, 0.2).lower(z, 0.0).compile()


def test_gathered_moves_half_of_gather_and_scatter():
  n, d = 1024, 128
  sizes = moved(compiled(n, d, 256, ring=False).as_text())
  assert sizes.pop("all-gather") <= 0.52 * 2 * (2 * n * d)
  assert sizes == {"all-reduce": 1}  # the mean


def test_ring_holds_three_parts_and_a_tile():
  n, d, block = 8192, 64, 256
  program = compiled(n, d, block, ring=True)
  local = 2 * n // 8 * d
  tile = block * block + 3 * block * d  # similarities, both features, gradient
  memory = program.memory_analysis().temp_size_in_bytes
  # A few numbers a row beside its features: sums, cotangents.
  assert memory <= 4 * (3 * local + tile + 10 * (2 * n // 8))
  # In a loop: one passage forward, one with log-sums and cotangents back.
  sizes = moved(program.as_text())
  assert sizes == {
    "collective-permute": 2 * local + 2 * (2 * n // 8),
    "all-reduce": 1,
  }
