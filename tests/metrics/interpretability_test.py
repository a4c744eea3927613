"""Statistics without labels against the released code, numpy and closed forms."""

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax import metrics
from ncl_jax.errors import InputError

GOLDEN = golden_numbers.load("metrics")
VARIANTS = ["nonneg", "signed"]
STATISTICS = [
  metrics.sparsity,
  metrics.active_dimensions,
  metrics.num_zero_rows,
  metrics.correlation,
  metrics.orthogonality,
  metrics.spectral_entropy,
  metrics.effective_rank,
  metrics.expected_activation,
]


@jax.jit
def every(f):
  """All of them in one program."""
  return {statistic.__name__: statistic(f) for statistic in STATISTICS}


@pytest.fixture(params=["float32", "float64"])
def precision(request):
  """(dtype, relative tolerance) of a run in float32 and in float64."""
  with jax.enable_x64(request.param == "float64"):
    yield request.param, 1e-5 if request.param == "float64" else 2e-5


def draw(n=40, d=6, seed=0):
  """Rectified features with an all-zero row and a dead dimension."""
  f = np.maximum(np.random.default_rng(seed).normal(size=(n, d)), 0)
  f[3] = 0
  f[:, 2] = 0
  return f.astype(np.float32)


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_training_log(variant, precision):
  dtype, rtol = precision
  golden = {
    key.split("__")[-1]: value
    for key, value in GOLDEN.items()
    if key.startswith(f"{variant}__trainlog__")
  }
  f = golden["input_normalized"].astype(dtype)
  seen = every(f)
  for ours, theirs in (
    ("sparsity", "sparse_vals_ratio"),
    ("orthogonality", "orthogonality"),
    ("spectral_entropy", "effective_rank"),
  ):
    np.testing.assert_allclose(seen[ours], golden[theirs], rtol=rtol)
  live = metrics.active_dimensions(f, threshold=0)
  assert jnp.sum(live) == golden["num_active_dim"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_golden_on_raw_features(variant, precision):
  dtype, rtol = precision
  f = jnp.asarray(GOLDEN[f"features_{variant}"], dtype)
  dead = ~metrics.active_dimensions(f)
  assert jnp.sum(dead) == GOLDEN[f"{variant}__metric_py__dead_dim_sum"]
  # This script of the released code calls entries below 1e-2 zero.
  np.testing.assert_allclose(
    100 * metrics.sparsity(f, threshold=1e-2),
    GOLDEN[f"{variant}__main_eval__sparsity_mean"],
    rtol=rtol,
  )
  kept = GOLDEN[f"{variant}__main_eval__orthogonality_dims_kept"]
  np.testing.assert_allclose(
    metrics.correlation(f)[kept][:, kept],
    GOLDEN[f"{variant}__main_eval__orthogonality_corr"],
    rtol=rtol,
    atol=rtol,
  )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rectified", [True, False])
def test_golden_expected_activation(variant, rectified, precision):
  dtype, rtol = precision
  f = jnp.asarray(GOLDEN[f"features_{variant}"], dtype)
  key = f"{variant}__ea_{'relu' if rectified else 'signed'}"
  value = metrics.expected_activation(jnp.maximum(f, 0) if rectified else f)
  np.testing.assert_allclose(value, GOLDEN[f"{key}__value"], rtol=rtol, atol=1e-12)
  order = GOLDEN[f"{key}__order"]
  alive = GOLDEN[f"{key}__value"][order] != 0
  np.testing.assert_array_equal(
    np.argsort(-value, stable=True)[:24][alive], order[alive]
  )


def test_the_released_median_is_the_lower_one_and_ours_a_mean():
  corr = GOLDEN["signed__main_eval__orthogonality_corr"].astype(np.float64)
  theirs = GOLDEN["signed__main_eval__orthogonality"]
  entries = np.sort(np.abs(corr - np.eye(len(corr))).ravel())
  np.testing.assert_allclose(entries[(entries.size - 1) // 2], theirs, rtol=1e-6)
  assert np.median(entries) > 1.01 * theirs  # an even number of entries
  kept = GOLDEN["signed__main_eval__orthogonality_dims_kept"]
  ours = metrics.orthogonality(GOLDEN["features_signed"][:, kept])
  np.testing.assert_allclose(ours, entries.mean(), rtol=2e-5)


def test_the_released_selection_counts_the_first_batch_twice():
  f = np.maximum(GOLDEN["features_nonneg"], 0)
  norms = np.linalg.norm(f, axis=1, keepdims=True)
  f = np.divide(f, norms, out=np.zeros_like(f), where=norms > 0)
  first = GOLDEN["nonneg__linear_py__batch_bounds"][1]
  theirs = GOLDEN["nonneg__linear_py__sum"]
  np.testing.assert_allclose(theirs, f.sum(0) + f[:first].sum(0), atol=1e-4)
  once = len(f) * np.asarray(metrics.expected_activation(f))
  np.testing.assert_allclose(theirs - once, f[:first].sum(0), atol=1e-4)
  assert np.max(theirs - once) > 10


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_released_scripts_disagree_about_zero_and_ours_is_one(variant):
  f = GOLDEN[f"features_{variant}"]
  at_1e2 = GOLDEN[f"{variant}__main_eval__sparsity_mean"] / 100
  np.testing.assert_allclose(metrics.sparsity(f, threshold=1e-2), at_1e2, rtol=2e-5)
  assert metrics.sparsity(f) < at_1e2 - 0.005
  assert metrics.sparsity(f) == metrics.sparsity(f, threshold=1e-5)


def test_one_hot_features():
  """Four dimensions of six, each with two samples: everything is known."""
  seen = every(np.eye(6)[[0, 1, 2, 3, 0, 1, 2, 3]])
  np.testing.assert_allclose(seen["sparsity"], 5 / 6, rtol=1e-6)
  assert seen["active_dimensions"].tolist() == [True] * 4 + [False] * 2
  assert seen["num_zero_rows"] == 0
  np.testing.assert_allclose(
    seen["correlation"], np.diag([1, 1, 1, 1, 0, 0]), atol=1e-6
  )
  np.testing.assert_allclose(seen["orthogonality"], 0, atol=1e-6)
  np.testing.assert_allclose(seen["spectral_entropy"], np.log(4), rtol=1e-5)
  np.testing.assert_allclose(seen["effective_rank"], 4, rtol=1e-5)
  np.testing.assert_allclose(
    seen["expected_activation"], [0.25] * 4 + [0] * 2, rtol=1e-6
  )


def test_constant_features():
  seen = every(np.full((5, 3), 2.0))
  np.testing.assert_allclose(seen["correlation"], np.ones((3, 3)), rtol=1e-6)
  np.testing.assert_allclose(seen["orthogonality"], 6 / 9, rtol=1e-6)
  np.testing.assert_allclose(seen["effective_rank"], 1, rtol=1e-4)
  np.testing.assert_allclose(seen["expected_activation"], 3**-0.5, rtol=1e-6)


def test_all_zero_features():
  seen = every(np.zeros((5, 3)))
  assert seen["sparsity"] == 1
  assert seen["num_zero_rows"] == 5
  assert not np.any(seen["active_dimensions"])
  assert not np.any(seen["correlation"])
  assert not np.any(seen["expected_activation"])
  for undefined in ("orthogonality", "effective_rank"):
    assert np.isnan(seen[undefined])


@pytest.mark.parametrize("shape", [(50, 8), (8, 50), (8, 8)])
def test_spectral_entropy_is_that_of_the_singular_values(shape):
  f = np.random.default_rng(0).normal(size=shape).astype(np.float32)
  s = np.linalg.svd(f.astype(np.float64), compute_uv=False)
  p = s / s.sum()
  np.testing.assert_allclose(
    metrics.spectral_entropy(f), -np.sum(p * np.log(p)), rtol=2e-5
  )


def test_spectral_entropy_of_collapsed_features():
  """A spectrum that falls over five decades keeps its tail in float32."""
  rng = np.random.default_rng(0)
  n, d = 100, 30
  q, _ = np.linalg.qr(rng.normal(size=(n, d)))
  r, _ = np.linalg.qr(rng.normal(size=(d, d)))
  s = 10.0 ** -np.linspace(0, 5, d)
  p = s / s.sum()
  f = (q * s @ r).astype(np.float32)
  np.testing.assert_allclose(
    metrics.spectral_entropy(f), -np.sum(p * np.log(p)), rtol=1e-4
  )


@pytest.mark.parametrize("statistic", STATISTICS)
def test_mask_equals_subset_and_jit_equals_no_jit(statistic):
  f = draw()
  where = np.arange(len(f)) % 3 > 0
  padded = np.where(where[:, None], f, np.nan)
  expected = statistic(f[where])
  for masked in (
    statistic(padded, where=where),
    jax.jit(lambda f, where: statistic(f, where=where))(padded, where),
  ):
    np.testing.assert_allclose(masked, expected, rtol=1e-5, atol=1e-6)
  moved = statistic(np.random.default_rng(1).permutation(f))
  np.testing.assert_allclose(moved, statistic(f), rtol=1e-5, atol=1e-6)


def test_counts_of_a_rectified_batch():
  f = draw()
  assert metrics.l0(f).tolist() == np.count_nonzero(f, axis=1).tolist()
  assert metrics.l0(f, threshold=0.5).tolist() == (f > 0.5).sum(1).tolist()
  assert metrics.l0(f, where=np.arange(40) > 3)[:4].tolist() == [0] * 4
  assert metrics.num_zero_rows(f) == np.sum(~f.any(axis=1))
  assert metrics.active_dimensions(f).tolist() == f.any(axis=0).tolist()
  np.testing.assert_allclose(metrics.sparsity(f), np.mean(f == 0), rtol=1e-6)


def test_view_agreement_by_sets():
  f_a = draw()
  # Either view has active images that the other lacks.
  lost = np.random.default_rng(3).random((2, *f_a.shape)) < 0.3
  f_a, f_b = (np.where(zeros, 0, f_a) for zeros in lost)
  f_a[:, 2] = f_b[:, 2] = 0
  found = metrics.view_agreement(f_a, f_b)
  for d in range(f_a.shape[1]):
    a, b = (set(np.flatnonzero(f[:, d])) for f in (f_a, f_b))
    expected = len(a & b) / len(a | b) if a | b else np.nan
    np.testing.assert_allclose(found[d], expected, rtol=1e-6)
  assert np.isnan(found[2])
  where = np.arange(len(f_a)) % 3 > 0
  padded = np.where(where[:, None], f_b, np.nan)
  np.testing.assert_allclose(
    metrics.view_agreement(f_a, padded, where=where),
    metrics.view_agreement(f_a[where], f_b[where]),
  )
  with pytest.raises(InputError, match="two views of the same images"):
    metrics.view_agreement(f_a, f_b[:3])


@pytest.mark.parametrize("statistic", STATISTICS)
def test_bfloat16_is_raised_first(statistic):
  f = jnp.asarray(draw(), jnp.bfloat16)
  np.testing.assert_array_equal(statistic(f), statistic(f.astype(jnp.float32)))


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("shape", [(3,), (2, 3, 4), (0, 3)])
def test_refuses_a_shape(statistic, shape):
  with pytest.raises(InputError, match="must be \\[N, D\\]"):
    statistic(jnp.ones(shape))


def test_refuses_a_mask_of_another_length():
  with pytest.raises(InputError, match="where has shape \\[3\\]"):
    metrics.sparsity(jnp.ones((4, 2)), where=jnp.ones(3, bool))
