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
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st
from numeric_functions import LOSSES, METRICS, D, K, N, draw

from ncl_jax import losses, metrics, nonneg, numerics
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
    "active_dimensions",
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


def unit(x):
  length = np.linalg.norm(x, axis=1, keepdims=True)
  return np.divide(x, length, out=np.zeros_like(x), where=length > 0)


def log_sum(s):
  top = s.max(1)
  return top + np.log(np.exp(s - top[:, None]).sum(1))


def info_nce(a, b, label_of=None):
  """The row's positives: its other view, or with labels all of its class."""
  z = np.stack([a, b], 1).reshape(-1, a.shape[1])
  s = unit(z) @ unit(z).T / 0.2
  label_of = np.arange(len(a)) if label_of is None else label_of
  same = np.repeat(label_of, 2)[:, None] == np.repeat(label_of, 2)[None]
  np.fill_diagonal(same, False)
  np.fill_diagonal(s, -np.inf)
  positives = np.where(same, s, 0).sum(1) / same.sum(1)
  return (log_sum(s) - positives).reshape(-1, 2)


def both_ways(a, b):
  s = unit(a) @ unit(b).T / 0.2
  return (log_sum(s) + log_sum(s.T)) / 2 - np.diag(s)


def of_pairs(a, b):
  s = a @ b.T
  away = s[~np.eye(len(s), dtype=bool)]
  return np.mean(away**2) - 2 * np.mean(np.diag(s))


def cross_correlation(a, b):
  a, b = ((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) for x in (a, b))
  off = a.T @ b / len(a)
  own = np.diag(off)
  return np.sum((1 - own) ** 2) + 0.0051 * (np.sum(off**2) - np.sum(own**2))


def spread(x):
  c = np.cov(x.T)
  hinge = np.maximum(1 - np.sqrt(np.diag(c) + 1e-4), 0)
  return 25 * hinge.mean() + (np.sum(c**2) - np.sum(np.diag(c) ** 2)) / x.shape[1]


def of_true_class(a, w, y):
  s = a @ w.T
  return log_sum(s) - s[np.arange(len(s)), y]


def columns_alike(a):
  a = a[:, (a != 0).any(0)]
  c = np.abs(unit(a.T) @ unit(a.T).T - np.eye(a.shape[1]))
  return c.mean() if c.size else np.nan


def commonest_share(a, y):
  on = [y[np.abs(x) > 1e-5] for x in a.T]
  return np.array([np.bincount(x).max() / len(x) if len(x) else np.nan for x in on])


