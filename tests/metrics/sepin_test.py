"""SEPIN against D x B x B brute force, closed forms, and noise that has none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax import metrics
from ncl_jax.errors import InputError


def unit(x):
  norms = np.linalg.norm(x, axis=-1, keepdims=True)
  return np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)


def log_sum_exp(x, axis):
  top = x.max(axis, keepdims=True)
  return np.log(np.exp(x - top).sum(axis)) + top.squeeze(axis)


def brute_force(a, b, temperature, renormalize=True):
  """[D] from the D x B x B similarities of the truly shortened rows, in float64."""
  a, b = unit(np.asarray(a, np.float64)), unit(np.asarray(b, np.float64))

  def loss(x, y):
    s = x @ np.swapaxes(y, -1, -2) / temperature
    both = (log_sum_exp(s, -1) + log_sum_exp(s, -2)) / 2
    return (both - np.diagonal(s, axis1=-2, axis2=-1)).mean(-1)

  keep = 1 - np.eye(a.shape[1])[:, None]
  short = [x[None] * keep for x in (a, b)]
  return loss(*map(unit, short) if renormalize else short) - loss(a, b)


def draw(kind, n=24, d=12, seed=0):
  """Two views [n, d]: noise around a common signal."""
  rng = np.random.default_rng(seed)
  signal = rng.normal(size=(n, d))
  a, b = (signal + 0.5 * rng.normal(size=(n, d)) for _ in range(2))
  if (
    kind == "rectified"
  ):  # with all-zero rows, a dead dimension, and one dead in a view
    a, b = np.maximum(a - 1, 0), np.maximum(b - 1, 0)
    a[:, 3] = b[:, 3] = b[:, 5] = 0
    a[2] = 0
  elif kind == "peaked":  # one entry a row holds all but 1e-8 .. 1e-2 of the length
    peak = rng.integers(0, 4, n)
    for x in (a, b):
      x *= 10.0 ** rng.uniform(-4, -1, (n, 1))
      x[np.arange(n), peak] = 1
    b[:3, peak[:3]] = 0.5
  elif kind == "constant":
    a[:, 1] = b[:, 1] = 2
  elif kind == "duplicates":
    a[1], b[1] = a[0], b[0]
  return a.astype(np.float32), b.astype(np.float32)


KINDS = ["signed", "rectified", "peaked", "constant", "duplicates"]


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_brute_force(kind, renormalize):
  a, b = draw(kind)
  expected = brute_force(a, b, 0.2, renormalize)
  result = metrics.sepin(a, b, temperature=0.2, renormalize=renormalize)
  np.testing.assert_allclose(result, expected, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_brute_force_in_float64(kind, temperature, x64):
  a, b = (x.astype(np.float64) for x in draw(kind))
  result = metrics.sepin(a, b, temperature=temperature)
  assert result.dtype == jnp.float64
  np.testing.assert_allclose(result, brute_force(a, b, temperature), atol=1e-9)


@pytest.mark.parametrize("temperature", [0.1, 0.2, 1.0])
def test_one_hot_features_have_a_closed_form(temperature):
  """n_c of B rows in class c; a row without its only entry is at 0 to all."""
  sizes, dimensions = np.array([2, 5, 1, 8]), 7
  f = np.eye(dimensions, dtype=np.float32)[np.repeat(np.arange(4), sizes)]
  total = sizes.sum()
  near = sizes * np.exp(1 / temperature) + total - sizes
  gain = sizes / total * (np.log(total) + 1 / temperature - np.log(near))
  result = metrics.sepin(f, f, temperature=temperature)
  np.testing.assert_allclose(result[:4], gain, atol=1e-6)
  np.testing.assert_array_equal(result[4:], 0)


def test_noise_has_none_on_the_half_that_did_not_choose():
  """Views that share nothing: within three standard errors of 0, over 40 batches."""
  rng = np.random.default_rng(0)
  sepin = jax.jit(lambda a, b: metrics.sepin(a, b, temperature=1.0))
  halves = [[], []]
  for scores in halves:
    for _ in range(40):
      a, b = rng.normal(size=(2, 64, 64)).astype(np.float32)
      scores.append(np.asarray(sepin(a, b)))
  ranking = np.mean(halves[0], axis=0)
  for k in (1, 5):
    at = jax.jit(lambda s, r=None, k=k: metrics.sepin_at(s, k, ranked_by=r))
    honest = [at(s, ranking) for s in halves[1]]
    error = np.std(honest, ddof=1) / np.sqrt(40)
    assert abs(np.mean(honest)) < 3 * error
    in_sample = [at(s) for s in halves[1]]
    assert np.mean(in_sample) > 10 * error


@pytest.mark.parametrize("kind", KINDS)
def test_a_zero_column_is_exactly_zero_and_a_constant_one_finite(kind):
  a, b = draw(kind)
  a[:, 7] = b[:, 7] = 0
  result = np.asarray(metrics.sepin(a, b, temperature=0.05))
  assert result[7] == 0 and np.all(np.isfinite(result))


def test_empty_features_and_a_single_image():
  nothing = np.zeros((5, 3), np.float32)
  assert metrics.sepin(nothing, nothing, temperature=0.2).tolist() == [0] * 3
  alone = np.ones((1, 3), np.float32)
  np.testing.assert_allclose(metrics.sepin(alone, alone, temperature=0.2), 0, atol=1e-6)


def test_order_views_and_length_are_free():
  a, b = draw("rectified")
  expected = metrics.sepin(a, b, temperature=0.2)
  order = np.random.default_rng(1).permutation(len(a))
  columns = np.random.default_rng(2).permutation(a.shape[1])
  for result in (
    metrics.sepin(b, a, temperature=0.2),
    metrics.sepin(a[order], b[order], temperature=0.2),
    metrics.sepin(3 * a, 0.1 * b, temperature=0.2),
  ):
    np.testing.assert_allclose(result, expected, atol=1e-6)
  permuted = metrics.sepin(a[:, columns], b[:, columns], temperature=0.2)
  np.testing.assert_allclose(permuted, expected[columns], atol=1e-6)


def test_mask_equals_the_subset_under_jit():
  a, b = draw("rectified")
  keep = np.arange(len(a)) % 3 > 0
  a[~keep], b[~keep] = np.nan, np.nan
  expected = metrics.sepin(a[keep], b[keep], temperature=0.2)
  result = jax.jit(lambda a, b, w: metrics.sepin(a, b, temperature=0.2, where=w))(
    a, b, keep
  )
  np.testing.assert_allclose(result, expected, atol=1e-6)


def test_sepin_at():
  scores = np.array([0.3, -0.1, 0.7, 0.2], np.float32)
  assert metrics.sepin_at(scores, 1) == scores[2]
  for k in (None, 4):
    np.testing.assert_allclose(metrics.sepin_at(scores, k), 1.1 / 4, rtol=1e-6)
  chosen = metrics.sepin_at(scores, 2, ranked_by=np.array([0.0, 1.0, 0.0, 2.0]))
  np.testing.assert_allclose(chosen, 0.05, rtol=1e-6)


def test_memory_is_far_below_one_matrix_a_dimension():
  f = jax.ShapeDtypeStruct((256, 512), jnp.float32)
  program = jax.jit(lambda a, b: metrics.sepin(a, b, temperature=0.2))
  memory = program.lower(f, f).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 512 * 256 * 256 * 4 / 10


@pytest.mark.parametrize(
  "call, message",
  [
    (lambda f: metrics.sepin(f, f[:3], temperature=0.2), "two views of the same"),
    (lambda f: metrics.sepin(f[0], f[0], temperature=0.2), r"must be \[N, D\]"),
    (lambda f: metrics.sepin(f, f, temperature=0.0), "temperature = 0.0"),
    (lambda f: metrics.sepin_at(f[0], 4), "k = 4: it must be an int, at least 1 and"),
    (lambda f: metrics.sepin_at(f[0], 0), "k = 0"),
    (lambda f: metrics.sepin_at(f[0], 1, ranked_by=f[0, :2]), r"both must be \[D\]"),
  ],
)
def test_refuses(call, message):
  with pytest.raises(InputError, match=message):
    call(np.ones((4, 3), np.float32))
