"""The self-check's products and loss: each fails when numbers are wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax import losses
from ncl_jax.preflight.self_check import arithmetic, result


def rounded(x):
  return x.astype(jnp.bfloat16).astype(x.dtype)


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
  bad, put = jax.devices()[5], jax.device_put
  monkeypatch.setattr(
    jax, "device_put", lambda x, device: put(-x if device == bad else x, device)
  )
  seen = arithmetic.loss()
  assert seen.ok is False and f"on {bad}" in seen.detail
