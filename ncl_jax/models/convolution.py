"""2-D convolution with gradients that are also fast on CPU, inside loops and out."""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from ncl_jax import numerics

_NO_FORWARD_MODE = "conv2d supports jax.grad, not jax.jvp: use lax.conv_general_dilated"

# The axes always have this order, and operands are transposed by hand. In a loop XLA's
# CPU backend does not reorder axes, and any other order is slow.
_AXES = ("NHWC", "HWIO", "NHWC")


def conv2d(
  x: jax.Array, kernel: jax.Array, strides: int = 1, padding: int = 0
) -> jax.Array:
  """Cross-correlates images with a kernel, with equal zero padding on all sides.

  `y[b, i, j, o] = sum_{a, e, c} x[b, s i + a - p, s j + e - p, c] kernel[a, e, c, o]`,
  with stride s, padding p, and x = 0 outside. Sizes are as in torch:
  `h = (H + 2 p - KH) // s + 1`. The forward pass is `lax.conv_general_dilated`. The
  gradients are autodiff's, except on CPU. There XLA runs autodiff's kernel gradient on
  one thread, and runs both gradients tens of times slower inside a loop than outside.
  On CPU other convolutions and matrix products replace them, equal up to rounding.
  Forward mode (`jax.jvp`) is not supported.

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
    dimension_numbers=_AXES,
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

  # Chosen while lowering, so the compiled program has no conditional. The two gradients
  # are chosen separately, so that an unused one (the first layer's dx) is dropped.
  cpu_dx = functools.partial(_input_gradient, strides=strides, padding=padding)
  cpu_dk = functools.partial(_kernel_gradient, strides=strides, padding=padding)
  operands = (*residuals, dy)
  return (
    lax.platform_dependent(*operands, cpu=cpu_dx, default=autodiff_dx),
    lax.platform_dependent(*operands, cpu=cpu_dk, default=autodiff_dk),
  )


_conv2d.defvjp(_forward, _backward)


def _input_gradient(x, kernel, dy, *, strides, padding):
  """Convolves dy, dilated to the spacing of x, with the rotated kernel."""
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
  # Measured: below these sizes, where the arrays fit a cache, the convolution is up to
  # three times faster. Above, the products are, and they use every core. Both
  # accumulate bfloat16 in float32.
  small = channels * features <= 64**2 and dy.size <= 2**21
  if height * width > 1 and channels >= 8 and small:
    dk = _kernel_gradient_by_convolution(x, kernel, dy, strides, padding)
  else:
    dk = _kernel_gradient_by_products(x, kernel, dy, strides, padding)
  return dk.astype(kernel.dtype)


def _kernel_gradient_by_convolution(x, kernel, dy, strides, padding):
  """Convolves x, with rows as channels, with dy dilated to the spacing of x."""
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
  """One matrix product per kernel position: its input pixels, transposed, times dy."""
  height, width, channels, features = kernel.shape
  x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
  rows, columns = ((count - 1) * strides + 1 for count in dy.shape[1:3])
  # Flattened first, because XLA copies three contracted axes to a slower layout.
  dy = dy.reshape(-1, features)
  pixels = [
    x[:, i : i + rows : strides, j : j + columns : strides].reshape(-1, channels)
    for i in range(height)
    for j in range(width)
  ]
  # A product with 1 or 3 columns costs as much as one with 16, so image channels of
  # several positions share one product. Wider inputs would only cost copies.
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
