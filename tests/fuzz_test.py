"""Every public loss and metric on inputs that nobody planned for.

Whatever the dtype and the layout of an array, a result is that of the same numbers in
float32; what is no array of real numbers is refused by name.
"""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric_functions import LOSSES, METRICS, D, K, N, draw

from ncl_jax import losses, metrics
from ncl_jax.errors import InputError

EVERY = LOSSES | METRICS
NO_JVP = {"nt_xent, tiled"}
DTYPES = (
  ["bool", "float16", "bfloat16", "float32", "float64"]
  + [f"int{bits}" for bits in (8, 16, 32, 64)]
  + [f"uint{bits}" for bits in (8, 16, 32, 64)]
)
FLOATS = ("float16", "bfloat16", "float32")
LAYOUTS = {
  "contiguous": lambda x: x,
  "Fortran": np.asfortranarray,
  "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
  "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
  "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
  "mapped": lambda x: on_disk(x),
  "jax": jnp.asarray,
}
every = pytest.mark.parametrize("name", EVERY)


def on_disk(x):
  with tempfile.TemporaryFile() as file:
    mapped = np.memmap(file, x.dtype, shape=x.shape)
  mapped[:] = x
  return mapped


COMPILED = {name: jax.jit(function) for name, function in EVERY.items()}


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


@every
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


WRONG = {
  "sparse": lambda x: scipy.sparse.csr_array(x),
  "sparse matrix": lambda x: scipy.sparse.csr_matrix(x),
  "text": lambda x: x.astype(str),
  "complex": lambda x: x.astype(complex),
  "objects": lambda x: x.astype(object),
  "ragged": lambda x: [[1.0], [1.0, 2.0]],
  "one axis": lambda x: x[0],
  "three axes": lambda x: x[None],
  "no row": lambda x: x[:0],
  "no column": lambda x: x[:, :0],
}
# Functions of one array [N, D], and of one [N, 2, D].
OF_ROWS = {
  name: getattr(metrics, name)
  for name in (
    "sparsity",
    "l0",
    "live_dimensions",
    "num_zero_rows",
    "correlation",
    "orthogonality",
    "spectral_entropy",
    "effective_rank",
    "expected_activation",
    "activated",
  )
}
Y = np.arange(N) % K
OF_ROWS |= {
  "view_agreement": lambda f: metrics.view_agreement(f, f),
  "class_consistency": lambda f: metrics.class_consistency(f, Y, K),
  "label_entropy": lambda f: metrics.label_entropy(f, Y, K),
  "purity": lambda f: metrics.purity(f, Y, K),
  "purity_at": lambda f: metrics.purity_at(f, Y, K, np.array([1])),
  "knn_predict": lambda f: metrics.knn_predict(f, Y, f, K, 3),
  "retrieval": lambda f: metrics.retrieval(f, Y, 3),
  "sepin": lambda f: metrics.sepin(f, f, temperature=0.2),
  "pair_recall": lambda f: metrics.pair_recall(f, f, Y, [1]),
  "zero_shot": lambda f: metrics.zero_shot(f, f, Y),
  "mutual_information": lambda f: metrics.factors.mutual_information(f, Y[:, None]),
  "clip": lambda f: losses.clip(f, f, temperature=0.2),
  "barlow_twins": lambda f: losses.barlow_twins(f, f),
  "vicreg": lambda f: losses.vicreg(f, f),
  "cross_entropy": lambda f: losses.cross_entropy(f, f, Y),
}
OF_VIEWS = {
  "nt_xent": lambda z: losses.nt_xent(z, temperature=0.2),
  "nt_xent, tiled": lambda z: losses.nt_xent(z, temperature=0.2, block_size=4),
  "sup_con": lambda z: losses.sup_con(z, Y, temperature=0.2),
  "supervised_nt_xent": lambda z: losses.supervised_nt_xent(z, Y, temperature=0.2),
  "spectral": losses.spectral,
  "moco_v3": lambda z: losses.moco_v3(z, z, temperature=0.2),
  "byol": lambda z: losses.byol(z, z),
  "dino": lambda z: losses.dino(z, z, np.zeros(D)),
  "dino_centre": lambda z: losses.dino_centre(np.zeros(D), z),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("name", OF_ROWS | OF_VIEWS)
def test_what_is_no_matrix_is_refused_by_name(name, wrong):
  if (name, wrong) in [("zero_shot", "no row"), ("cross_entropy", "no row")]:
    pytest.skip("no example, no loss: allowed")
  x = draw()[1]
  if name in OF_ROWS:
    x = WRONG[wrong](x)
  elif "sparse" in wrong:
    x = WRONG[wrong](x)  # it has no third axis
  elif wrong == "no row":
    x = np.zeros((0, 2, D))
  else:
    x = WRONG[wrong](np.stack([x, x], 1))
    if wrong == "three axes":
      x = x[0, 0]
    elif wrong == "one axis":
      x = x[0]
    elif wrong == "no column":
      x = x[..., :0]
  with pytest.raises(InputError, match=r"^\w+ "):
    (OF_ROWS | OF_VIEWS)[name](x)
