"""NT-Xent against the released code, optax, a loop, and itself on several devices."""

import re
import subprocess
import sys

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jax.test_util import check_grads

from ncl_jax import nonneg
from ncl_jax.errors import InputError
from ncl_jax.losses import nt_xent, supervised_nt_xent

GOLDEN = golden_numbers.load("nt_xent")
N = len(GOLDEN["indexes"])


def as_views(blocks):
  """[2N, D] of two blocks, one a view, to [N, 2, D]."""
  return np.stack([blocks[:N], blocks[N:]], axis=1)


def as_blocks(views):
  return np.concatenate([views[:, 0], views[:, 1]])


def mean_loss(z, name="identity", temperature=0.2):
  return jnp.mean(nt_xent(nonneg.apply(z, name), temperature=temperature))


value_and_grad = jax.jit(jax.value_and_grad(mean_loss), static_argnums=(1, 2))


def draw(n=6, d=5, seed=0):
  return np.random.default_rng(seed).normal(size=(n, 2, d))


def loop(z, temperature):
  """The definition, one row at a time, in float64."""
  n = len(z)
  rows = np.asarray(z, np.float64).reshape(2 * n, -1)
  norms = np.linalg.norm(rows, axis=1, keepdims=True)
  rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
  losses = []
  for i, row in enumerate(rows):
    positive = rows[i + 1 if i % 2 == 0 else i - 1] @ row / temperature
    others = [rows[j] @ row / temperature for j in range(2 * n) if j != i]
    losses.append(np.logaddexp.reduce(others) - positive)
  return np.reshape(losses, (n, 2))


def check_golden(key, name, temperature, z, dtype, rtol, atol, rows=slice(None)):
  loss, grad = jax.value_and_grad(mean_loss)(jnp.asarray(z, dtype), name, temperature)
  target = GOLDEN[f"{key}_grad{'' if rows == slice(None) else '_other'}_f64"]
  np.testing.assert_allclose(loss, GOLDEN[f"{key}_loss_f64"], rtol=rtol)
  limit = atol * np.max(np.abs(target))
  np.testing.assert_allclose(as_blocks(grad)[rows], target, rtol=0, atol=limit)
  return grad


@pytest.mark.parametrize("tau", GOLDEN["taus"].tolist())
@pytest.mark.parametrize("name", sorted(nonneg.NAMES))
class TestGolden:
  def test_float64(self, name, tau, x64):
    key = f"{name}_tau{tau}".replace(".", "p")
    z = as_views(GOLDEN["z"])
    check_golden(key, name, tau, z, jnp.float64, rtol=1e-9, atol=1e-10)

  def test_float32(self, name, tau):
    key = f"{name}_tau{tau}".replace(".", "p")
    z = as_views(GOLDEN["z"])
    check_golden(key, name, tau, z, jnp.float32, rtol=2e-6, atol=5e-6)


@pytest.mark.parametrize("groups", ["dup_labels", "dup_few"])
@pytest.mark.parametrize("name", ["identity", "relu", "rep_relu"])
class TestGoldenWithClasses:
  def check(self, groups, name, dtype, rtol, atol):
    key, labels = f"{groups}_{name}_tau0p2", GOLDEN[f"{groups}_indexes"]

    def mean(z):
      z = nonneg.apply(z, name)
      return jnp.mean(supervised_nt_xent(z, labels, temperature=0.2))

    z = jnp.asarray(as_views(GOLDEN["z"]), dtype)
    loss, grad = jax.value_and_grad(mean)(z)
    target = GOLDEN[f"{key}_grad_f64"]
    np.testing.assert_allclose(loss, GOLDEN[f"{key}_loss_f64"], rtol=rtol)
    limit = atol * np.max(np.abs(target))
    np.testing.assert_allclose(as_blocks(grad), target, rtol=0, atol=limit)

  def test_float64(self, groups, name, x64):
    self.check(groups, name, jnp.float64, rtol=1e-9, atol=1e-10)

  def test_float32(self, groups, name):
    self.check(groups, name, jnp.float32, rtol=2e-6, atol=5e-6)


