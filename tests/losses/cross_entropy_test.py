"""Cross entropy against optax and finite differences; NCE's weights; wrong labels."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.test_util import check_grads

from ncl_jax import nonneg
from ncl_jax.errors import InputError
from ncl_jax.losses import cross_entropy, scores

LABELS = np.array([2, 0, -1, 1, 2])


def draw(seed=0, n=5, k=3, d=4):
  rng = np.random.default_rng(seed)
  return rng.normal(size=(n, d)), rng.normal(size=(k, d)), rng.normal(size=k)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("biased", [True, False])
def test_equals_optax_on_the_same_logits(smoothing, biased, x64):
  f, w, b = draw()
  logits = 1.7 * np.einsum("nd,kd->nk", f, w) + (b[None] if biased else 0)
  target = optax.smooth_labels(jax.nn.one_hot(LABELS, 3, dtype=float), smoothing)
  expected = np.where(LABELS < 0, 0, optax.softmax_cross_entropy(logits, target))
  settings = {
    "bias": b if biased else None,
    "scale": 1.7,
    "label_smoothing": smoothing,
  }
  compute = jax.jit(lambda f, w, y: cross_entropy(f, w, y, **settings))
  np.testing.assert_allclose(compute(f, w, LABELS), expected, rtol=1e-12)
  eager = cross_entropy(f, w, LABELS, **settings)
  np.testing.assert_allclose(eager, expected, rtol=1e-12)
  check_grads(lambda f, w: compute(f, w, LABELS), (f, w), 1, modes=["rev"])


def test_shares_are_mixed_losses(x64):
  f, w, _ = draw()
  a, b = np.array([0, 1, 2, 0, -1]), np.array([1, 1, 0, -1, -1])
  one_hot = [jax.nn.one_hot(labels, 3, dtype=float) for labels in (a, b)]
  mixed = 0.3 * one_hot[0] + 0.7 * one_hot[1]
  given = {"label_smoothing": 0.2}
  expected = 0.3 * cross_entropy(f, w, a, **given) + 0.7 * cross_entropy(
    f, w, b, **given
  )
  np.testing.assert_allclose(cross_entropy(f, w, mixed, **given), expected, rtol=1e-12)


@pytest.mark.parametrize("name", sorted(nonneg.NON_NEGATIVE))
def test_class_weights_never_act_negatively(name):
  # Whatever the raw weights: no score is below 0, and none falls where a feature rises.
  sigma = nonneg.get(name)
  rng = np.random.default_rng(1)
  for size in (0.1, 1.0, 10.0):
    f, w, step = (size * x for x in (*draw(rng.integers(99))[:2], rng.random((5, 4))))
    f, w = f.astype(np.float32), w.astype(np.float32)
    mapped = np.asarray(sigma(f))
    low = np.asarray(scores(mapped, sigma(w)))
    high = np.asarray(scores(mapped + step.astype(np.float32), sigma(w)))
    assert np.all(low >= 0)
    assert np.all(high >= low)


def test_large_scores_stay_finite():
  loss = cross_entropy(np.float32([[1e4]]), np.float32([[1.0], [-1.0]]), LABELS[3:4])
  np.testing.assert_allclose(loss, [2e4])


def test_a_label_out_of_range_is_not_a_number_where_it_cannot_be_seen():
  f, w, _ = draw()
  compute = jax.jit(lambda y: cross_entropy(f, w, y))
  seen = compute(jnp.array([2, 3, -1, -2, 0]))
  assert np.isnan(seen).tolist() == [False, True, False, True, False]
  assert seen[2] == 0


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    (
      {"labels": np.array([0, 1, 2, 3, 0])},
      "labels run from 0 to 3: they must be in 0..2, or -1",
    ),
    ({"labels": np.array([0, 1, -2, 1, 0])}, "labels run from -2 to 1"),
    ({"labels": np.array([0, 1])}, r"labels have shape \[2\].*\[5\]"),
    ({"scale": 0.0}, "scale = 0.0"),
    ({"label_smoothing": 1.0}, "label_smoothing = 1.0: .* at least 0 and below 1"),
    ({"bias": np.ones(4)}, r"bias has shape \[4\]"),
    ({"prototypes": np.ones((3, 5))}, r"features \[5, 4\] and prototypes \[3, 5\]"),
  ],
)
def test_refuses(settings, message):
  f, w, _ = draw()
  given = {"features": f, "prototypes": w, "labels": LABELS} | settings
  with pytest.raises(InputError, match=message):
    cross_entropy(
      given.pop("features"), given.pop("prototypes"), given.pop("labels"), **given
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_bias_of_minus_infinity_leaves_a_class_out(smoothing, x64):
  f, w, _ = draw()
  labels = np.array([0, 1, 1, 0, -1])
  bias = np.array([0.3, -0.2, -np.inf])

  @jax.jit
  @jax.value_and_grad
  def compute(f, w, bias):
    return jnp.sum(cross_entropy(f, w, labels, bias=bias)[:4])

  seen, gradient = compute(f, w, bias)
  expected, target = compute(f, w[:2], bias[:2])
  np.testing.assert_allclose(seen, expected, rtol=1e-12)
  np.testing.assert_allclose(gradient, target, rtol=1e-10, atol=1e-15)
  assert cross_entropy(f, w, np.full(5, 2), bias=bias)[0] == np.inf
  assert not np.isnan(
    cross_entropy(f, w, labels, bias=bias, label_smoothing=smoothing)
  ).any()
