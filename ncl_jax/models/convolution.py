"""2-D convolution whose gradients are fast on CPU too, outside and inside loops."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ncl_jax import numerics

_NO_FORWARD_MODE = "conv2d has jax.grad, no jax.jvp: use lax.conv_general_dilated"


def conv2d(
  x: jax.Array, kernel: jax.Array, strides: int = 1, padding: int = 0
) -> jax.Array:
  """Cross-correlates images with a kernel, zero-padded alike on all four sides.

  `y[b, i, j, o] = sum_{a, e, c} x[b, s i + a - p, s j + e - p, c] kernel[a, e, c, o]`,
  s the stride, p the padding, x = 0 outside. Sizes as in torch:
  `h = (H + 2 p - KH) // s + 1`. The forward pass is `lax.conv_general_dilated`. Its
  gradients are autodiff's, except on CPU: there XLA runs autodiff's kernel gradient on
  one thread, and both gradients tens of times slower inside a loop than outside. Other
  forms, convolutions and matrix products, take their place, equal up to rounding.
  There is no forward mode (`jax.jvp`).

  Args:
    x: [B, H, W, C] images.
    kernel: [KH, KW, C, O], of the same dtype.
    strides: pixels between outputs, at least 1, in both directions.
    padding: zero rows and columns on each side, at least 0.

  Returns:
    [B, h, w, O], of the same dtype.

  >>> y = conv2d(jnp.ones((1, 4, 4, 1)), jnp.ones((3, 3, 1, 1)), 2, 1)
  >>> y[0, :, :, 0].tolist()
  [[4.0, 6.0], [6.0, 9.0]]
  """
  with numerics.reverse_mode_only(_NO_FORWARD_MODE):
    return _conv2d(x, kernel, strides, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _conv2d(x: jax.Array, kernel: jax.Array, strides: int, padding: int) -> jax.Array:
  return _convolve(x, kernel, strides, padding)


def _convolve(x: jax.Array, kernel: jax.Array, strides: int, padding: int) -> jax.Array:
  return lax.conv_general_dilated(
    x,
    kernel,
    (strides, strides),
    ((padding, padding), (padding, padding)),
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def _forward(x, kernel, strides, padding):
  return _convolve(x, kernel, strides, padding), (x, kernel)


def _backward(strides, padding, residuals, dy):
  def autodiff_dx(x, kernel, dy):
    transpose = jax.linear_transpose(
      lambda x: _convolve(x, kernel, strides, padding), x
    )
    return transpose(dy)[0]

  def autodiff_dk(x, kernel, dy):
    transpose = jax.linear_transpose(
      lambda kernel: _convolve(x, kernel, strides, padding), kernel
    )
    return transpose(dy)[0]

  # Chosen while lowering: the compiled program holds one of the two and no conditional.
  # Two choices, so that a gradient nobody uses (the first layer's dx) is dropped.
  cpu_dx = functools.partial(_input_gradient, strides=strides, padding=padding)
  cpu_dk = functools.partial(_kernel_gradient, strides=strides, padding=padding)
  operands = (*residuals, dy)
  return (
    lax.platform_dependent(*operands, cpu=cpu_dx, default=autodiff_dx),
    lax.platform_dependent(*operands, cpu=cpu_dk, default=autodiff_dk),
  )


_conv2d.defvjp(_forward, _backward)


# The axes are in this order throughout, operands transposed by hand: any other makes
# autodiff's form slow in a loop, where XLA's CPU backend does not reorder them.
_AXES = ("NHWC", "HWIO", "NHWC")


def _input_gradient(x, kernel, dy, *, strides, padding):
  """Convolves dy, spread to the spacing of x, with the turned kernel."""
  borders = [
    (size - 1 - padding, length + padding - 1 - (count - 1) * strides)
    for size, length, count in zip(
      kernel.shape[:2], x.shape[1:3], dy.shape[1:3], strict=True
    )
  ]
  return lax.conv_general_dilated(
    dy,
    kernel[::-1, ::-1].swapaxes(2, 3),
    (1, 1),
    borders,
    lhs_dilation=(strides, strides),
    dimension_numbers=_AXES,
  )


def _kernel_gradient(x, kernel, dy, *, strides, padding):
  height, width, channels, features = kernel.shape
  # Measured: below these sizes, where the arrays fit a cache, the convolution wins by
  # up to three times; above, the products do, also by up to three times, and on every
  # core. Both keep sums of bfloat16 in float32.
  small = channels * features <= 64**2 and dy.size <= 2**21
  if height * width > 1 and channels >= 8 and small:
    dk = _kernel_gradient_by_convolution(x, kernel, dy, strides, padding)
  else:
    dk = _kernel_gradient_by_products(x, kernel, dy, strides, padding)
  return dk.astype(kernel.dtype)


def _kernel_gradient_by_convolution(x, kernel, dy, strides, padding):
  """Convolves x, rows for channels, with dy spread to the spacing of x."""
  borders = [
    (padding, (count - 1) * strides + size - length - padding)
    for size, length, count in zip(
      kernel.shape[:2], x.shape[1:3], dy.shape[1:3], strict=True
    )
  ]
  dk = lax.conv_general_dilated(
    x.transpose(3, 1, 2, 0),
    dy.transpose(1, 2, 0, 3),
    (1, 1),
    borders,
    rhs_dilation=(strides, strides),
    dimension_numbers=_AXES,
    preferred_element_type=jnp.promote_types(dy.dtype, jnp.float32),
  )
  return dk.transpose(1, 2, 0, 3)


def _kernel_gradient_by_products(x, kernel, dy, strides, padding):
  """A matrix product a kernel position: the pixels it meets, transposed, times dy."""
  height, width, channels, features = kernel.shape
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  rows, columns = ((count - 1) * strides + 1 for count in dy.shape[1:3])
  # Flattened first: with three contracted axes XLA copies through a slower layout.
  dy = dy.reshape(-1, features)
  pixels = [
    x[:, i : i + rows : strides, j : j + columns : strides].reshape(-1, channels)
    for i in range(height)
    for j in range(width)
  ]
  # A product with 1 or 3 columns costs as much as one with 16: images' channels are
  # put side by side. Wider ones would only copy memory.
  group = max(1, 16 // channels)
  products = [
    lax.dot_general(
      jnp.concatenate(pixels[i : i + group], 1),
      dy,
      (((0,), (0,)), ((), ())),
      preferred_element_type=jnp.promote_types(dy.dtype, jnp.float32),
    )
    for i in range(0, len(pixels), group)
  ]
  return jnp.concatenate(products).reshape(kernel.shape)
