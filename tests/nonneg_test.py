"""The transforms against the released code, closed forms and finite differences."""

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.test_util import check_grads

from ncl_jax import nonneg
from ncl_jax.errors import InputError

GOLDEN = golden_numbers.load("nonneg")
NAMES = sorted(nonneg.NAMES)


def value_and_weighted_grad(name, x, w):
  y = nonneg.apply(x, name)
  return y, jax.grad(lambda x: jnp.sum(w * nonneg.apply(x, name)))(x)


@pytest.mark.parametrize("name", NAMES)
def test_golden_float64(name, x64):
  x, w = (jnp.asarray(GOLDEN[key], jnp.float64) for key in "xw")
  y, grad = value_and_weighted_grad(name, x, w)
  assert y.dtype == grad.dtype == jnp.float64
  np.testing.assert_allclose(y, GOLDEN[f"{name}_y_f64"], rtol=1e-9, atol=1e-12)
  np.testing.assert_allclose(grad, GOLDEN[f"{name}_grad_f64"], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_golden_float32(name):
  y, grad = value_and_weighted_grad(name, GOLDEN["x"], GOLDEN["w"])
  np.testing.assert_allclose(y, GOLDEN[f"{name}_y_f64"], rtol=2e-5, atol=2e-6)
  np.testing.assert_allclose(grad, GOLDEN[f"{name}_grad_f64"], rtol=2e-5, atol=2e-6)
  x = GOLDEN["x_extreme"]
  y, grad = value_and_weighted_grad(name, x, np.ones_like(x))
  np.testing.assert_allclose(y, GOLDEN[f"{name}_y_extreme"], rtol=2e-5, atol=2e-6)
  np.testing.assert_allclose(grad, GOLDEN[f"{name}_dydx_extreme"], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
  "name, slope", [("relu", 0.0), ("rep_relu", 0.5), ("gelu", 0.5), ("leaky_relu", 0.01)]
)
def test_derivative_at_zero(name, slope):
  assert jax.grad(nonneg.get(name))(0.0) == np.float32(slope)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_rep_relu_value_is_relu_bit_for_bit(dtype, x64):
  x = jnp.asarray(GOLDEN["x"], dtype)
  y = nonneg.rep_relu(x)
  assert y.dtype == x.dtype
  np.testing.assert_array_equal(y, np.where(x > 0, x, 0))
  grad = jax.vmap(jax.grad(nonneg.rep_relu))(x)
  assert grad.dtype == x.dtype
  assert jnp.all(jnp.isfinite(grad))


def reverse(x):
  return jax.grad(lambda x: jnp.sum(nonneg.rep_relu(x)))(x)


def forward(x):
  return jax.jvp(nonneg.rep_relu, (x,), (jnp.ones_like(x),))[1]


def mapped(x):
  return jax.jit(jax.vmap(jax.grad(nonneg.rep_relu)))(x)


@pytest.mark.parametrize("mode", [reverse, forward, mapped])
def test_rep_relu_derivative_is_that_of_gelu(mode, x64):
  x = np.linspace(-6, 6, 101)
  normal = scipy.stats.norm
  expected = normal.cdf(x) + x * normal.pdf(x)
  np.testing.assert_allclose(mode(jnp.asarray(x)), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", sorted(nonneg.NAMES - {"rep_relu"}))
def test_derivatives_are_those_of_the_values(name, x64):
  x = jnp.array([-3.0, -0.7, 0.3, 2.0])
  check_grads(nonneg.get(name), (x,), order=1, modes=["fwd", "rev"])


def test_sets_say_what_the_maps_do():
  x = GOLDEN["x"]
  y = {name: np.asarray(nonneg.apply(x, name)) for name in NAMES}
  assert len(NAMES) == 8
  assert {name for name in NAMES if np.all(y[name] >= 0)} == nonneg.NON_NEGATIVE
  # From -80 down to -1e-8: exact zeros throughout, not by underflow.
  negative = (x < 0) & (x > -5)
  assert {name for name in NAMES if np.all(y[name][negative] == 0)} == nonneg.SPARSE


@pytest.mark.parametrize(
  "wrong, near", [("reprelu", "rep_relu"), ("Relu", "relu"), (None, None)]
)
def test_unknown_map_is_named_with_the_known_ones(wrong, near):
  with pytest.raises(InputError) as error:
    nonneg.apply(jnp.ones(3), wrong)
  assert repr(wrong) in str(error.value)
  assert all(name in str(error.value) for name in NAMES)
  if near:
    assert f"did you mean {near!r}" in str(error.value)
