"""Gaussian blur by three box filters, as sums of shifted images."""

import math

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.augment import given
from ncl_jax.numerics import on_any_mesh


def box_weights(radius: jax.Array, largest: float) -> jax.Array:
  """Weights of the pixels under a box, by their distance from its centre.

  The box has the half-width `r + 1/2`. With `s = radius^2 / 3` and
  `l = floor((sqrt(12 s + 1) - 1) / 2)`,
  `r = l + (2 l + 1) (l (l + 1) - 3 s) / (6 (s - (l + 1)^2))`, so that three boxes
  together have the variance `radius^2`; 0 gives a box of one pixel. A pixel's weight is
  the part of it that the box covers. The result is [M + 1, N] for radii [N], for
  distances 0 to M as `largest` needs them; those above 0 occur on both sides.

  Reference: Gwosdek et al. 2011 ("extended box blur"); Pillow's GaussianBlur.
  """
  radius = radius[None]
  s = radius * radius / 3
  inner = jnp.floor((jnp.sqrt(12 * s + 1) - 1) / 2)
  excess = (2 * inner + 1) * (inner * (inner + 1) - 3 * s)
  r = inner + excess / (6 * (s - (inner + 1) ** 2))
  reach = int((math.sqrt(4 * largest**2 + 1) - 1) / 2) + 1
  distance = jnp.arange(reach + 1, dtype=radius.dtype)[:, None]
  return jnp.clip(r + 1 - distance, 0, 1) / (2 * r + 1)


@on_any_mesh(rows="images")
def gaussian_blur(images: jax.Array, radius: jax.Array, largest: float) -> jax.Array:
  """Blurs each image by its own radius, with three boxes along each axis.

  Before each box, the image is padded with its border pixels.

  Args:
    images: [N, H, W, C].
    radius: [N], standard deviation in pixels, at least 0; 0 changes nothing.
    largest: the largest radius; larger ones are clipped to it.

  Returns:
    [N, H, W, C], float32 or float64.

  Raises:
    InputError: another shape or type.

  >>> row = jnp.array([0.0, 0.0, 1.0, 0.0, 0.0]).reshape(1, 1, 5, 1)
  >>> gaussian_blur(row, jnp.array([0.5]), 0.5).ravel().round(3).tolist()
  [0.005000000353902578, 0.10500000417232513, 0.7800000309944153, \
0.10500000417232513, 0.005000000353902578]
  """
  images = given.images(images)
  largest = checks.number("largest", largest, 0)
  radius = jnp.minimum(given.per_image("radius", radius, images), largest)
  weights = box_weights(radius, largest)[:, :, None, None, None]
  for axis in (1, 2):
    for _ in range(3):
      images = _box(images, weights, axis)
  return images


def _box(images: jax.Array, weights: jax.Array, axis: int) -> jax.Array:
  reach, size = len(weights) - 1, images.shape[axis]
  borders = [(reach, reach) if i == axis else (0, 0) for i in range(images.ndim)]
  # On CPU the barrier puts the padded images into memory. Fused into the sum, each
  # shift would branch at every pixel and recompute the previous box: 8 to 27 times
  # slower, measured at 224 pixels. On accelerators it would only add traffic.
  padded = jax.lax.platform_dependent(
    jnp.pad(images, borders, mode="edge"),
    cpu=jax.lax.optimization_barrier,
    default=lambda padded: padded,
  )

  def shifted(by: int) -> jax.Array:
    return jax.lax.slice_in_dim(padded, reach + by, reach + by + size, axis=axis)

  total = weights[0] * shifted(0)
  for distance in range(1, reach + 1):
    total += weights[distance] * (shifted(-distance) + shifted(distance))
  return total
