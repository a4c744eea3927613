"""Crops, resizing and flips, as products with small matrices."""

import math

import jax
import jax.numpy as jnp

from ncl_jax.numerics import at_least_float32

_TRIES = 10  # torchvision's RandomResizedCrop gives up after as many.
BOX_DRAWS = 2 * _TRIES + 2  # Area and aspect of each try, then the place.


def random_boxes(
  u: jax.Array,
  height: int,
  width: int,
  *,
  scale: tuple[float, float],
  ratio: tuple[float, float],
) -> jax.Array:
  """Turns uniform random numbers into the boxes of random resized crops.

  Up to ten tries of `area = U(scale) * height * width`, `log aspect = U(log ratio)`,
  `w = round(sqrt(area * aspect))`, `h = round(sqrt(area / aspect))`; the first that
  fits is placed uniformly. If none fits: the largest central box within `ratio`.

  Args:
    u: float32 [..., 22], uniform on [0, 1).
    height: of the image, pixels.
    width: of the image, pixels.
    scale: smallest and largest area, as shares of the image's.
    ratio: smallest and largest width / height.

  Returns:
    int32 [..., 4]: top, left, height, width.

  Reference: torchvision's RandomResizedCrop, the same in distribution.

  >>> u = jnp.full((1, 22), 0.5)
  >>> random_boxes(u, 8, 8, scale=(0.25, 0.25), ratio=(1.0, 1.0)).tolist()
  [[2, 2, 4, 4]]
  """
  area = height * width * (scale[0] + (scale[1] - scale[0]) * u[..., :_TRIES])
  low, high = math.log(ratio[0]), math.log(ratio[1])
  aspect = jnp.exp(low + (high - low) * u[..., _TRIES : 2 * _TRIES])
  w = jnp.round(jnp.sqrt(area * aspect))
  h = jnp.round(jnp.sqrt(area / aspect))
  fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
  # One-hot and sum instead of indexing: no gather.
  first = jax.nn.one_hot(jnp.argmax(fits, axis=-1), _TRIES)
  found = jnp.any(fits, axis=-1)

  fallback_h, fallback_w = height, width
  if width < height * ratio[0]:
    fallback_h = round(width / ratio[0])
  elif width > height * ratio[1]:
    fallback_w = round(height * ratio[1])

  h = jnp.where(found, jnp.sum(h * first, axis=-1), fallback_h)
  w = jnp.where(found, jnp.sum(w * first, axis=-1), fallback_w)
  # In float32, u * m can round up to m: the minimum keeps the box inside.
  top = jnp.minimum(jnp.floor(u[..., -2] * (height - h + 1)), height - h)
  left = jnp.minimum(jnp.floor(u[..., -1] * (width - w + 1)), width - w)
  top = jnp.where(found, top, (height - fallback_h) // 2)
  left = jnp.where(found, left, (width - fallback_w) // 2)
  return jnp.stack([top, left, h, w], axis=-1).astype(jnp.int32)


def resize_weights(
  start: jax.Array, length: jax.Array, size: int, extent: int, dtype: jnp.dtype
) -> jax.Array:
  """Weights of a crop and its antialiased bicubic resize, along one axis.

  Output pixel i sits at `c = (i + 1/2) length / size` inside the crop; input pixel j
  of the crop weighs `k((j + 1/2 - c) / max(length / size, 1))`, k = Keys' cubic with
  a = -1/2, and rows are divided by their sums.

  Args:
    start: [...] first pixel of the crop.
    length: [...] number of pixels of the crop, at least 1.
    size: number of output pixels.
    extent: number of pixels of the whole image along this axis.
    dtype: of the result.

  Returns:
    [..., size, extent], rows sum to 1, zero outside the crop.

  Reference: Keys 1981; Pillow's and torchvision's antialiased resize.
  """
  start = start.astype(dtype)[..., None, None]
  length = length.astype(dtype)[..., None, None]
  shape = (*start.shape[:-2], size, extent)
  i = jax.lax.broadcasted_iota(dtype, shape, len(shape) - 2)
  j = jax.lax.broadcasted_iota(dtype, shape, len(shape) - 1) - start
  # Whole numbers until the division, so float32 adds no error to the positions.
  t = (2 * i + 1) * length - (2 * j + 1) * size
  t = jnp.abs(t / (2 * jnp.maximum(length, size)))
  near = (1.5 * t - 2.5) * t * t + 1
  far = ((-0.5 * t + 2.5) * t - 4) * t + 2
  weights = jnp.where(t < 1, near, jnp.where(t < 2, far, 0))
  weights = jnp.where((j >= 0) & (j < length), weights, 0)
  return weights / jnp.sum(weights, axis=-1, keepdims=True)


def apply_separable(
  images: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
  """`rows @ image @ columns^T` for each image, channel and view.

  Args:
    images: [N, H, W, C].
    rows: [N, V, S, H], one matrix a view.
    columns: [N, V, T, W].

  Returns:
    [N, V, S, T, C].
  """
  highest = jax.lax.Precision.HIGHEST
  half = jnp.einsum("nvsh,nhwc->nvswc", rows, images, precision=highest)
  return jnp.einsum("nvtw,nvswc->nvstc", columns, half, precision=highest)


def crop_matrices(
  boxes: jax.Array, height: int, width: int, size: int, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
  """The matrices (rows, columns) that cut boxes and resize them to `size` x `size`.

  Args:
    boxes: int [..., 4]: top, left, height, width.
    height: of the image, pixels.
    width: of the image, pixels.
    size: side of the result, pixels.
    dtype: of the matrices.

  Returns:
    [..., size, height] and [..., size, width].
  """
  rows = resize_weights(boxes[..., 0], boxes[..., 2], size, height, dtype)
  columns = resize_weights(boxes[..., 1], boxes[..., 3], size, width, dtype)
  return rows, columns


def resized_crop(images: jax.Array, boxes: jax.Array, size: int) -> jax.Array:
  """Cuts a box from each image and resizes it, bicubic and antialiased.

  `A_y X A_x^T` with the weights of `resize_weights`: pixels outside the box have no
  influence, and the cubic may overshoot [0, 1].

  Args:
    images: [N, H, W, C].
    boxes: int [N, 4]: top, left, height, width, in pixels, inside the image.
    size: side of the result, pixels.

  Returns:
    [N, size, size, C], float32 or float64.

  >>> image = jnp.arange(16.0).reshape(1, 4, 4, 1)
  >>> resized_crop(image, jnp.array([[1, 1, 2, 2]]), 2)[0, :, :, 0].tolist()
  [[5.0, 6.0], [9.0, 10.0]]
  """
  images = at_least_float32(images)
  _, height, width, _ = images.shape
  rows, columns = crop_matrices(boxes, height, width, size, images.dtype)
  return apply_separable(images, rows[:, None], columns[:, None])[:, 0]


def horizontal_flip(images: jax.Array) -> jax.Array:
  """Mirrors left and right.

  Args:
    images: [N, H, W, C].

  Returns:
    [N, H, W, C].

  >>> horizontal_flip(jnp.array([[[[1], [2]]]])).ravel().tolist()
  [2, 1]
  """
  return images[:, :, ::-1, :]
