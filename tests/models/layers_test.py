"""Layers against numpy loops from torch's definitions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ncl_jax.errors import InputError
from ncl_jax.models.layers import BatchNorm, Conv, Linear


def normalise(batch, scale, bias, mean, var):
  """Training mode on a batch [B, H, W, C], per channel: y and running statistics."""
  y, mean, var = np.empty_like(batch), mean.copy(), var.copy()
  for c in range(batch.shape[-1]):
    x = batch[..., c]
    m, n = x.sum() / x.size, x.size
    biased = ((x - m) ** 2).sum() / n
    y[..., c] = (x - m) / np.sqrt(biased + 1e-5) * scale[c] + bias[c]
    mean[c] = 0.9 * mean[c] + 0.1 * m
    var[c] = 0.9 * var[c] + 0.1 * biased * n / (n - 1)
  return y, mean, var


def example(rows=8, channels=3, seed=0):
  rng = np.random.default_rng(seed)
  x = rng.normal(2, 3, size=(rows, 4, 5, channels))
  scale, bias, mean, var = rng.uniform(0.5, 2, size=(4, channels))
  variables = {
    "params": {"scale": scale, "bias": bias},
    "batch_stats": {"mean": mean, "var": var},
  }
  return x, variables, (scale, bias, mean, var)


@functools.partial(jax.jit, static_argnames=("views", "dtype"))
def train(variables, x, views=1, **fields):
  y, moved = BatchNorm(**fields).apply(
    variables, x, True, views, mutable=["batch_stats"]
  )
  return y, moved["batch_stats"]


def test_running_variance_is_unbiased():
  # Two values, 0 and 2: mean 1, biased variance 1, unbiased 2.
  x = jnp.array([0.0, 2.0]).reshape(2, 1, 1, 1)
  variables = BatchNorm().init(jax.random.key(0), x, True)
  assert variables["batch_stats"] == {"mean": 0, "var": 1}
  y, moved = train(variables, x)
  np.testing.assert_allclose(moved["mean"], 0.1, rtol=1e-6)
  np.testing.assert_allclose(moved["var"], 0.9 + 0.1 * 2, rtol=1e-6)
  np.testing.assert_allclose(y.ravel(), [-1, 1], rtol=1e-5)


@pytest.mark.parametrize("views", [1, 2, 4])
def test_statistics_of_each_view_by_itself(views, x64):
  x, variables, (scale, bias, mean, var) = example()
  expected = np.empty_like(x)
  for view in range(views):
    expected[view::views], mean, var = normalise(x[view::views], scale, bias, mean, var)
  y, moved = train(variables, x, views)
  np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
  np.testing.assert_allclose(moved["mean"], mean, rtol=1e-12)
  np.testing.assert_allclose(moved["var"], var, rtol=1e-12)


def test_evaluation_uses_the_running_statistics(x64):
  x, variables, (scale, bias, mean, var) = example()
  y = BatchNorm().apply(variables, x, False, 2)
  np.testing.assert_allclose(y, (x - mean) / np.sqrt(var + 1e-5) * scale + bias)


def test_one_value_per_channel_is_refused():
  variables = example()[1]
  for rows, views in ((1, 1), (2, 2)):
    with pytest.raises(InputError, match="1 value per channel"):
      jax.eval_shape(
        lambda x, v=views: train(variables, x, v), np.ones((rows, 1, 1, 3))
      )
  with pytest.raises(InputError, match="3 rows in 2 views"):
    train(variables, np.ones((3, 2, 2, 3)), 2)
  # Two pixels are enough, and so is one value in evaluation mode.
  train(variables, np.ones((1, 1, 2, 3), np.float32))
  BatchNorm().apply(variables, np.ones((1, 1, 1, 3)), False)


def test_constant_channel_is_finite_and_has_a_finite_gradient():
  x = np.full((4, 3, 3, 2), 7, np.float32)
  variables = BatchNorm().init(jax.random.key(0), x, False)
  y, moved = train(variables, x)
  np.testing.assert_allclose(y, 0, atol=1e-2)
  np.testing.assert_allclose(moved["var"], 0.9, atol=1e-5)
  gradient = jax.grad(lambda x: train(variables, x)[0][0].sum())(x)
  assert np.isfinite(gradient).all()


def test_statistics_are_float32_when_the_network_is_bfloat16():
  x, variables, _ = example(rows=64)
  x = jnp.asarray(x, jnp.bfloat16)
  variables = jax.tree.map(jnp.float32, variables)
  y, moved = train(variables, x, dtype=jnp.bfloat16)
  exact, exact_moved = train(variables, x.astype(jnp.float32))
  assert y.dtype == jnp.bfloat16 and exact.dtype == jnp.float32
  np.testing.assert_allclose(np.asarray(y, np.float32), exact, rtol=2**-8, atol=1e-6)
  jax.tree.map(np.testing.assert_array_equal, moved, exact_moved)


class Block:
  """Convolution, normalisation, ReLU: a small network's sharded program."""

  conv, norm = Conv(4, 3, 2, 1), BatchNorm()

  @classmethod
  def step(cls, params, stats, x, w, views):
    def loss(params, x):
      y = cls.conv.apply({"params": params["conv"]}, x)
      y, moved = cls.norm.apply(
        {"params": params["norm"], "batch_stats": stats},
        y,
        True,
        views,
        mutable=["batch_stats"],
      )
      return jnp.sum(jax.nn.relu(y) * w), moved["batch_stats"]

    return jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x)


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_two_views_are_two_passes_on_any_number_of_devices(devices, x64):
  rng = np.random.default_rng(1)
  x, w = rng.normal(size=(32, 6, 6, 3)), rng.normal(size=(32, 3, 3, 4))
  params = {
    "conv": {"kernel": rng.normal(size=(3, 3, 3, 4))},
    "norm": {"scale": rng.uniform(1, 2, 4), "bias": rng.normal(size=4)},
  }
  stats = {"mean": rng.normal(size=4), "var": rng.uniform(1, 2, 4)}
  one_pass = jax.jit(Block.step, static_argnums=4)
  total, gradient, moved, rows = 0, None, stats, np.empty_like(x)
  for view in range(2):
    (loss, moved), (g, g_x) = one_pass(params, moved, x[view::2], w[view::2], 1)
    total, rows[view::2] = total + loss, g_x
    gradient = g if gradient is None else jax.tree.map(jnp.add, gradient, g)

  mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
  sharded = NamedSharding(mesh, PartitionSpec("data"))
  whole = NamedSharding(mesh, PartitionSpec())
  step = jax.jit(
    Block.step,
    static_argnums=4,
    in_shardings=(whole, whole, sharded, sharded),
    out_shardings=((whole, whole), (whole, sharded)),
  )
  (loss, seen), (g, g_x) = step(params, stats, x, w, 2)
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)  # noqa: E731
  jax.tree.map(close, (loss, seen, g, g_x), (total, moved, gradient, rows))
  program = step.lower(params, stats, x, w, 2).compile().as_text()
  assert ("all-reduce" in program) == (devices > 1)
  for moves_images in ("all-to-all", "all-gather", "collective-permute"):
    assert moves_images not in program


