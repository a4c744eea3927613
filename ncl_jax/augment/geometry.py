"""Crops, resizing and flips as products with small matrices."""

import math
from typing import Any

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.augment import given
from ncl_jax.errors import InputError

_TRIES = 10  # as in torchvision's RandomResizedCrop
BOX_PARAMETERS = 2 * _TRIES + 2  # area and aspect of each try, then the position


def random_boxes(
  u: jax.Array,
  height: int,
  width: int,
  *,
  scale: tuple[float, float],
  ratio: tuple[float, float],
) -> jax.Array:
  """Turns uniform random numbers into the boxes of random resized crops.

  There are up to ten tries of `area = U(scale) * height * width`, `log aspect = U(log
  ratio)`, `w = round(sqrt(area * aspect))`, `h = round(sqrt(area / aspect))`. The first
  box that fits is placed uniformly. If none fits, the result is the largest central box
  within `ratio`.

  Args:
    u: float32 [..., 22], uniform on [0, 1).
    height: of the image, pixels.
    width: of the image, pixels.
    scale: smallest and largest area, as fractions of the image's.
    ratio: smallest and largest width / height.

  Returns:
    int32 [..., 4]: top, left, height, width.

  Raises:
    InputError: another shape or type.

  Reference: torchvision's RandomResizedCrop, the same in distribution.

  >>> u = jnp.full((1, 22), 0.5)
  >>> random_boxes(u, 8, 8, scale=(0.25, 0.25), ratio=(1.0, 1.0)).tolist()
  [[2, 2, 4, 4]]
  """
  shape = checks.real("u", u)
  if shape[-1:] != (BOX_PARAMETERS,):
    raise InputError(f"u has shape {list(shape)}: it must be [.., {BOX_PARAMETERS}]")
  u = jnp.asarray(u)
  area = height * width * (scale[0] + (scale[1] - scale[0]) * u[..., :_TRIES])
  low, high = math.log(ratio[0]), math.log(ratio[1])
  aspect = jnp.exp(low + (high - low) * u[..., _TRIES : 2 * _TRIES])
  w = jnp.round(jnp.sqrt(area * aspect))
  h = jnp.round(jnp.sqrt(area / aspect))
  fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
  # One-hot and sum instead of indexing, to avoid a gather.
  first = jax.nn.one_hot(jnp.argmax(fits, axis=-1), _TRIES)
  found = jnp.any(fits, axis=-1)

  fallback_h, fallback_w = height, width
  if width < height * ratio[0]:
    fallback_h = round(width / ratio[0])
  elif width > height * ratio[1]:
    fallback_w = round(height * ratio[1])

  h = jnp.where(found, jnp.sum(h * first, axis=-1), fallback_h)
  w = jnp.where(found, jnp.sum(w * first, axis=-1), fallback_w)
  # In float32 u * m can round up to m; the minimum keeps the box inside.
  top = jnp.minimum(jnp.floor(u[..., -2] * (height - h + 1)), height - h)
  left = jnp.minimum(jnp.floor(u[..., -1] * (width - w + 1)), width - w)
  top = jnp.where(found, top, (height - fallback_h) // 2)
  left = jnp.where(found, left, (width - fallback_w) // 2)
  return jnp.stack([top, left, h, w], axis=-1).astype(jnp.int32)


def resize_weights(
  start: jax.Array, length: jax.Array, size: int, extent: int, dtype: jnp.dtype
) -> jax.Array:
  """Weights of a crop and its antialiased bicubic resize, along one axis.

  Output pixel i lies at `c = (i + 1/2) length / size` inside the crop. Input pixel j of
  the crop has weight `k((j + 1/2 - c) / max(length / size, 1))`, where k is Keys' cubic
  with a = -1/2. Rows are divided by their sums. For crops [...] of an image of `extent`
  pixels the result is [..., size, extent], zero outside the crop.

  Reference: Keys 1981; Pillow's and torchvision's antialiased resize.
  """
  shape = (*start.shape, size, extent)
  i = jax.lax.broadcasted_iota(dtype, shape, len(shape) - 2)
  j = jax.lax.broadcasted_iota(dtype, shape, len(shape) - 1)
  return _weights(start[..., None, None], length[..., None, None], i, j, size)


def _weights(
  start: jax.Array, length: jax.Array, i: jax.Array, j: jax.Array, size: int
) -> jax.Array:
  """The weights of input pixels j, along the last axis, in output pixels i."""
  start, length = start.astype(i.dtype), length.astype(i.dtype)
  j = j - start
  # Integers until the division, so that float32 positions are exact.
  t = (2 * i + 1) * length - (2 * j + 1) * size
  t = jnp.abs(t / (2 * jnp.maximum(length, size)))
  near = (1.5 * t - 2.5) * t * t + 1
  far = ((-0.5 * t + 2.5) * t - 4) * t + 2
  weights = jnp.where(t < 1, near, jnp.where(t < 2, far, 0))
  weights = jnp.where((j >= 0) & (j < length), weights, 0)
  return weights / jnp.sum(weights, axis=-1, keepdims=True)


def resize_bands(
  start: jax.Array,
  length: jax.Array,
  size: int,
  extent: int,
  block: int,
  dtype: jnp.dtype,
) -> tuple[jax.Array, jax.Array]:
  """The non-zero part of `resize_weights`, in K blocks of `block` output pixels.

  Returns:
    int32 [..., K], the first of each block's J input pixels, and weights
    [..., K, block, J].
  """
  step = extent / size  # of the longest crop
  window = min(extent, math.ceil((block - 1) * step + 4 * max(step, 1)) + 2)
  blocks = jnp.arange(size // block, dtype=jnp.int32)
  blocks = blocks.reshape((1,) * start.ndim + (-1,))
  start, length = start[..., None], length[..., None]
  reach = size + 4 * jnp.maximum(length, size)
  first = start + ((2 * block * blocks + 1) * length - reach) // (2 * size)
  first = jnp.clip(first, 0, extent - window)
  shape = (*first.shape, block, window)
  i = jax.lax.broadcasted_iota(dtype, shape, len(shape) - 2)
  i += block * blocks[..., None, None].astype(dtype)
  j = jax.lax.broadcasted_iota(dtype, shape, len(shape) - 1)
  j += first[..., None, None].astype(dtype)
  start, length = start[..., None, None], length[..., None, None]
  return first, _weights(start, length, i, j, size)


def apply_bands(
  images: jax.Array,
  rows: tuple[jax.Array, jax.Array],
  columns: tuple[jax.Array, jax.Array],
) -> jax.Array:
  """`apply_separable` with bands of [N, V] crops: less arithmetic, but gathers."""
  highest = jax.lax.Precision.HIGHEST

  def slices(x: jax.Array, first: jax.Array, width: int, axis: int) -> jax.Array:
    take = jax.lax.dynamic_slice_in_dim
    return jax.vmap(lambda place: take(x, place, width, axis))(first)

  def view(image: jax.Array, rows: Any, columns: Any) -> jax.Array:
    (first, weights), (_, width, channels) = rows, image.shape
    blocks = slices(image, first, weights.shape[-1], 0)
    half = jnp.einsum("ksh,khwc->kswc", weights, blocks, precision=highest)
    half = half.reshape(-1, width, channels)
    first, weights = columns
    blocks = slices(half, first, weights.shape[-1], 1)
    whole = jnp.einsum("ktw,kswc->sktc", weights, blocks, precision=highest)
    return whole.reshape(len(half), -1, channels)

  views = jax.vmap(view, in_axes=(None, 0, 0))
  return jax.vmap(views)(images, rows, columns)


def apply_separable(
  images: jax.Array, rows: jax.Array, columns: jax.Array
) -> jax.Array:
  """`rows @ image @ columns^T` for each image, channel and view: [N, V, S, T, C].

  `images` are [N, H, W, C], `rows` [N, V, S, H] and `columns` [N, V, T, W].
  """
  highest = jax.lax.Precision.HIGHEST
  half = jnp.einsum("nvsh,nhwc->nvswc", rows, images, precision=highest)
  return jnp.einsum("nvtw,nvswc->nvstc", columns, half, precision=highest)


def crop_matrices(
  boxes: jax.Array, height: int, width: int, size: int, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
  """Row and column matrices that crop boxes [..., 4] and resize them; see above."""
  rows = resize_weights(boxes[..., 0], boxes[..., 2], size, height, dtype)
  columns = resize_weights(boxes[..., 1], boxes[..., 3], size, width, dtype)
  return rows, columns


def random_crops(
  images: jax.Array, boxes: jax.Array, flipped: jax.Array | None, size: int, block: int
) -> jax.Array:
  """Crops, resizes and optionally flips boxes of each image; see `resized_crop`.

  `boxes` are [N, V, 4], `flipped` [N, V] or None, the result [N, V, size, size, C].
  `block` output pixels are computed at a time; `size` itself selects `apply_separable`.
  """
  _, height, width, _ = images.shape
  if block == size:
    rows, columns = crop_matrices(boxes, height, width, size, images.dtype)
    if flipped is not None:
      columns = jnp.where(flipped[..., None, None], columns[..., ::-1, :], columns)
    return apply_separable(images, rows, columns)
  top, left, h, w = (boxes[..., i] for i in range(4))
  bands = resize_bands(top, h, size, height, block, images.dtype)
  first, weights = resize_bands(left, w, size, width, block, images.dtype)
  if flipped is not None:
    first = jnp.where(flipped[..., None], first[..., ::-1], first)
    reversed_weights = weights[..., ::-1, ::-1, :]
    weights = jnp.where(flipped[..., None, None, None], reversed_weights, weights)
  return apply_bands(images, bands, (first, weights))


def resized_crop(images: jax.Array, boxes: jax.Array, size: int) -> jax.Array:
  """Crops a box from each image and resizes it, bicubic and antialiased.

  `A_y X A_x^T` with the weights of `resize_weights`. Pixels outside the box have no
  influence. The cubic may overshoot [0, 1].

  Args:
    images: [N, H, W, C].
    boxes: int [N, 4]: top, left, height, width, in pixels, inside the image.
    size: side of the result, pixels.

  Returns:
    [N, size, size, C], float32 or float64.

  Raises:
    InputError: another shape or type.

  >>> image = jnp.arange(16.0).reshape(1, 4, 4, 1)
  >>> resized_crop(image, jnp.array([[1, 1, 2, 2]]), 2)[0, :, :, 0].tolist()
  [[5.0, 6.0], [9.0, 10.0]]
  """
  images = given.images(images)
  shape = checks.real("boxes", boxes)
  if shape != (len(images), 4):
    raise InputError(
      f"boxes have shape {list(shape)}: they must be [{len(images)}, 4], one for each "
      "image"
    )
  boxes = jnp.asarray(boxes)
  _, height, width, _ = images.shape
  rows, columns = crop_matrices(boxes, height, width, size, images.dtype)
  return apply_separable(images, rows[:, None], columns[:, None])[:, 0]


def horizontal_flip(images: jax.Array) -> jax.Array:
  """Flips images [N, H, W, C] left to right.

  Raises:
    InputError: another shape or type.

  >>> horizontal_flip(jnp.array([[[[1], [2]]]])).ravel().tolist()
  [2, 1]
  """
  shape = checks.real("images", images)
  if len(shape) != 4:
    raise InputError(f"images have shape {list(shape)}: they must be [N, H, W, C]")
  return jnp.asarray(images)[:, :, ::-1, :]