def test_examples_without_a_class_have_themselves():
  z = draw()
  own = nt_xent(z, temperature=0.3)
  for labels in (np.arange(6), np.full(6, -1), np.array([0, -1, 2, -1, 4, -1])):
    loss = supervised_nt_xent(z, labels, temperature=0.3)
    np.testing.assert_allclose(loss, own, rtol=1e-6)
  with pytest.raises(InputError, match=r"labels have shape \[5\]"):
    supervised_nt_xent(z, np.arange(5), temperature=0.3)


class TestRowsThatTheMapEmptied:
  @pytest.mark.parametrize("name", ["relu", "rep_relu"])
  def test_golden(self, name, x64):
    others = GOLDEN["zero_other_rows"].tolist()
    z = as_views(GOLDEN["zero_z"])
    grad = check_golden(
      f"zero_{name}_tau0p2", name, 0.2, z, jnp.float64, 1e-9, 1e-10, others
    )
    assert np.all(as_blocks(grad)[GOLDEN["zero_rows"]] == 0)

  def test_the_released_clamped_norm_would_swamp_the_batch(self, x64):
    z, rows = jnp.asarray(as_views(GOLDEN["zero_z"])), GOLDEN["zero_rows"]

    def released(z):
      f = nonneg.rep_relu(z)
      square = jnp.sum(f * f, -1, keepdims=True)
      # Where a norm is 0 torch takes its derivative for 0 and divides by 1e-12.
      norm = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1)), 1e-12)
      f = f.swapaxes(0, 1).reshape(2 * N, -1) / norm.swapaxes(0, 1).reshape(2 * N, 1)
      logits = f @ f.T / 0.2 - 1e9 * jnp.eye(2 * N)
      positive = jnp.roll(jnp.arange(2 * N), N)
      chosen = logits[jnp.arange(2 * N), positive]
      return jnp.mean(jax.nn.logsumexp(logits, axis=1) - chosen)

    theirs = np.abs(as_blocks(jax.jit(jax.grad(released))(z)))
    assert 2e10 < theirs[rows].max() < 3e10
    assert theirs[GOLDEN["zero_other_rows"]].max() < 1

  @pytest.mark.parametrize("name", ["relu", "rep_relu"])
  def test_a_batch_of_nothing_else(self, name):
    loss, grad = value_and_grad(-np.ones((4, 2, 3)), name)
    np.testing.assert_allclose(loss, np.log(7), rtol=1e-6)  # seven equal rivals
    assert np.all(np.asarray(grad) == 0)


def test_equals_the_loop_row_by_row():
  z = draw()
  z[2, 1] = 0
  np.testing.assert_allclose(nt_xent(z, temperature=0.2), loop(z, 0.2), rtol=1e-5)


def test_equals_optax():
  z = draw(n=16, d=8).astype(np.float32)
  with jax.numpy_rank_promotion("allow"):
    expected = jax.jit(optax.losses.ntxent)(
      as_blocks(z), np.tile(np.arange(16), 2), temperature=0.3
    )
  loss = np.mean(nt_xent(z, temperature=0.3))
  np.testing.assert_allclose(loss, expected, rtol=2e-6)


def test_gradient_is_that_of_the_value(x64):
  loss = jax.jit(lambda z: nt_xent(z, temperature=0.5))
  check_grads(loss, (draw(3, 4),), order=1)


def test_one_example_has_no_negatives():
  loss, grad = value_and_grad(draw(n=1))
  assert loss == 0
  assert np.all(np.asarray(grad) == 0)


@pytest.mark.parametrize("temperature", [0.01, 0.001])
def test_low_temperatures(temperature):
  z = draw(n=16, d=8).astype(np.float32)
  loss = nt_xent(z, temperature=temperature)
  # Similarities are float32 numbers near 1, divided by the temperature.
  limit = 4 * np.finfo(np.float32).eps / temperature
  np.testing.assert_allclose(loss, loop(z, temperature), rtol=2e-6, atol=limit)
  _, grad = value_and_grad(z, "rep_relu", temperature)
  assert np.all(np.isfinite(grad))


@pytest.mark.parametrize(
  "wrong", [0, -1.0, 0.0, float("nan"), float("inf"), "0.2", None, np.float32(-1)]
)
def test_refuses_a_temperature(wrong):
  with pytest.raises(InputError, match=re.escape(f"temperature = {wrong!r}")):
    nt_xent(draw(), temperature=wrong)


