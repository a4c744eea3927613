"""Values and derivatives of the numeric functions against their formulas in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from formulas import BY_HAND
from numeric_functions import DTYPES, FLOATS, LOSSES, METRICS, NO_JVP, draw

from ncl_jax import nonneg


@pytest.mark.parametrize("name", BY_HAND)
def test_value_and_slope_are_those_of_the_formula_in_float64(name, x64):
  a, b, y = draw()
  # Either view first: `vmap` makes two of each.
  a, b = np.stack([a, b]), np.stack([b, a])
  t = np.random.default_rng(1).normal(size=a.shape) * a.any(2, keepdims=True)

  def everything(a, b, t):
    def value(a):
      return jax.tree.leaves((LOSSES | METRICS)[name](a, b, y))[0]

    if name in METRICS:
      return value(a), None, None
    forward = None if name in NO_JVP else jax.jvp(value, (a,), (t,))[1]
    return value(a), forward, jax.grad(lambda a: jnp.sum(value(a)))(a)

  # Strict in float32 for all, in fuzz_test.py; here the metrics count in int64, too.
  promotion = "strict" if name in LOSSES else "standard"
  with jax.debug_nans(True), jax.numpy_dtype_promotion(promotion):
    seen, forward, gradient = jax.jit(jax.vmap(everything))(a, b, t)
  for i in range(2):

    def formula(step, i=i):
      return BY_HAND[name](a[i] + step * t[i], b[i], y, a[i])

    np.testing.assert_allclose(seen[i], formula(0), rtol=1e-9, atol=1e-9)
    if name in LOSSES:
      slope = (formula(1e-6) - formula(-1e-6)) / 2e-6
      if forward is not None:
        np.testing.assert_allclose(forward[i], slope, rtol=1e-5, atol=1e-6)
      along = np.sum(gradient[i] * t[i])
      np.testing.assert_allclose(along, np.sum(slope), rtol=1e-5, atol=1e-6)


TRANSFORMS = {
  "identity": lambda z: z,
  "relu": lambda z: np.maximum(z, 0),
  "rep_relu": lambda z: np.maximum(z, 0),
  "gelu": lambda z: z * scipy.special.ndtr(z),
  "sigmoid": scipy.special.expit,
  "softplus": lambda z: np.logaddexp(0, z),
  "exp": np.exp,
  "leaky_relu": lambda z: np.where(z > 0, z, 0.01 * z),
}


@pytest.mark.parametrize("name", sorted(nonneg.NAMES))
def test_transform_is_its_formula_in_every_dtype(name):
  with jax.numpy_dtype_promotion("strict"):
    for dtype in DTYPES:
      given_ = np.abs(np.arange(-3, 4)) if dtype[0] in "bu" else np.arange(-3, 4)
      z = given_.astype(jnp.dtype(dtype))
      seen = nonneg.get(name)(z)
      wanted = dtype if dtype in FLOATS else "float32"
      assert seen.dtype == jnp.dtype(wanted)
      rounding = 4 * float(jnp.finfo(seen.dtype).eps)
      expected = TRANSFORMS[name](z.astype(np.float64))
      np.testing.assert_allclose(
        np.asarray(seen, np.float64), expected, rtol=rounding, atol=rounding
      )
  assert nonneg.get(name)([]).shape == (0,)
