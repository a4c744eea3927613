"""What holds of every numeric function on any finite input, tried on drawn ones.

Shapes and dtypes; that the order of rows and of dimensions means nothing; and that no
finite input gives NaN or infinity, unless the function says so.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric_functions import EVERY, D, K

from ncl_jax import metrics, nonneg

N = 6
# Few, the same ones each time, and no folder of them left behind.
few = settings(max_examples=8, deadline=None, derandomize=True, database=None)


@dataclasses.dataclass(frozen=True)
class Function:
  """A function of two views [N, D] and labels [N], and the axes of what it gives.

  Attributes:
    call: the function.
    out: letters for the axes of the result: N a row, D a dimension, V a view.
    nan: from the first view and the labels, where its page says NaN.
    whole: gives whole numbers.
  """

  call: Callable
  out: str = ""
  nan: Callable = lambda a, y: False
  whole: bool = False
  rtol: float = 1e-4


def dead(a, y):
  return (np.abs(a) <= 1e-5).all(0)


def constant(a, y):
  return (a == a[:1]).all(0)


def nothing(a, y):
  return (a == 0).all()


def alone(a, y):
  """Rows of a class of one: nothing can be retrieved."""
  return (y[None] == y[:, None]).sum(1) == 1


def like(name, out="", **kwargs):
  """The first result of the table's function."""
  return Function(
    lambda a, b, y: jax.tree.leaves(EVERY[name](a, b, y))[0], out, **kwargs
  )


FUNCTIONS = {
  "l2_normalize": like("l2_normalize", "ND"),
  "nt_xent": like("nt_xent", "NV"),
  "nt_xent, tiled": like("nt_xent, tiled", "NV"),
  "sup_con": like("sup_con", "NV"),
  "supervised_nt_xent": like("supervised_nt_xent", "NV"),
  "spectral": like("spectral"),
  "clip": like("clip", "N"),
  "cross_entropy": like("cross_entropy", "N", rtol=1e-3),
  "moco_v3": like("moco_v3", "N"),
  "byol": like("byol", "N"),
  "barlow_twins": like("barlow_twins", rtol=1e-3),
  "vicreg": like("vicreg", rtol=1e-3),
  "dino": like("dino", "N", rtol=1e-3),
  "dino_centre": like("dino_centre", "D"),
  "sparsity": like("sparsity"),
  "l0": like("l0", "N", whole=True),
  "active_dimensions": like("active_dimensions", "D", whole=True),
  "num_zero_rows": like("num_zero_rows", whole=True),
  "correlation": like("correlation", "DD"),
  "orthogonality": like("orthogonality", nan=nothing),
  "spectral_entropy": like("spectral_entropy", nan=nothing, rtol=1e-3),
  "effective_rank": like("effective_rank", nan=nothing, rtol=1e-3),
  "expected_activation": like("expected_activation", "D"),
  "class_consistency": like("class_consistency", "D", nan=dead),
  "label_entropy": like("label_entropy", "D", nan=dead),
  "purity": like("purity", "D", nan=constant),
  "naming_accuracy": Function(
    lambda a, b, y: metrics.naming_accuracy(b, y, a, y, K, signed=True)
  ),
  "energy_weighted_purity": like("energy_weighted_purity", nan=nothing),
  "purity_at": Function(
    lambda a, b, y: metrics.purity_at(a, y, K, jnp.array([3]))[:, 0], "D", nan=constant
  ),
  "retrieval": like("retrieval", "N"),
  "average precision": Function(
    lambda a, b, y: EVERY["retrieval"](a, b, y)[1], "N", nan=alone
  ),
  "knn_scores": like("knn_scores", "NK"),
  "knn_predict": like("knn_predict", "N", whole=True),
  "knn_predict_grid": Function(
    lambda a, b, y: metrics.knn_predict_grid(b, y, a, K, [1, 3], [0.1])[1, 0],
    "N",
    whole=True,
  ),
  "scores": like("scores", "NN"),
  "view_agreement": Function(
    lambda a, b, y: metrics.view_agreement(a, jnp.where(b > 0, a, 0)),
    "D",
    nan=dead,
  ),
  "sepin_at": Function(
    lambda a, b, y: metrics.sepin_at(metrics.sepin(a, b, temperature=0.2), 2),
    rtol=1e-3,
  ),
  "sepin": like("sepin", "D", rtol=1e-3),
}
SIZES = {"N": N, "D": D, "V": 2, "K": K}
COMPILED = {name: jax.jit(f.call) for name, f in FUNCTIONS.items()}
every = pytest.mark.parametrize("name", FUNCTIONS)


