"""The losses of other families: numpy loops, closed forms, eight devices, dead rows."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

from ncl_jax import losses
from ncl_jax.errors import InputError

N, D = 16, 6
CENTRE = np.linspace(-0.3, 0.4, D)


def unit(x):
  return x / np.linalg.norm(x)


def entropy(scores, target):
  """Cross entropy of a softmax, one row."""
  return np.logaddexp.reduce(scores) - scores @ target


def loop_moco_v3(q, k):
  costs = []
  for n in range(N):
    cost = 0
    for view in (0, 1):
      query = unit(q[n, view])
      scores = np.array([query @ unit(k[m, 1 - view]) / 0.3 for m in range(N)])
      cost += 2 * 0.3 * entropy(scores, np.eye(N)[n])
    costs.append(cost)
  return np.mean(costs)


def loop_byol(p, t):
  costs = [
    np.sum((unit(p[n, v]) - unit(t[n, 1 - v])) ** 2) for n in range(N) for v in (0, 1)
  ]
  return 2 * np.mean(costs)


def loop_barlow_twins(z, _):
  a, b = z[:, 0], z[:, 1]
  cost = 0
  for i in range(D):
    for j in range(D):
      x, y = a[:, i] - a[:, i].mean(), b[:, j] - b[:, j].mean()
      c = np.mean(x * y) / np.sqrt((np.mean(x**2) + 1e-5) * (np.mean(y**2) + 1e-5))
      cost += (1 - c) ** 2 if i == j else 0.02 * c**2
  return cost


def loop_vicreg(z, _):
  cost = 3 * np.mean((z[:, 0] - z[:, 1]) ** 2)
  for view in (z[:, 0], z[:, 1]):
    c = np.cov(view.T)  # unbiased
    for i in range(D):
      cost += 5 * max(0, 1 - np.sqrt(c[i, i] + 1e-4)) / D
      cost += sum(0.7 * c[i, j] ** 2 / D for j in range(D) if j != i)
  return cost


def loop_dino(s, t):
  costs = []
  for n in range(N):
    for view in (0, 1):
      sharp = np.exp((t[n, 1 - view] - CENTRE) / 0.2)
      costs.append(entropy(s[n, view] / 0.5, sharp / sharp.sum()))
  return np.mean(costs)


def of_views(loss, **weights):
  return lambda z, _: loss(z[:, 0], z[:, 1], **weights)


CASES = {
  "moco_v3": (
    lambda q, k: losses.moco_v3(q, k, temperature=0.3).mean(),
    loop_moco_v3,
  ),
  "byol": (lambda p, t: losses.byol(p, t).mean(), loop_byol),
  "barlow_twins": (
    of_views(losses.barlow_twins, off_diagonal=0.02),
    loop_barlow_twins,
  ),
  "vicreg": (
    of_views(losses.vicreg, invariance=3.0, variance=5.0, covariance=0.7),
    loop_vicreg,
  ),
  "dino": (
    lambda s, t: losses.dino(
      s, t, CENTRE, student_temperature=0.5, teacher_temperature=0.2
    ).mean(),
    loop_dino,
  ),
}
MOMENTUM = ("moco_v3", "byol", "dino")
each_loss = pytest.mark.parametrize("name", CASES)


def draw(seed=0):
  one, other = np.random.default_rng(seed).normal(size=(2, N, 2, D))
  # Views that are alike, and a variance on both sides of VICReg's hinge.
  one[:, 1] = 0.7 * one[:, 0] + 0.5 * one[:, 1]
  return one * np.linspace(0.5, 1.5, D), other


@functools.cache
def compiled(name, devices):
  mesh = jax.make_mesh(
    (devices,), ("data",), (AxisType.Auto,), devices=jax.devices()[:devices]
  )
  rows = NamedSharding(mesh, PartitionSpec("data"))
  whole = NamedSharding(mesh, PartitionSpec())
  return jax.jit(
    jax.value_and_grad(CASES[name][0], argnums=(0, 1)),
    in_shardings=(rows, rows),
    out_shardings=(whole, rows),
  )


@each_loss
def test_equals_the_loop_on_one_and_on_eight_devices(name, x64):
  inputs = draw()
  expected = CASES[name][1](*inputs)
  one, gradients = compiled(name, 1)(*inputs)
  np.testing.assert_allclose(one, expected, rtol=1e-11)
  eight, others = compiled(name, 8)(*inputs)
  np.testing.assert_allclose(eight, expected, rtol=1e-11)
  for a, b in zip(others, gradients, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
  # What the momentum encoder gives is constant to the gradient.
  assert not np.any(gradients[1])
  loss = jax.jit(CASES[name][0])
  check_grads(lambda z: loss(z, inputs[1]), (inputs[0],), order=1, modes=["rev"])


@each_loss
def test_float32_and_what_is_dead_in_it(name):
  one, other = (x.astype(np.float32) for x in draw())
  value, _ = compiled(name, 8)(one, other)
  assert value.dtype == jnp.float32
  np.testing.assert_allclose(value, CASES[name][1](one, other), rtol=1e-5)
  for z in (one, other):
    z[:, :, 2] = 0  # a dead dimension
    z[:, :, 3] = 0.3  # a constant one, of no exact mean
    z[5] = z[6, 0] = 0  # all-zero rows
  for pair in ((one, other), (0 * one, 0 * other)):
    value, gradients = compiled(name, 8)(*pair)
    assert np.isfinite(value) and all(np.isfinite(g).all() for g in gradients)
    # No step from a dead dimension or an all-zero row is beyond all others.
    assert max(np.abs(g).max() for g in gradients) < 10


@pytest.mark.parametrize("name", ["barlow_twins", "vicreg"])
def test_statistics_move_and_no_rows(name):
  wide = jax.ShapeDtypeStruct((1024, 2, D), jnp.float32)
  text = compiled(name, 8).lower(wide, wide).compile().as_text()
  moved = re.findall(r" (all-\w+|reduce-scatter|collective-permute)(?:-start)?\(", text)
  assert moved and set(moved) == {"all-reduce"}
  shapes = re.findall(r"f32\[([\d,]+)\]\S* all-reduce", text)
  sizes = [math.prod(int(s) for s in shape.split(",")) for shape in shapes]
  assert max(sizes) <= 2 * D * D


def test_closed_forms(x64):
  same = np.tile(np.arange(1.0, D + 1), (N, 2, 1))
  np.testing.assert_allclose(
    losses.moco_v3(same, same, temperature=0.2), 4 * 0.2 * np.log(N)
  )
  np.testing.assert_allclose(losses.byol(same, same), 0, atol=1e-12)
  np.testing.assert_allclose(losses.byol(-same, same), 8)
  np.testing.assert_allclose(losses.barlow_twins(same[:, 0], same[:, 1]), D)
  np.testing.assert_allclose(losses.vicreg(same[:, 0], same[:, 1]), 2 * 25 * 0.99)
  np.testing.assert_allclose(losses.dino(0 * same, same, np.zeros(D)), np.log(D))
  # A cold teacher that the student follows: nothing is left to learn.
  sure = np.tile(100.0 * np.eye(D)[0], (N, 2, 1))
  np.testing.assert_allclose(losses.dino(sure, sure, np.zeros(D)), 0, atol=1e-12)


def test_published_barlow_twins_is_scale_free(x64):
  # Eq. 2 has no epsilon: without one the loss knows no scale.
  z, _ = draw()
  values = [losses.barlow_twins(s * z[:, 0], z[:, 1] + 3) for s in (1e3, 1e4)]
  c = np.corrcoef(z[:, 0].T, z[:, 1].T)[:D, D:]
  own, off = np.diag(c), c - np.diag(np.diag(c))
  expected = np.sum((1 - own) ** 2) + 0.0051 * np.sum(off**2)
  np.testing.assert_allclose(values, expected, rtol=1e-4)
  np.testing.assert_allclose(values[0], values[1], rtol=1e-9)


def test_the_centre_is_an_exponential_mean(x64):
  batches = [draw(seed)[0] for seed in range(4)]
  centre = np.zeros(D)
  for scores in batches:
    centre = losses.dino_centre(centre, scores, 0.8)
  means = [scores.reshape(-1, D).mean(0) for scores in batches]
  expected = sum(0.2 * 0.8 ** (3 - i) * mean for i, mean in enumerate(means))
  np.testing.assert_allclose(centre, expected, rtol=1e-12)


def test_other_shapes_are_refused():
  z = np.ones((4, 2, 3))
  with pytest.raises(InputError, match=r"queries .*\[4, 2, 3\] and keys \[4, 2, 2\]"):
    losses.moco_v3(z, z[:, :, :2], temperature=1.0)
  with pytest.raises(InputError, match=r"\[4, 3, 2\]: it must be \[N, 2, D\]"):
    losses.byol(z.swapaxes(1, 2), z)
  for loss in (losses.barlow_twins, losses.vicreg):
    with pytest.raises(InputError, match=r"za has shape \[4, 3\] and zb \[3, 3\]"):
      loss(z[:, 0], z[:3, 1])
  with pytest.raises(InputError, match="at least 2"):
    losses.vicreg(z[:1, 0], z[:1, 1])
  with pytest.raises(InputError, match=r"centre has shape \[2\]"):
    losses.dino(z, z, np.zeros(2))
  with pytest.raises(InputError, match="teacher_temperature = 0"):
    losses.dino(z, z, np.zeros(3), teacher_temperature=0)
