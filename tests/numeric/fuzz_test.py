"""Every public numeric function on inputs that nobody planned for.

Whatever the dtype and the layout of an array, a result is that of the same numbers in
float32, and that of the formula in float64; what is no array of real numbers is refused
by name.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formulas import BY_HAND
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric_functions import (
  DTYPES,
  EVERY,
  FLOATS,
  HOST,
  LAYOUTS,
  LOSSES,
  METRICS,
  NO_JVP,
  D,
  K,
  N,
  draw,
)

from ncl_jax.errors import InputError

COMPILED = HOST | {name: jax.jit(f) for name, f in (LOSSES | METRICS).items()}


def same_as_in_float32(name, dtype, layout, labels, seed):
  """Small whole numbers: every dtype holds them."""
  rng = np.random.default_rng(seed)
  high = 2 if dtype == "bool" else 4
  a, b = rng.integers(0, high, (2, N, D))
  y = np.arange(N) % K
  cast = np.dtype(jnp.dtype(dtype))
  given_ = [LAYOUTS[layout](x.astype(cast)) for x in (a, b)]
  seen = COMPILED[name](*given_, LAYOUTS[layout](y.astype(labels)))
  expected = COMPILED[name](*(x.astype(np.float32) for x in (a, b)), y.astype(np.int32))
  for x, e in zip(jax.tree.leaves(seen), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(x, e, rtol=1e-4, atol=1e-5)


inputs = given(
  st.sampled_from(sorted(EVERY)),
  st.sampled_from(DTYPES),
  st.sampled_from(sorted(LAYOUTS)),
  st.sampled_from([x for x in DTYPES if "int" in x]),
  st.integers(0, 99),
)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@inputs
def test_dtype_and_layout_change_nothing(name, dtype, layout, labels, seed):
  same_as_in_float32(name, dtype, layout, labels, seed)


@pytest.mark.slow
@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@inputs
def test_dtype_and_layout_change_nothing_in_a_thousand(
  name, dtype, layout, labels, seed
):
  same_as_in_float32(name, dtype, layout, labels, seed)


@pytest.mark.parametrize("name", LOSSES | METRICS)
def test_traced_in_every_way_with_strict_dtypes(name):
  """As shapes alone: nothing is compiled."""
  function = EVERY[name]
  labels = jax.ShapeDtypeStruct((N,), jnp.int32)
  with jax.numpy_dtype_promotion("strict"):
    for dtype in DTYPES:
      if dtype not in ("float64", "int64", "uint64"):
        f = jax.ShapeDtypeStruct((N, D), dtype)
        single = jax.eval_shape(function, f, f, labels)
        stack = jax.ShapeDtypeStruct((3, N, D), dtype)
        many = jax.eval_shape(jax.vmap(function, (0, 0, None)), stack, stack, labels)
        for one, three in zip(*map(jax.tree.leaves, (single, many)), strict=True):
          assert three.shape == (3, *one.shape) and three.dtype == one.dtype
  if name in LOSSES:
    for dtype in FLOATS:
      f = jax.ShapeDtypeStruct((N, D), dtype)

      def total(a, b, y):
        return jnp.sum(function(a, b, y))

      gradient = jax.eval_shape(jax.grad(total), f, f, labels)
      assert gradient.shape == (N, D) and gradient.dtype == f.dtype
      if name not in NO_JVP:
        _, tangent = jax.eval_shape(
          lambda a, b, y: jax.jvp(lambda a: total(a, b, y), (a,), (a,)), f, f, labels
        )
        assert tangent.shape == ()


# What a whole number or a truth value says of an entry that is none.
HIDDEN = {
  "l0": lambda seen: seen[1] == -1,
  "knn_predict": lambda seen: seen[1] == -1,
  "knn_predict_grid": lambda seen: seen[0, 0, 1] == -1,
  "active_dimensions": lambda seen: True,
  "num_zero_rows": lambda seen: seen == 1,
  "sepin_at": lambda seen: True,  # column 0 alone
}


@pytest.mark.parametrize("name", METRICS | HOST)
def test_one_entry_that_is_no_number_is_refused_or_seen_in_the_metric(name):
  a, b, y = (np.asarray(x, np.float32 if x.dtype == float else int) for x in draw())
  before = jax.tree.leaves(COMPILED[name](a, b, y))[0] if name in METRICS else None
  for bad in (np.nan, np.inf, -np.inf):
    spoilt = a.copy()
    spoilt[1, 2] = bad
    if name in METRICS:
      seen = jax.tree.leaves(COMPILED[name](spoilt, b, y))[0]
      if name in HIDDEN:
        assert HIDDEN[name](seen)
      else:
        assert np.isnan(seen).sum() > np.isnan(before).sum()
    if name != "sepin_at":
      with pytest.raises(InputError, match=r"^1 of \d+ rows of "):
        EVERY[name](spoilt, b, y)


# Undefined of a single row, in which every dimension is constant, or of fewer rows than
# the setting of this table needs.
UNDEFINED = ("activated", "purity", "purity_at", "consistency_at_matched_rates")
TOO_FEW = ("vicreg", "sepin_at", "retrieval", "knn", "nearest", "inverted index")


@pytest.mark.parametrize("name", EVERY)
def test_one_or_two_rows_and_dimensions_stop_no_debugger(name):
  for n in (1, 2):
    a, b = np.random.default_rng(0).uniform(0.1, 1, (2, n, n)).astype(np.float32)
    y = np.zeros(n, int)
    try:
      with jax.debug_nans(True), jax.numpy_dtype_promotion("strict"):
        seen = EVERY[name](a, b, y)
    except InputError as error:
      assert name.startswith(TOO_FEW) and str(error).startswith(("k = ", "za "))
      continue
    if name not in UNDEFINED:
      assert all(np.isfinite(x).all() for x in jax.tree.leaves(seen))
    if name in BY_HAND and n == 2 and name != "purity":
      wide = (x.astype(np.float64) for x in (a, b))
      expected = BY_HAND[name](*wide, y, a.astype(np.float64))
      np.testing.assert_allclose(
        jax.tree.leaves(seen)[0], expected, rtol=1e-4, atol=1e-5
      )