@st.composite
def inputs(draw, ties=True):
  """Features of two views, and labels: with all-zero, equal rows, dead dimensions."""
  random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
  a, b = random.standard_normal((2, N, D)).astype(np.float32)
  if draw(st.booleans()):
    a, b = np.maximum(a, 0), np.maximum(b, 0)
  if ties:
    scale = draw(st.sampled_from([1.0, 1e-20, 1e-6, 1e4]))
    a, b = a * np.float32(scale), b * np.float32(scale)
    form = draw(st.sampled_from(["as is", "empty rows", "dead", "equal", "nothing"]))
    if form == "empty rows":
      a[:2], b[1:3] = 0, 0
    elif form == "dead":
      a[:, 0], b[:, 0], b[:, 1] = 0, 0, 1
    elif form == "equal":
      a[:], b[:] = a[:1], a[:1]
    elif form == "nothing":
      a[:], b[:] = 0, 0
  return a, b, random.integers(0, K, N).astype(np.int32)


@every
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_shapes_and_dtypes(name, dtype):
  function = FUNCTIONS[name]
  f = jax.ShapeDtypeStruct((N, D), dtype)
  out = jax.eval_shape(function.call, f, f, jax.ShapeDtypeStruct((N,), jnp.int32))
  assert out.shape == tuple(SIZES[axis] for axis in function.out)
  if function.whole:
    assert out.dtype in (jnp.int32, jnp.bool_)
  elif name == "l2_normalize":
    assert out.dtype in (dtype, jnp.float32)
  else:
    assert out.dtype == jnp.float32  # features of less are raised first


@every
@few
@given(inputs())
def test_finite_input_gives_finite_output(name, drawn):
  seen = np.asarray(COMPILED[name](*drawn))
  undefined = FUNCTIONS[name].nan(drawn[0], drawn[2])
  np.testing.assert_array_equal(np.isnan(seen), undefined | np.zeros_like(seen, bool))
  assert not np.isinf(seen).any()


@every
@few
@given(inputs(ties=False), st.integers(0, 2**32 - 1))
def test_the_order_of_rows_and_dimensions_means_nothing(name, drawn, seed):
  function, (a, b, labels) = FUNCTIONS[name], drawn
  random = np.random.default_rng(seed)
  rows, columns = random.permutation(N), random.permutation(D)
  if name in ("cross_entropy", "scores"):
    rows = np.arange(N)  # the first rows of b stand for classes
  expected = np.asarray(COMPILED[name](a, b, labels))
  for axis, letter in enumerate(function.out):
    if letter in "ND":
      order = rows if letter == "N" else columns
      expected = np.take(expected, order, axis)
  moved = (x[rows][:, columns] for x in (a, b))
  seen = np.asarray(COMPILED[name](*moved, labels[rows]))
  scale = np.nanmax(np.abs(expected), initial=1e-6)
  np.testing.assert_allclose(
    seen, expected, rtol=function.rtol, atol=function.rtol * scale
  )


@pytest.mark.parametrize("name", sorted(nonneg.NAMES))
@few
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=5, max_size=5))
def test_transforms_act_on_each_entry_alone(name, values):
  x = np.array(values, np.float32)
  y = np.asarray(TRANSFORMS[name](x))
  assert y.shape == x.shape and y.dtype == np.float32
  np.testing.assert_array_equal(np.asarray(TRANSFORMS[name](x[::-1])), y[::-1])
  if name in nonneg.NON_NEGATIVE:
    assert not (y < 0).any()
  if name != "exp":  # beyond 88 it has no float32
    assert np.isfinite(y).all()


TRANSFORMS = {name: jax.jit(nonneg.get(name)) for name in nonneg.NAMES}


@few
@given(inputs(), st.integers(0, 2**32 - 1))
def test_factor_metrics_know_no_order(drawn, seed):
  """Of numpy, without labels: scores of dimensions against factors."""
  f, random = drawn[0], np.random.default_rng(seed)
  factors = np.stack([np.arange(N) % 2, random.permutation(N) % 3], 1)
  rows, columns = random.permutation(N), random.permutation(D)
  moved = (f[rows][:, columns], factors[rows][:, ::-1])
  information = metrics.factors.mutual_information(f, factors, bins=3)
  assert information.shape == (D, 2) and information.dtype == np.float64
  assert np.isfinite(information).all() and (information >= -1e-12).all()
  np.testing.assert_allclose(
    metrics.factors.mutual_information(*moved, bins=3),
    information[columns][:, ::-1],
    atol=1e-12,
  )
  gap = metrics.factors.mig(f, factors, bins=3)
  assert 0 <= gap <= 1 + 1e-12
  assert metrics.factors.mig(*moved, bins=3) == pytest.approx(gap)
