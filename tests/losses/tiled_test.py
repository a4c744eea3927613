"""NT-Xent in tiles: the definition's numbers, linear memory, what was compiled."""

import re

import exact
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax.errors import InputError
from ncl_jax.losses import nt_xent


def draw(n, d=5, seed=0, zeros=True):
  z = np.random.default_rng(seed).normal(size=(n, 2, d))
  if zeros and n > 2:
    z[1], z[2, 1] = 0, 0
  return z


def value_and_gradients(z, temperature, block, c, traced=False):
  """(losses, dz) with a temperature that is known; (losses, dz, dT) with a traced."""

  def weighted(z, t):
    losses = nt_xent(z, temperature=t if traced else temperature, block_size=block)
    return jnp.sum(losses * c), losses

  arguments = (0, 1) if traced else (0,)
  compute = jax.jit(jax.grad(weighted, arguments, has_aux=True))
  gradients, losses = compute(z, jnp.asarray(temperature))
  return losses, *gradients


def check_float32(z, temperature, block, rtol=1e-5):
  n = len(z)
  exact_losses, exact_dz, _ = exact.nt_xent(z.astype(np.float32), temperature)
  c = jnp.full((n, 2), 0.5 / n)
  losses, dz = value_and_gradients(z, temperature, block, c)
  assert losses.dtype == jnp.float32 and dz.dtype == z.dtype
  limit = 1e-6 * max(1, 1 / temperature)
  np.testing.assert_allclose(losses, exact_losses, rtol=0, atol=limit)
  length = np.median(np.linalg.norm(z.astype(np.float32), axis=-1))
  limit = rtol * np.max(np.abs(exact_dz)) + 1e-6 / (2 * n * temperature * length)
  np.testing.assert_allclose(dz.astype(np.float32), exact_dz, rtol=0, atol=limit)


@pytest.mark.parametrize(("block", "traced"), [(2, False), (6, True), (64, True)])
def test_float64_and_any_cotangents(block, traced, x64):
  # A block size of 64 is more than all rows.
  z, c = draw(11), np.random.default_rng(1).normal(size=(11, 2))
  expected = exact.nt_xent(z, 0.3, c)
  seen = value_and_gradients(z, 0.3, block, c, traced)
  for a, b in zip(seen, expected, strict=False):
    np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


# 2 / 85 is the lowest temperature at which no maximum is followed.
@pytest.mark.parametrize("temperature", [0.005, 2 / 85, 1.0])
def test_float32(temperature):
  check_float32(draw(33, 16).astype(np.float32), temperature, block=16)


@pytest.mark.parametrize(("n", "block"), [(1, 8), (9, 16)])
def test_float32_at_other_sizes(n, block):
  check_float32(draw(n, 4, seed=n).astype(np.float32), 0.2, block)


def test_bfloat16_features():
  check_float32(np.asarray(draw(33, 16), jnp.bfloat16), 0.2, 16, rtol=2**-8)


@pytest.mark.parametrize("temperature", [0.005, 2 / 85])
def test_a_row_far_from_all_others(temperature):
  z = np.ones((8, 2, 4), np.float32)
  z[0, 0] = -1
  check_float32(z, temperature, block=4)


def test_nothing_but_empty_rows():
  z = jnp.zeros((5, 2, 3))
  losses, dz = value_and_gradients(z, 0.2, 4, jnp.full((5, 2), 0.1))
  np.testing.assert_allclose(losses, np.log(9), rtol=1e-6)
  assert jnp.all(dz == 0)


def test_products_in_bfloat16_are_near():
  z = draw(33, 16).astype(np.float32)
  expected, _, _ = exact.nt_xent(z, 0.2)
  for block in (None, 16):
    settings = {"temperature": 0.2, "block_size": block, "precision": "bfloat16"}
    losses = jax.jit(lambda z, kw=settings: nt_xent(z, **kw))(z)
    error = np.max(np.abs(losses - expected))
    assert losses.dtype == jnp.float32
    assert 1e-4 < error < 2**-8 / 0.2


