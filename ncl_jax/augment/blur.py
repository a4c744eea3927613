"""Gaussian blur by three box filters, as products with small matrices."""

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax.augment.geometry import apply_separable
from ncl_jax.numerics import at_least_float32


def blur_matrix(radius: jax.Array, size: int) -> jax.Array:
  """The blur along one axis as a matrix.

  Three passes of a box of half-width `r + 1/2`. With `s = radius^2 / 3` and
  `l = floor((sqrt(12 s + 1) - 1) / 2)`,
  `r = l + (2 l + 1) (l (l + 1) - 3 s) / (6 (s - (l + 1)^2))`, which gives the three
  boxes together the variance `radius^2`. A pixel weighs the part of it that the box
  covers; pixels beyond the border repeat the border's.

  Args:
    radius: [N], standard deviation in pixels, at least 0; 0 gives the identity.
    size: number of pixels along the axis.

  Returns:
    [N, size, size], rows sum to 1.

  Reference: Gwosdek et al. 2011 ("extended box blur"); Pillow's GaussianBlur.
  """
  radius = at_least_float32(radius)[:, None, None]
  s = radius * radius / 3
  inner = jnp.floor((jnp.sqrt(12 * s + 1) - 1) / 2)
  excess = (2 * inner + 1) * (inner * (inner + 1) - 3 * s)
  r = inner + excess / (6 * (s - (inner + 1) ** 2))
  # The outermost pixels reach to infinity: that is what repeating the border means.
  edges = np.arange(size + 1) - 0.5
  edges[[0, -1]] = -np.inf, np.inf
  offset = jnp.asarray(edges[None, :] - np.arange(size)[:, None], radius.dtype)[None]
  covered = jnp.clip((offset + r + 0.5) / (2 * r + 1), 0, 1)
  box = covered[:, :, 1:] - covered[:, :, :-1]
  highest = jax.lax.Precision.HIGHEST
  twice = jnp.matmul(box, box, precision=highest)
  return jnp.matmul(box, twice, precision=highest)


def gaussian_blur(images: jax.Array, radius: jax.Array) -> jax.Array:
  """Blurs each image by its own radius, `B_y X B_x^T`; see `blur_matrix`.

  Args:
    images: [N, H, W, C].
    radius: [N], standard deviation in pixels, at least 0; 0 changes nothing.

  Returns:
    [N, H, W, C], float32 or float64.

  >>> row = jnp.array([0.0, 0.0, 1.0, 0.0, 0.0]).reshape(1, 1, 5, 1)
  >>> gaussian_blur(row, jnp.array([0.5])).ravel().round(3).tolist()
  [0.005000000353902578, 0.10500000417232513, 0.7800000309944153, \
0.10500000417232513, 0.005000000353902578]
  """
  images = at_least_float32(images)
  _, height, width, _ = images.shape
  rows = blur_matrix(radius, height)
  columns = rows if height == width else blur_matrix(radius, width)
  return apply_separable(images, rows[:, None], columns[:, None])[:, 0]
