"""The spectral loss: a loop, the factorisation that it is, its cost and its traffic."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

from ncl_jax.errors import InputError
from ncl_jax.losses import spectral


def loop(z):
  n = len(z)
  pull = np.mean([z[i, 0] @ z[i, 1] for i in range(n)])
  push = [(z[i, 0] @ z[j, 1]) ** 2 for i in range(n) for j in range(n) if i != j]
  return np.mean(push) - 2 * pull


def draw(n, d, seed=0):
  return np.random.default_rng(seed).normal(size=(n, 2, d))


@pytest.mark.parametrize(("n", "d"), [(5, 8), (9, 4)])  # by Gram matrix, by moments
def test_equals_the_loop(n, d, x64):
  z = draw(n, d)
  compute = jax.jit(spectral)
  np.testing.assert_allclose(compute(z), loop(z), rtol=1e-12)
  check_grads(compute, (z,), order=1, modes=["rev"])


def test_one_pair_has_no_negatives():
  z = draw(1, 4).astype(np.float32)
  np.testing.assert_allclose(spectral(z), -2 * z[0, 0] @ z[0, 1], rtol=1e-6)


@pytest.mark.parametrize("d", [2, 40])  # by moments, by Gram matrix
def test_factorises_the_matrix_of_pairs(d, x64):
  # Five views of three images: P(x, x') = sum over images of P(image) P(x|..) P(x'|..).
  rng = np.random.default_rng(0)
  of_image = rng.dirichlet(np.ones(5), size=3)
  joint = of_image.T @ np.diag([0.5, 0.3, 0.2]) @ of_image
  marginal = joint.sum(axis=1)
  a = joint / np.sqrt(np.outer(marginal, marginal))
  first, second = np.divmod(np.arange(25), 5)

  compute = jax.jit(spectral)

  def gap(f):
    scaled = np.sqrt(marginal)[:, None] * f
    loss = compute(np.stack([f[first], f[second]], axis=1), joint.ravel())
    return np.sum((a - scaled @ scaled.T) ** 2) - loss

  gaps = [gap(rng.uniform(size=(5, d))) for _ in range(3)]
  np.testing.assert_allclose(gaps, np.sum(a**2), rtol=1e-12)
  # The best features of rank 2, by Eckart and Young.
  values, vectors = np.linalg.eigh(a)
  best = vectors[:, -2:] * np.sqrt(values[-2:]) / np.sqrt(marginal)[:, None]
  pairs = np.stack([best[first], best[second]], axis=1)
  low = compute(pairs, 7 * joint.ravel())  # weights need not sum to one
  np.testing.assert_allclose(low, -np.sum(values[-2:] ** 2), rtol=1e-12)


def compiled(n, d=32):
  mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,))
  rows = NamedSharding(mesh, PartitionSpec("data"))
  whole = NamedSharding(mesh, PartitionSpec())
  compute = jax.jit(
    jax.value_and_grad(spectral), in_shardings=rows, out_shardings=(whole, rows)
  )
  return compute.lower(jax.ShapeDtypeStruct((n, 2, d), jnp.float32)).compile()


@pytest.mark.parametrize("n", [1024, 65_536])
def test_moves_two_moments_whatever_the_batch(n):
  text = compiled(n).as_text()
  moved = re.findall(
    r"= (.*?) (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", text
  )
  assert [kind for _, kind in moved] == ["all-reduce"]
  shapes = re.findall(r"f32\[([\d,]*)\]", moved[0][0])
  sizes = [math.prod(int(s) for s in shape.split(",") if s) for shape in shapes]
  assert sorted(sizes) == [1, 1, 2 * 32 * 32]


def test_the_same_on_eight_devices():
  z = draw(1024, 32).astype(np.float32) / 6
  loss, gradient = compiled(1024)(z)
  alone, expected = jax.jit(jax.value_and_grad(spectral))(z)
  np.testing.assert_allclose(loss, alone, rtol=1e-6)
  limit = 1e-6 * np.max(np.abs(expected))
  np.testing.assert_allclose(gradient, expected, rtol=0, atol=limit)


@pytest.mark.parametrize("n", [4, 64])
def test_precision(n):
  def products(**settings):
    text = jax.jit(lambda z: spectral(z, **settings)).lower(jnp.ones((n, 2, 8)))
    return re.findall(r"dot_general.*", text.as_text())

  assert all("precision = [HIGHEST, HIGHEST]" in line for line in products())
  assert all("bf16>" in line for line in products(precision="bfloat16"))
  z = draw(n, 8).astype(np.float32)
  low = jax.jit(lambda z: spectral(z, precision="bfloat16"))(z)
  assert 0 < abs(low - loop(z)) < 0.05 * abs(loop(z))


def test_refuses_weights_of_another_shape():
  with pytest.raises(InputError, match=r"weights have shape \[3\]"):
    spectral(draw(4, 2), np.ones(3))


def test_forward_mode_and_second_derivatives(x64):
  # More examples than dimensions: by moments.
  z = np.random.default_rng(0).normal(size=(9, 2, 3))
  check_grads(jax.jit(spectral), (z,), order=2)