def lower(n, d=256, block=512, **settings):
  def mean(z):
    return nt_xent(z, temperature=0.2, block_size=block, **settings).mean()

  shape = jax.ShapeDtypeStruct((n, 2, d), jnp.float32)
  return jax.jit(jax.value_and_grad(mean)).lower(shape)


def test_memory_is_that_of_the_embeddings():
  # Whether the gradient, of the embeddings' size, is a result or a temporary is chance.
  memory = {}
  for rows in (65_536, 131_072, 1_048_576):
    sizes = lower(rows // 2).compile().memory_analysis()
    memory[rows] = sizes.temp_size_in_bytes + sizes.output_size_in_bytes
  assert memory[65_536] <= 1.3 * 65_536 * 256 * 4
  assert memory[131_072] <= 2.1 * memory[65_536]
  assert memory[1_048_576] <= 1.3 * 2**30


def test_no_array_is_larger_than_the_embeddings():
  rows, d, block = 4096, 64, 128
  text = lower(rows // 2, d, block).compile().as_text()
  shapes = re.findall(r"f32\[([\d,]+)\]", text)
  sizes = {np.prod([int(side) for side in shape.split(",")]) for shape in shapes}
  assert max(sizes) == rows * d


@pytest.mark.parametrize("block", [None, 4])
def test_precision_of_the_products(block):
  products = re.findall(r"dot_general.*", lower(8, 4, block).as_text())
  assert products
  assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)
  low = lower(8, 4, block, precision="bfloat16").as_text()
  for line in re.findall(r"dot_general.*", low):
    # Autodiff of the plain loss sums the rounded factors' gradients in float32.
    assert block is None or re.search(r"bf16>, tensor<\S+bf16>\) -> \S+f32>", line)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"block_size": 3}, "block_size is 3"),
    ({"block_size": 0}, "block_size = 0"),
    ({"block_size": 2.0}, "block_size = 2.0"),
    ({"precision": "low"}, "precision = 'low'"),
    ({"ring": True}, "ring = True: it needs axis_name"),
  ],
)
def test_refuses(settings, message):
  with pytest.raises(InputError, match=re.escape(message)):
    nt_xent(draw(4), temperature=0.2, **settings)


@pytest.mark.parametrize("n", [1, 9])
def test_the_form_does_not_change_the_loss_in_bfloat16(n):
  # The positive is rounded as the sum is: no row falls below 0, one alone is 0.
  z = np.random.default_rng(0).normal(size=(n, 2, 16)).astype(np.float32)
  z[0, 1] = z[0, 0]
  settings = {"temperature": 0.02, "precision": "bfloat16"}
  plain, tiled = (
    jax.jit(jax.vjp, static_argnums=0)(
      lambda z, block=block: nt_xent(z, block_size=block, **settings), z
    )[0]
    for block in (None, 4)
  )
  # Similarities of up to 50: their last digit in float32 is 4e-6.
  np.testing.assert_allclose(tiled, plain, rtol=0, atol=2e-5)
  assert np.min(tiled) > -2e-5
  if n == 1:
    np.testing.assert_allclose(tiled, 0, atol=2e-5)


def test_derivatives_of_tiles():
  z = np.random.default_rng(0).normal(size=(5, 2, 3))

  def mean(z, block):
    return nt_xent(z, temperature=0.5, block_size=block).mean()

  with pytest.raises(InputError, match="not jax.jvp: leave block_size"):
    jax.jvp(lambda z: mean(z, 4), (z,), (z,))

  def twice(z, block):
    squares = jax.grad(lambda z: (jax.grad(mean)(z, block) ** 2).sum())
    return squares(z), jax.hessian(mean)(z, block)

  seen, expected = (jax.jit(twice, static_argnums=1)(z, b) for b in (4, None))
  for a, b in zip(seen, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5)
