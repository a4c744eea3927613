"""Arguments of the operations on images, checked and in a floating type."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.numerics import at_least_float32

Array = jax.typing.ArrayLike


def images(given: Array, *, unit: bool = False, coloured: bool = False) -> jax.Array:
  """Returns images [N, H, W, C] in at least float32, or raises an InputError.

  With `unit` they have to be in [0, 1], so levels of 0 to 255 are refused; with
  `coloured` C has to be 1 or 3.
  """
  shape = checks.real("images", given)
  if len(shape) != 4 or 0 in shape[1:]:
    raise InputError(f"images have shape {list(shape)}: they must be [N, H, W, C]")
  if coloured and shape[3] not in (1, 3):
    raise InputError(f"images have {shape[3]} channels: allowed are 1 and 3")
  x = checks.array("images", given)
  if unit and jnp.issubdtype(x.dtype, jnp.integer):
    raise InputError(
      f"images are {x.dtype}: they must be in [0, 1]; levels become that by "
      "images / 255"
    )
  return at_least_float32(x)


def per_image(name: str, given: Array, x: jax.Array) -> jax.Array:
  """Returns [N] numbers in the type of the images `x`, or raises an InputError."""
  shape = checks.real(name, given)
  if shape != x.shape[:1]:
    raise InputError(
      f"{name} has shape {list(shape)}: it must be [{len(x)}], one for each image"
    )
  return jnp.asarray(checks.array(name, given)).astype(x.dtype)
