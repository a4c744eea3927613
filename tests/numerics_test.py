"""Normalisation and division at their edges: zero is 0, no number stays no number."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax.numerics import l2_normalize, safe_divide

PACKAGE = pathlib.Path(__file__).parent.parent / "ncl_jax"


def test_no_module_takes_the_keys_that_a_setting_of_jax_chooses():
  for file in PACKAGE.rglob("*.py"):
    code = re.sub(r">>> .*|\.\.\. .*", "", file.read_text(encoding="utf-8"))
    made = re.findall(r"random\.(?:key|PRNGKey)\b.*", code)
    assert all('impl="threefry2x32"' in line or "`" in line for line in made), file


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_row_without_a_length_is_nan_and_the_others_are_as_before(bad, compiled):
  z = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
  z[1] = 0
  normalize = jax.jit(l2_normalize) if compiled else l2_normalize
  before = normalize(z)
  for column in range(3):
    z[2] = 1
    z[2, column] = bad
    after = np.asarray(normalize(z))
    assert np.isnan(after[2]).any()
    np.testing.assert_array_equal(np.delete(after, 2, 0), np.delete(before, 2, 0))
  z[2] = bad
  assert np.isnan(normalize(z)[2]).all()


def test_rows_of_any_finite_size_have_unit_length():
  size = np.array([1e-37, 1e-20, 1, 1e20, 8e37, 9e37, 3.4e38], np.float32)
  z = np.array([0.6, -0.8, 1]) * size[:, None]
  for normalize in (l2_normalize, jax.jit(l2_normalize)):
    f = normalize(z.astype(np.float32))
    expected = np.array([0.6, -0.8, 1]) / np.sqrt(2)
    np.testing.assert_allclose(f, np.tile(expected, (len(size), 1)), rtol=1e-6)


def test_a_zero_row_has_value_and_derivatives_0_and_stops_no_debugger():
  weights = jnp.array([1.0, 2.0, 3.0])

  def along(z):
    return jnp.sum(l2_normalize(z) * weights)

  with jax.debug_nans(True), jax.debug_infs(True):
    for derivative in (along, jax.grad(along), jax.hessian(along)):
      assert not np.any(jax.jit(derivative)(jnp.zeros(3)))


def test_second_derivatives_are_those_of_the_formula(x64):
  z = np.array([[0.3, -2.0, 1.0], [4e37, 1e37, -3e37]])
  second = jax.jit(jax.jacfwd(jax.jacrev(l2_normalize)))
  plain = jax.jit(jax.jacfwd(jax.jacfwd(lambda z: z / jnp.sqrt(jnp.sum(z * z)))))
  for row in z:
    found, expected = second(row), plain(row)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12 / row[0] ** 2)


def test_division_by_0_is_0_but_not_for_what_is_no_number():
  numerator = jnp.array([3.0, 3.0, 0.0, NAN, INF, 1.0, NAN])
  denominator = jnp.array([2.0, 0.0, 0.0, 0.0, 0.0, NAN, 1.0])
  expected = [1.5, 0, 0, NAN, NAN, NAN, NAN]
  np.testing.assert_array_equal(safe_divide(numerator, denominator), expected)
  with jax.debug_nans(True), jax.debug_infs(True):
    for argument in (0, 1):
      slope = jax.jit(jax.grad(lambda *x: safe_divide(*x), argnums=argument))
      assert float(slope(3.0, 0.0)) == 0