# From the definitions, in float64.
BY_HAND = {
  "nt_xent": lambda a, b, y: info_nce(a, b),
  "nt_xent, tiled": lambda a, b, y: info_nce(a, b),
  "sup_con": info_nce,
  "sup_con, blocks": info_nce,
  "clip": lambda a, b, y: both_ways(a, b),
  "clip, blocks": lambda a, b, y: both_ways(a, b),
  "spectral": lambda a, b, y: of_pairs(a, b),
  "barlow_twins": lambda a, b, y: cross_correlation(a, b),
  "vicreg": lambda a, b, y: 25 * np.mean((a - b) ** 2) + spread(a) + spread(b),
  "cross_entropy": of_true_class,
  "sparsity": lambda a, b, y: np.mean(np.abs(a) < 1e-5),
  "expected_activation": lambda a, b, y: unit(a).mean(0),
  "orthogonality": lambda a, b, y: columns_alike(a),
  "class_consistency": lambda a, b, y: commonest_share(a, y),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_value_is_that_of_the_formula_in_float64(name):
  for dtype in ("float16", "bfloat16", "float32", "int8"):
    a, b, y = draw()
    a, b = (jnp.asarray(2 * x).astype(dtype) for x in (a, b))
    seen = jax.tree.leaves(COMPILED[name](a, b, y))[0]
    expected = BY_HAND[name](*(np.asarray(x, np.float64) for x in (a, b)), y)
    np.testing.assert_allclose(seen, expected, rtol=2e-5, atol=2e-5)


MAPS = {
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
def test_map_is_its_formula_in_every_dtype(name):
  with jax.numpy_dtype_promotion("strict"):
    for dtype in DTYPES:
      given_ = np.abs(np.arange(-3, 4)) if dtype[0] in "bu" else np.arange(-3, 4)
      z = given_.astype(jnp.dtype(dtype))
      seen = nonneg.get(name)(z)
      wanted = dtype if dtype in FLOATS else "float32"
      assert seen.dtype == jnp.dtype(wanted)
      rounding = 4 * float(jnp.finfo(seen.dtype).eps)
      expected = MAPS[name](z.astype(np.float64))
      np.testing.assert_allclose(
        np.asarray(seen, np.float64), expected, rtol=rounding, atol=rounding
      )
  assert nonneg.get(name)([]).shape == (0,)


@pytest.mark.parametrize("name", [*sorted(nonneg.NAMES), "l2_normalize"])
def test_what_is_no_number_is_not_mapped(name):
  function = numerics.l2_normalize if name == "l2_normalize" else nonneg.get(name)
  for wrong in ("sparse", "text", "complex", "objects", "ragged"):
    with pytest.raises(InputError, match="^z "):
      function(WRONG[wrong](draw()[1]))


# What a whole number or a truth value says of an entry that is none.
HIDDEN = {
  "l0": lambda seen: seen[1] == -1,
  "knn_predict": lambda seen: seen[1] == -1,
  "knn_predict_grid": lambda seen: seen[0, 0, 1] == -1,
  "active_dimensions": lambda seen: True,
  "num_zero_rows": lambda seen: seen == 1,
  "sepin_at": lambda seen: True,  # column 0 alone
}


@pytest.mark.parametrize("name", METRICS)
def test_one_entry_that_is_no_number_is_refused_or_seen_in_the_metric(name):
  a, b, y = (np.asarray(x, np.float32 if x.dtype == float else int) for x in draw())
  before = jax.tree.leaves(COMPILED[name](a, b, y))[0]
  for bad in (np.nan, np.inf, -np.inf):
    spoilt = a.copy()
    spoilt[1, 2] = bad
    seen = jax.tree.leaves(COMPILED[name](spoilt, b, y))[0]
    if name in HIDDEN:
      assert HIDDEN[name](seen)
    else:
      assert np.isnan(seen).sum() > np.isnan(before).sum()
    if name != "sepin_at":
      with pytest.raises(InputError, match="^1 of 16 rows of f"):
        METRICS[name](spoilt, b, y)


def test_no_class_no_centre_and_no_score_are_refused_by_name():
  f = np.ones((2, 3))
  with pytest.raises(InputError, match=r"prototypes \[0, 3\]"):
    losses.scores(f, f[:0])
  with pytest.raises(InputError, match=r"prototypes \[0, 3\]"):
    losses.cross_entropy(f[:0], f[:0], np.zeros(0, int))
  with pytest.raises(InputError, match=r"centre has shape \[2\]"):
    losses.dino_centre(np.zeros(2), np.ones((2, 2, 3)))
  with pytest.raises(InputError, match=r"scores have shape \[0\]"):
    metrics.sepin_at(np.zeros(0))
  with pytest.raises(InputError, match="bias is of"):
    losses.scores(f, f, bias=np.array(["a", "b"]))
  assert np.isnan(metrics.zero_shot(f, f[:0], [-1, -1]))


def test_vectors_of_no_entry_keep_their_shape():
  assert numerics.l2_normalize(np.zeros((2, 0))).shape == (2, 0)
  assert losses.cross_entropy(np.zeros((0, 3)), np.eye(3), np.zeros(0, int)).size == 0


@pytest.mark.parametrize("name", LOSSES)
def test_one_row_or_dimension_is_a_number(name):
  if "scores" in name or "weights" in name or "dino" in name:
    pytest.skip("of a fixed number of rows or dimensions here")
  rng = np.random.default_rng(0)
  for n, d in ((1, 1), (1, 2), (2, 1), (2, 2)):
    a, b = rng.uniform(0.1, 1, (2, n, d)).astype(np.float32)
    if name == "vicreg" and n == 1:
      with pytest.raises(InputError, match="^za "):
        LOSSES[name](a, b, np.zeros(n, int))
    else:
      assert np.isfinite(EVERY[name](a, b, np.zeros(n, int))).all()
