"""Optimisers and schedule against the released code's numbers and numpy."""

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ncl_jax import optimizers
from ncl_jax.errors import InputError

MAIN = ("w2d", "conv", "bias", "gamma", "w_zero", "w_zgrad", "conv_hwio")
PROBE = {"cls_w": "kernel", "cls_b": "bias"}


def table(rates):
  """A schedule that reads the learning rates off a list."""
  return lambda step: jnp.asarray(rates, float)[step]


def descend(optimizer, params, gradients):
  """Parameters after each step; `gradients` has one more axis, the steps, in front."""
  update = jax.jit(optimizer.update)
  state = optimizer.init(params)
  for step in range(len(jax.tree.leaves(gradients)[0])):
    at_step = jax.tree.map(lambda g, i=step: g[i], gradients)
    updates, state = update(at_step, state, params)
    params = optax.apply_updates(params, updates)
    yield params


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("exclude", [False, True])
def test_lars_and_partition_match_the_released_code(clip, exclude):
  golden = golden_numbers.load("lars")
  settings = {
    "momentum": float(golden["momentum"]),
    "trust_coefficient": float(golden["eta"]),
    "clip": clip,
    "exclude_1d": exclude,
  }
  decay = float(golden["weight_decay_main"])
  optimizer = optimizers.partition(
    optimizers.lars(table(golden["lr_main"]), weight_decay=decay, **settings),
    optimizers.lars(table(golden["lr_classifier"]), weight_decay=0.0, **settings),
  )

  def tree(prefix):
    return {
      "backbone": {name: golden[f"{prefix}_{name}"] for name in MAIN},
      "probe": {ours: golden[f"{prefix}_{name}"] for name, ours in PROBE.items()},
    }

  expected = tree(f"clip{clip:d}_excl{exclude:d}")
  for step, params in enumerate(descend(optimizer, tree("p0"), tree("g"))):
    jax.tree.map(
      lambda p, e, i=step: np.testing.assert_allclose(p, e[i], rtol=1e-5, atol=1e-7),
      params,
      expected,
    )


def lars_in_numpy(p, gradients, rates, decay, momentum, eta, clip, exclude):
  m = np.zeros_like(p)
  for g, rate in zip(gradients, rates, strict=True):
    d, size, slope = g, np.sqrt(np.sum(p**2)), np.sqrt(np.sum(g**2))
    if not (exclude and p.ndim == 1) and size > 0 and slope > 0:
      ratio = eta * size / (slope + decay * size + 1e-8)
      d = (g + decay * p) * (min(ratio / rate, 1) if clip else ratio)
    m = momentum * m + d
    p = p - rate * m
    yield p


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("exclude", [False, True])
def test_lars_with_a_changing_rate(clip, exclude, x64):
  rng = np.random.default_rng(0)
  rates = [0.01, 0.5, 2.0, 0.1, 0.003, 1.0]
  shapes = {"matrix": (4, 3), "vector": (5,), "kernel": (3, 3, 2, 4), "zero": (2, 2)}
  params = {n: rng.normal(size=s) for n, s in shapes.items()}
  gradients = {n: rng.normal(size=(6, *s)) for n, s in shapes.items()}
  params["zero"] *= 0
  gradients["matrix"][2] = 0
  settings = (0.3, 0.8, 0.05, clip, exclude)
  optimizer = optimizers.lars(
    table(rates),
    weight_decay=0.3,
    momentum=0.8,
    trust_coefficient=0.05,
    clip=clip,
    exclude_1d=exclude,
  )
  expected = {
    n: list(lars_in_numpy(params[n], gradients[n], rates, *settings)) for n in shapes
  }
  for step, seen in enumerate(descend(optimizer, params, gradients)):
    for name in shapes:
      np.testing.assert_allclose(seen[name], expected[name][step], rtol=1e-11)


def test_lars_of_vectors_is_momentum_sgd():
  rng = np.random.default_rng(0)
  params = {"bias": np.float32(rng.normal(size=5)), "scale": np.ones(3, np.float32)}
  gradients = {"bias": rng.normal(size=(4, 5)), "scale": rng.normal(size=(4, 3))}
  gradients = jax.tree.map(np.float32, gradients)
  ours = optimizers.lars(0.1, weight_decay=0.1, clip=True)
  for a, b in zip(
    descend(ours, params, gradients),
    descend(optax.sgd(0.1, momentum=0.9), params, gradients),
    strict=True,
  ):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), a, b)


def test_lars_state_is_readable_and_a_zero_rate_stands_still():
  params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
  optimizer = optimizers.lars(0.0, weight_decay=0.1, clip=True)
  state = optimizer.init(params)
  updates, state = optimizer.update(params, state, params)
  assert isinstance(state, optimizers.LarsState) and state.step == 1
  assert jax.tree.structure(state.momentum) == jax.tree.structure(params)
  assert all((u == 0).all() for u in jax.tree.leaves(updates))
  assert all(np.isfinite(m).all() for m in jax.tree.leaves(state.momentum))
  with pytest.raises(ValueError, match="needs the parameters"):
    optimizer.update(params, state)