def test_initialisation_is_torchs():
  kernel = Conv(64, 3).init(jax.random.key(0), jnp.zeros((1, 3, 3, 128)))
  values = np.asarray(kernel["params"]["kernel"]).ravel()
  # He, fan-out: variance 2 / (3 * 3 * 64); normal, not cut off at two sigma.
  np.testing.assert_allclose(values.std(), np.sqrt(2 / 576), rtol=0.01)
  np.testing.assert_allclose(
    (np.abs(values) > 2 * values.std()).mean(), 0.0455, rtol=0.1
  )

  params = Linear(300).init(jax.random.key(0), jnp.zeros((1, 400)))["params"]
  for name in ("kernel", "bias"):
    # Uniform in +-1/20: the largest comes near it, the deviation is 1 / (20 sqrt 3).
    assert 0.049 < np.abs(params[name]).max() <= 0.05
    np.testing.assert_allclose(params[name].std(), 0.05 / np.sqrt(3), rtol=0.06)


def test_linear_maps_the_last_axis(x64):
  rng = np.random.default_rng(0)
  params = {"kernel": rng.normal(size=(5, 2)), "bias": rng.normal(size=2)}
  x = rng.normal(size=(3, 4, 5))
  y = Linear(2).apply({"params": params}, x)
  np.testing.assert_allclose(y, x @ params["kernel"] + params["bias"], rtol=1e-12)
