"""CLIP's loss against the definition: both directions, row blocks, temperatures."""

import jax
import numpy as np
import optax
import pytest
from jax.test_util import check_grads

from ncl_jax.errors import InputError
from ncl_jax.losses import clip


def draw(n=11, d=4):
  za, zb = np.random.default_rng(0).normal(size=(2, n, d))
  return za, zb


def cross_entropies(za, zb, temperature):
  """Of the two classifications, of one's rows among the other's, their mean."""
  a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (za, zb))
  s = a @ b.T / temperature
  labels = np.arange(len(a))
  ce = optax.softmax_cross_entropy_with_integer_labels
  return (ce(s, labels) + ce(s.T, labels)) / 2


@pytest.mark.parametrize("block", [None, 4, 32])
def test_equals_two_classifications(block, x64):
  za, zb = draw()

  def compute(za, zb, temperature):
    return clip(za, zb, temperature=temperature, block_size=block)

  seen = jax.jit(compute)(za, zb, 0.1)
  np.testing.assert_allclose(seen, cross_entropies(za, zb, 0.1), rtol=1e-11)
  if block == 4:
    check_grads(jax.jit(compute), (za, zb, 0.5), order=1, modes=["rev"])


@pytest.mark.parametrize("temperature", [0.005, 1.0])
def test_float32(temperature):
  za, zb = draw()
  za[3] = zb[3] = zb[5] = 0
  low_a, low_b = za.astype(np.float32), zb.astype(np.float32)

  @jax.jit
  @jax.value_and_grad
  def compute(a):
    return clip(a, low_b, temperature=temperature, block_size=4).sum()

  seen, gradient = compute(low_a)
  norms = (np.linalg.norm(x, axis=1, keepdims=True) for x in (za, zb))
  a, b = (x / np.where(n > 0, n, 1) for x, n in zip((za, zb), norms, strict=True))
  s = a @ b.T / temperature
  both = np.logaddexp.reduce(s, axis=1) + np.logaddexp.reduce(s, axis=0)
  expected = np.sum(both / 2 - np.diag(s))
  np.testing.assert_allclose(
    seen, expected, rtol=0, atol=11e-6 * max(1, 1 / temperature)
  )
  assert np.all(np.isfinite(gradient)) and not np.any(gradient[3])


def test_refuses_towers_of_other_shapes():
  with pytest.raises(InputError, match=r"za has shape \[3, 2\] and zb \[4, 2\]"):
    clip(np.ones((3, 2)), np.ones((4, 2)), temperature=0.2)