@pytest.mark.parametrize(
  ("dtype", "rtol", "atol"), [(np.float64, 1e-12, 1e-13), (np.float32, 1e-6, 0)]
)
def test_schedule_matches_the_released_code(dtype, rtol, atol):
  golden = golden_numbers.load("schedule")
  with jax.enable_x64(dtype == np.float64):
    for group, base in (("main", "base_lr"), ("classifier", "base_lr_classifier")):
      schedule = optimizers.warmup_cosine(
        float(golden[base]),
        warmup_steps=int(golden["warmup_steps"]),
        total_steps=int(golden["total_steps"]),
        start=float(golden["warmup_start_lr"]),
        end=float(golden["eta_min"]),
      )
      rates = jax.jit(jax.vmap(schedule))(golden["steps"])
      assert rates.dtype == dtype
      np.testing.assert_allclose(rates, golden[f"lr_{group}"], rtol, atol)
      np.testing.assert_allclose(rates, golden[f"closed_form_{group}"], rtol, atol)


@pytest.mark.parametrize(
  ("warmup", "total", "expected"),
  [
    (0, 4, [1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0, 0]),
    (1, 3, [0.25, 1, 0.5, 0]),
    (2, 4, [0.25, 1, 1, 0.5, 0, 0]),
    (2, 2, [0.25, 1, 0, 0]),
    (1, 1, [0.25, 0]),
  ],
)
def test_schedule_at_its_edges(warmup, total, expected):
  schedule = optimizers.warmup_cosine(
    1.0, warmup_steps=warmup, total_steps=total, start=0.25
  )
  rates = [float(schedule(step)) for step in range(len(expected))]
  np.testing.assert_allclose(rates, expected, atol=1e-6)


def test_decay_spares_vectors():
  params = {"kernel": jnp.full((2, 3), 2.0), "bias": jnp.full(3, 2.0)}
  assert optimizers.decay_mask(params) == {"kernel": True, "bias": False}
  zero = jax.tree.map(jnp.zeros_like, params)
  # With no gradient only the decay is left: rate * decay * value.
  for optimizer in (
    optimizers.sgd(0.5, weight_decay=0.1),
    optimizers.adamw(0.5, weight_decay=0.1),
  ):
    updates, _ = optimizer.update(zero, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.1, rtol=1e-6)
    np.testing.assert_array_equal(updates["bias"], 0)


def test_sgd_is_torchs(x64):
  # torch.optim.SGD: d = g + wd p; m = momentum m + d; p -= lr m.
  rng = np.random.default_rng(0)
  p, gradients, m = rng.normal(size=(2, 3)), rng.normal(size=(4, 2, 3)), 0
  optimizer = optimizers.sgd(0.1, weight_decay=0.05, momentum=0.7)
  seen = list(descend(optimizer, {"kernel": p}, {"kernel": gradients}))
  for g, params in zip(gradients, seen, strict=True):
    m = 0.7 * m + g + 0.05 * p
    p = p - 0.1 * m
    np.testing.assert_allclose(params["kernel"], p, rtol=1e-12)


def test_partition_separates_the_probe():
  params = {n: {"kernel": jnp.ones((2, 2))} for n in ("backbone", "projector", "probe")}
  optimizer = optimizers.partition(optax.sgd(0.1), optax.sgd(0.01))
  updates, _ = optimizer.update(params, optimizer.init(params), params)
  steps = {n: float(u["kernel"][0, 0]) for n, u in updates.items()}
  np.testing.assert_allclose([steps[n] for n in params], [-0.1, -0.1, -0.01], rtol=1e-6)
  # Without a probe everything is the encoder's.
  del params["probe"]
  optimizer.update(params, optimizer.init(params), params)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: optimizers.warmup_cosine(0, warmup_steps=0, total_steps=1), "base = 0"),
    (lambda: optimizers.warmup_cosine(1, warmup_steps=3, total_steps=2), "at most 2"),
    (lambda: optimizers.warmup_cosine(1, warmup_steps=0, total_steps=0), "total_steps"),
    (
      lambda: optimizers.warmup_cosine(1, warmup_steps=0, total_steps=1, start=-1),
      "start = -1",
    ),
    (lambda: optimizers.lars(0.1, weight_decay=-1), "weight_decay = -1"),
    (lambda: optimizers.lars(0.1, weight_decay=0, momentum=1.0), "momentum = 1.0"),
    (
      lambda: optimizers.lars(0.1, weight_decay=0, trust_coefficient=0),
      "trust_coefficient = 0",
    ),
  ],
)
def test_values_out_of_range_are_refused(make, message):
  with pytest.raises(InputError, match=message):
    make()