@pytest.mark.parametrize("shape", [(4, 1, 3), (4, 3, 3), (4, 3), (0, 2, 3), (8,)])
def test_refuses_a_shape(shape):
  with pytest.raises(InputError, match=re.escape(str(list(shape)))):
    nt_xent(jnp.ones(shape), temperature=0.2)


def test_traced_temperature(x64):
  z = draw()
  traced = jax.jit(lambda z, t: nt_xent(z, temperature=t))(z, 0.3)
  np.testing.assert_allclose(traced, loop(z, 0.3), rtol=1e-9)
  constant = jnp.array(0.3)
  inside = jax.jit(lambda z: nt_xent(z, temperature=constant))(z)
  np.testing.assert_allclose(inside, loop(z, 0.3), rtol=1e-9)


def test_bfloat16_features_are_raised_first():
  z = jnp.asarray(draw(), jnp.bfloat16)
  loss = nt_xent(z, temperature=0.2)
  assert loss.dtype == jnp.float32
  assert jax.eval_shape(jax.grad(mean_loss), z).dtype == jnp.bfloat16
  np.testing.assert_allclose(loss, loop(z.astype(np.float32), 0.2), rtol=1e-5)


def test_order_of_examples_and_views_is_free():
  z = draw(n=16).astype(np.float32)
  order = np.random.default_rng(1).permutation(16)
  loss = np.asarray(nt_xent(z, temperature=0.2))
  moved = nt_xent(z[order][:, ::-1], temperature=0.2)
  np.testing.assert_allclose(moved, loss[order][:, ::-1], rtol=2e-6)


def on_devices(count):
  """The loss and its gradient, jitted, with examples sharded over `count` devices."""
  mesh = jax.make_mesh(
    (count,), ("data",), devices=jax.devices()[:count], axis_types=(AxisType.Auto,)
  )
  rows = NamedSharding(mesh, PartitionSpec("data"))
  whole = NamedSharding(mesh, PartitionSpec())
  return jax.jit(
    jax.value_and_grad(mean_loss), in_shardings=rows, out_shardings=(whole, rows)
  )


def test_negatives_are_global_on_any_number_of_devices():
  z = draw(n=16, d=8).astype(np.float32)
  expected = np.mean(loop(z, 0.2))
  results = [on_devices(count)(z) for count in (1, 2, 8)]
  for loss, grad in results:
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    limit = 1e-6 * np.max(np.abs(results[0][1]))
    np.testing.assert_allclose(grad, results[0][1], rtol=0, atol=limit)


def test_moving_the_shards_moves_their_losses():
  # A diagonal masked at another device's rows would show here.
  z = draw(n=16, d=8).astype(np.float32)
  expected = np.asarray(nt_xent(z, temperature=0.2))
  order = [5, 2, 7, 0, 3, 6, 1, 4]
  devices = [jax.devices()[i] for i in order]
  mesh = jax.make_mesh((8,), ("data",), (AxisType.Auto,), devices=devices)
  rows = NamedSharding(mesh, PartitionSpec("data"))
  compute = jax.jit(
    lambda z: nt_xent(z, temperature=0.2), in_shardings=rows, out_shardings=rows
  )
  loss = compute(z.reshape(8, 2, 2, 8)[order].reshape(16, 2, 8))
  by_device = {
    shard.device.id: np.asarray(shard.data) for shard in loss.addressable_shards
  }
  for i in range(8):
    np.testing.assert_allclose(by_device[i], expected[2 * i : 2 * i + 2], rtol=1e-6)


def test_one_gather_of_the_embeddings():
  n, d = 64, 32
  text = on_devices(8).lower(jnp.ones((n, 2, d))).compile().as_text()
  gathered = re.findall(
    r"= (?:\(.*?\) )?\w+\[([\d,]*)\]\S* all-gather(?:-start)?\(", text
  )
  sizes = [np.prod([int(side) for side in shape.split(",")]) for shape in gathered]
  assert [size for size in sizes if size >= 2 * n * d / 8] == [2 * n * d]
  assert "all-to-all" not in text
  assert "collective-permute" not in text


def test_import_is_light():
  code = (
    "import sys, ncl_jax.losses, ncl_jax.nonneg, ncl_jax.metrics;"
    "print([m for m in ('tensorflow', 'orbax', 'flax', 'optax') if m in sys.modules])"
  )
  run = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert run.stdout.strip() == "[]"
