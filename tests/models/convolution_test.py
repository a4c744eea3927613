"""The convolution against its definition, and its gradients against autodiff's."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from ncl_jax.models.convolution import conv2d


def by_definition(x, kernel, stride, padding):
  size = len(kernel)
  x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  height, width = ((n - size) // stride + 1 for n in x.shape[1:3])
  y = np.zeros((len(x), height, width, kernel.shape[-1]))
  for i in range(height):
    for j in range(width):
      patch = x[:, i * stride : i * stride + size, j * stride : j * stride + size]
      y[:, i, j] = np.tensordot(patch, kernel, 3)
  return y


def autodiff(x, kernel, stride, padding):
  return lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    ((padding, padding), (padding, padding)),
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def arrays(size, dtype=np.float64, rows=2, channels=3, features=4):
  rng = np.random.default_rng(size)
  # Odd height, even width.
  x = rng.normal(size=(rows, 9, 8, channels)).astype(dtype)
  return x, rng.normal(size=(size, size, channels, features)).astype(dtype)


def gradients(conv, stride, padding):
  """Gradients of a sum of squares: each output has another cotangent."""
  loss = lambda x, kernel: jnp.sum(conv(x, kernel, stride, padding) ** 2)  # noqa: E731
  return jax.value_and_grad(loss, (0, 1))


# Kernel size, channels, features: each implementation of the kernel gradient.
GRID = [
  (size, stride, padding)
  for size in ((1, 3, 4), (3, 8, 4), (7, 1, 4))
  for stride in (1, 2)
  for padding in (0, 1, 2, 3)
]


@pytest.mark.parametrize(
  ("sizes", "stride", "padding"), [*GRID, ((3, 3, 4), 2, 1), ((3, 64, 65), 2, 1)]
)
def test_value_and_gradients(sizes, stride, padding, x64):
  size, channels, features = sizes
  x, kernel = arrays(size, channels=channels, features=features)

  # Compiling is all that takes time here.
  @functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
  def run(*operands):
    return (
      conv2d(*operands, stride, padding),
      gradients(conv2d, stride, padding)(*operands)[1],
      gradients(autodiff, stride, padding)(*operands)[1],
    )

  definition = by_definition(x, kernel, stride, padding)
  for dtype, tolerance in ((np.float64, 1e-12), (np.float32, 3e-7)):
    y, ours, expected = run(x.astype(dtype), kernel.astype(dtype))
    close(y, definition, 3 * tolerance)
    for a, b in zip(ours, expected, strict=True):
      assert a.dtype == dtype
      close(a, b, tolerance)


def close(a, b, tolerance):
  error = np.linalg.norm(np.asarray(a, np.float64) - b) / np.linalg.norm(b)
  assert error <= tolerance


def test_bfloat16_gradients_keep_their_type():
  x, kernel = (jnp.asarray(a, jnp.bfloat16) for a in arrays(3))
  y, ours = gradients(conv2d, 2, 1)(x, kernel)
  exact = gradients(autodiff, 2, 1)(*(a.astype(jnp.float32) for a in (x, kernel)))[1]
  assert y.dtype == jnp.bfloat16
  for a, b in zip(ours, exact, strict=True):
    assert a.dtype == jnp.bfloat16
    close(a, b, 2**-8)


def descend(x, kernel, steps):
  step = lambda k, _: (k - 1e-4 * gradients(conv2d, 2, 1)(x, k)[1][1], None)  # noqa: E731
  return lax.scan(step, kernel, length=steps)[0]


def test_same_inside_a_loop_and_under_rematerialisation():
  x, kernel = arrays(3, np.float32)
  inside = jax.jit(descend, static_argnums=2)(x, kernel, 3)
  outside = kernel
  for _ in range(3):
    outside = outside - 1e-4 * gradients(conv2d, 2, 1)(x, outside)[1][1]
  np.testing.assert_allclose(inside, outside, rtol=2e-6, atol=1e-6)

  remat = jax.checkpoint(conv2d, static_argnums=(2, 3))
  for a, b in zip(
    gradients(remat, 2, 1)(x, kernel)[1],
    gradients(conv2d, 2, 1)(x, kernel)[1],
    strict=True,
  ):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-5)


def test_cpu_program_has_products_and_no_conditional():
  x, kernel = arrays(3, np.float32, channels=64, features=65)
  both = jax.jit(gradients(conv2d, 2, 1)).lower(x, kernel).compile().as_text()
  loop = jax.jit(descend, static_argnums=2).lower(x, kernel, 3).compile().as_text()
  for program in (both, loop):
    assert " conditional(" not in program
    # Axes in this order are fast in loops too.
    orders = set(re.findall(r" convolution\(.*dim_labels=(\S+?)[,}]", program))
    assert orders == {"b01f_01io->b01f"}
  assert both.count(" dot(") == 9
  # Forward and input gradient; in the loop, where none is asked for, forward alone.
  assert both.count(" convolution(") == 2
  assert loop.count(" convolution(") == 1


def test_other_platforms_get_the_gradients_of_autodiff():
  x, kernel = arrays(3, np.float32)
  program = export.export(jax.jit(gradients(conv2d, 2, 1)), platforms=["cuda"])
  text = program(x, kernel).mlir_module()
  assert text.count("stablehlo.convolution") == 3
  assert "dot_general" not in text
