"""Arguments of the operations on images, checked and in a floating type."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.numerics import at_least_float32

Array = jax.typing.ArrayLike


def images(given: Array, *, unit: bool = False, coloured: bool = False) -> jax.Array:
  """Returns images in at least float32.

  Args:
    given: [N, H, W, C] real numbers.
    unit: whether the operation is defined on [0, 1]: levels of 0 to 255 are refused.
    coloured: whether C has to be 1 or 3.

  Raises:
    InputError: another shape or type, or images without a pixel.
  """
  shape = checks.real("images", given)
  if len(shape) != 4 or 0 in shape[1:]:
    raise InputError(f"images have shape {list(shape)}: they must be [N, H, W, C]")
  if coloured and shape[3] not in (1, 3):
    raise InputError(f"images have {shape[3]} channels: allowed are 1 and 3")
  dtype = jnp.result_type(checks.array("images", given))
  if unit and jnp.issubdtype(dtype, jnp.integer):
    raise InputError(
      f"images are {dtype}: they must be in [0, 1]; levels become that by images / 255"
    )
  return at_least_float32(checks.array("images", given))


def per_image(name: str, given: Array, x: jax.Array) -> jax.Array:
  """Returns a number for each image, in the type of the images.

  Args:
    given: [N] real numbers.

  Raises:
    InputError: another shape or type.
  """
  shape = checks.real(name, given)
  if shape != x.shape[:1]:
    raise InputError(
      f"{name} has shape {list(shape)}: it must be [{len(x)}], one for each image"
    )
  return jnp.asarray(checks.array(name, given)).astype(x.dtype)
