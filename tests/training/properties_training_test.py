"""What holds of schedules, optimisers, views and factor scores on any drawn input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncl_jax import augment, metrics, optimizers

# Few, the same ones each time, and no folder of them left behind.
few = settings(max_examples=8, deadline=None, derandomize=True, database=None)
seeds = st.integers(0, 2**32 - 1)


@few
@given(
  st.floats(1e-3, 10),
  st.integers(0, 40),
  st.integers(1, 60),
  st.floats(0, 1e-3),
  st.floats(0, 1e-3),
)
def test_warm_up_only_rises_and_the_cosine_only_falls(base, warmup, rest, start, end):
  total = warmup + rest
  schedule = optimizers.warmup_cosine(
    base, warmup_steps=warmup, total_steps=total, start=start, end=end
  )
  rates = np.asarray(jax.vmap(schedule)(jnp.arange(total + 5)))
  assert np.isfinite(rates).all() and rates.max() <= base * (1 + 1e-6)
  assert rates.min() >= min(start, end) * (1 - 1e-5)
  slack = 1e-6 * base
  assert (np.diff(rates[:warmup]) >= -slack).all()
  assert (np.diff(rates[max(warmup, 1) :]) <= slack).all()
  np.testing.assert_allclose(rates[total:], end, atol=slack)


@few
@given(st.floats(1e-3, 10), st.lists(st.integers(1, 30), min_size=1, max_size=4))
def test_steps_down_are_where_they_were_asked_for(base, milestones):
  milestones = sorted(set(milestones))
  schedule = optimizers.step_decay(base, milestones=milestones, factor=0.1)
  for step in range(35):
    passed = sum(step >= m for m in milestones)
    np.testing.assert_allclose(schedule(step), base * 0.1**passed, rtol=1e-5)


def tensors(seed, scale):
  """Two trees alike: a matrix, a matrix of zeros, a vector."""
  rng = np.random.default_rng(seed)
  trees = [
    {"kernel": rng.normal(size=(4, 3)), "dead": np.zeros((2, 3)), "bias": np.ones(3)}
    for _ in range(2)
  ]
  trees[1]["kernel"] *= scale
  return [jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree) for tree in trees]


@pytest.mark.parametrize(
  "make",
  [
    functools.partial(optimizers.lars, weight_decay=1e-4),
    functools.partial(optimizers.lars, weight_decay=0.0, clip=True),
    functools.partial(optimizers.sgd, weight_decay=1e-4),
    functools.partial(optimizers.adamw, weight_decay=1e-4),
  ],
)
@few
@given(seeds, st.sampled_from([0.0, 1e-20, 1e-6, 1.0, 1e6]))
def test_updates_are_finite_alike_in_shape_and_know_no_order(make, seed, scale):
  params, gradient = tensors(seed, scale)
  optimizer = make(0.1)
  updates, _ = optimizer.update(gradient, optimizer.init(params), params)
  for update, p in zip(jax.tree.leaves(updates), jax.tree.leaves(params), strict=True):
    assert update.shape == p.shape and update.dtype == p.dtype
    assert np.isfinite(update).all()
  rows = np.random.default_rng(seed).permutation(4)
  moved = [tree | {"kernel": tree["kernel"][rows]} for tree in (params, gradient)]
  again, _ = optimizer.update(moved[1], optimizer.init(moved[0]), moved[0])
  np.testing.assert_allclose(
    again["kernel"], updates["kernel"][rows], rtol=1e-5, atol=1e-12
  )


@few
@given(seeds, st.floats(0.1, 100))
def test_lars_asks_for_the_direction_of_a_gradient_alone(seed, scale):
  params, gradient = tensors(seed, 1.0)
  optimizer = optimizers.lars(0.1, weight_decay=0.0)
  state = optimizer.init(params)
  once, _ = optimizer.update(gradient, state, params)
  scaled = gradient | {"kernel": gradient["kernel"] * scale}
  again, _ = optimizer.update(scaled, state, params)
  np.testing.assert_allclose(again["kernel"], once["kernel"], rtol=1e-5)


RECIPE = augment.AugmentConfig(size=6, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
views = jax.jit(augment.two_views, static_argnames="config")


@few
@given(seeds, st.sampled_from(["noise", "black", "white", "grey"]))
def test_views_stay_in_range_and_know_only_their_own_image(seed, kind):
  rng = np.random.default_rng(seed)
  images = rng.integers(0, 256, (4, 9, 7, 3)).astype(np.uint8)
  if kind != "noise":
    images[:2] = {"black": 0, "white": 255, "grey": 77}[kind]
  key = jax.random.key(seed)
  seen = np.asarray(views(key, images, config=RECIPE))
  assert seen.shape == (4, 2, 6, 6, 3) and seen.dtype == np.float32
  pixels = seen * np.array(RECIPE.std) + np.array(RECIPE.mean)
  assert pixels.min() > -1e-5 and pixels.max() < 1 + 1e-5
  others = images.copy()
  others[1:] = 255 - others[1:]
  again = np.asarray(views(key, others, config=RECIPE))
  np.testing.assert_array_equal(again[0], seen[0])
  if kind == "black":
    np.testing.assert_allclose(pixels[0], 0, atol=1e-5)


@few
@given(seeds)
def test_scores_of_factors_stay_in_range_and_know_no_order(seed):
  rng = np.random.default_rng(seed)
  n = 60
  factors = np.stack([rng.integers(0, 2, n), rng.integers(0, 3, n)], 1)
  f = rng.normal(size=(n, 4)) + factors[:, [0, 1, 0, 1]] * rng.normal(size=4)
  columns = rng.permutation(4)
  for name in ("sap", "modularity", "explicitness"):
    score = getattr(metrics.factors, name)
    found = score(f, factors)
    assert -1 <= found <= 1 + 1e-9
    # An order of dimensions, other names of the factors: nothing that they measure.
    assert score(f[:, columns], factors[:, ::-1]) == pytest.approx(found, abs=2e-3)
  found = metrics.factors.factor_vae(f, factors, votes=20)
  assert 0 <= found <= 1
  table = rng.random((5, 3)) * (rng.random((5, 3)) < 0.7)
  whole = metrics.factors.dci(table)
  moved = metrics.factors.dci(table[rng.permutation(5)][:, rng.permutation(3)])
  np.testing.assert_allclose(moved, whole, equal_nan=True)
  assert all(-1e-9 <= x <= 1 + 1e-9 for x in whole if not np.isnan(x))
