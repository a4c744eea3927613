"""Matrix products and the loss on each device, against numpy in float64."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from ncl_jax import losses, nonneg
from ncl_jax.preflight.self_check.result import TOLERANCE, Result, distance, worst

MATMUL_TOLERANCE = 1e-5
# TF32 gives 3e-4, bfloat16 3e-3.
MATMUL_COARSEST = 1e-2


def matmul() -> Result:
  """A float32 product on each device at the precision that the loss asks for."""
  error, place = _product_error("highest")
  detail = f"relative error {error:.1e} at most (on {place}) at precision highest"
  ok = error < MATMUL_TOLERANCE
  return Result("matmul", ok, f"{detail}, allowed {MATMUL_TOLERANCE:.0e}")


def default_precision() -> Result:
  """The same at the precision that the network's layers use."""
  error, place = _product_error("default")
  detail = f"relative error {error:.1e} at most (on {place}) at JAX's default precision"
  if not MATMUL_TOLERANCE <= error < MATMUL_COARSEST:
    return Result("precision", error < MATMUL_TOLERANCE, detail)
  detail += ": float32 is rounded to TF32 or bfloat16, as accelerators do"
  return Result("precision", None, detail)


def loss() -> Result:
  """The loss and its gradient on every local device against numpy in float64."""
  rng = np.random.default_rng(0)
  z = rng.normal(size=(64, 1, 32)) + 0.7 * rng.normal(size=(64, 2, 32))
  z = z.astype(np.float32)
  temperature = 0.2
  exact, exact_gradient = reference_loss(np.maximum(z, 0), temperature)
  wide = z.astype(np.float64)
  density = np.exp(-(wide**2) / 2) / math.sqrt(2 * math.pi)
  exact_gradient *= special.ndtr(wide) + wide * density  # rep_relu's derivative

  def mean_loss(z):
    f = nonneg.apply(z, "rep_relu")
    return losses.nt_xent(f, temperature=temperature).mean()

  compute = jax.jit(jax.value_and_grad(mean_loss))

  def error(device: jax.Device) -> float:
    value, gradient = compute(jax.device_put(z, device))
    return worst(distance(value, exact), distance(gradient, exact_gradient))

  most, place = _worst_device(error)
  return Result(
    "loss",
    most <= TOLERANCE,
    f"NCL's loss {exact:.4f} and its gradient differ from numpy's by {most:.1e} at "
    f"most (on {place}), allowed {TOLERANCE:.0e}",
  )


def reference_loss(z: np.ndarray, temperature: float) -> tuple[float, np.ndarray]:
  """The mean of NT-Xent and its gradient by numpy in float64.

  Args:
    z: [N, 2, D] features, not normalised.

  Returns:
    (loss, gradient [N, 2, D]).
  """
  rows = z.reshape(-1, z.shape[-1]).astype(np.float64)
  length = np.linalg.norm(rows, axis=1, keepdims=True)
  length[length == 0] = np.inf
  f = rows / length
  i = np.arange(len(f))
  s = f @ f.T / temperature
  s[i, i] = -np.inf
  p = special.softmax(s, axis=1)
  value = (special.logsumexp(s, axis=1) - s[i, i ^ 1]).mean()
  p[i, i ^ 1] -= 1
  df = (p + p.T) @ f / (temperature * len(f))
  dz = (df - f * (f * df).sum(1, keepdims=True)) / length
  return float(value), dz.reshape(z.shape)


def _product_error(precision: str) -> tuple[float, str]:
  """The largest error of a product over this process's devices, and the device."""
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(2, 512, 512)).astype(np.float32)
  exact = a.astype(np.float64) @ b.astype(np.float64)
  product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
  return _worst_device(
    lambda device: worst(distance(product(*jax.device_put((a, b), device)), exact))
  )


def _worst_device(error: Callable[[jax.Device], float]) -> tuple[float, str]:
  errors = {str(device): error(device) for device in jax.local_devices()}
  place = max(errors, key=lambda name: errors[name])
  return errors[place], place
