"""Similarities of all pairs of rows at once, and the product behind every loss."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.numerics import l2_normalize

PRECISIONS = ("highest", "bfloat16")


def product(a: jax.Array, b: jax.Array, precision: str) -> jax.Array:
  """The matrix product `a b`, summed in the type of `a`.

  Similarities are divided by the temperature: rounding them to bfloat16 or TF32, as
  some devices do by default, would be seen in the loss. So that is for the user to ask.

  Args:
    a: [n, k] float32 or float64.
    b: [k, m] of the same type.
    precision: "highest", or "bfloat16", which rounds the factors on any device.

  Returns:
    [n, m].
  """
  if precision == "bfloat16":
    low = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return jnp.matmul(*low, preferred_element_type=jnp.float32).astype(a.dtype)
  return jnp.matmul(a, b, precision="highest")


def rounded(a: jax.Array, precision: str) -> jax.Array:
  """The values of `a` that `product` multiplies, rounded to bfloat16 if it does."""
  # Compilers may drop a cast to bfloat16 and back; this they keep.
  return jax.lax.reduce_precision(a, 8, 7) if precision == "bfloat16" else a


def check_views(z: jax.typing.ArrayLike, name: str = "z") -> None:
  """Raises InputError unless `z` is [N, 2, D], real and not empty."""
  shape = checks.real(name, z)
  if len(shape) != 3 or shape[1] != 2 or 0 in shape:
    raise InputError(
      f"{name} has shape {list(shape)}: it must be [N, 2, D], two views of each example"
    )


def check_same_shape(
  name: str, a: jax.typing.ArrayLike, other: str, b: jax.typing.ArrayLike
) -> None:
  """Raises InputError unless two arrays have the same shape."""
  shapes = checks.real(name, a), checks.real(other, b)
  if shapes[0] != shapes[1]:
    raise InputError(
      f"{name} has shape {list(shapes[0])} and {other} {list(shapes[1])}: they must be "
      "the same"
    )


def check_pairs(za: jax.typing.ArrayLike, zb: jax.typing.ArrayLike) -> None:
  """Raises InputError unless both are [N, D], of the same shape and not empty."""
  shapes = list(checks.real("za", za)), list(checks.real("zb", zb))
  if shapes[0] != shapes[1] or len(shapes[0]) != 2 or 0 in shapes[0]:
    raise InputError(
      f"za has shape {shapes[0]} and zb {shapes[1]}: both must be [N, D], N pairs"
    )


def all_pairs(
  z: jax.typing.ArrayLike, temperature: jax.typing.ArrayLike, precision: str
) -> jax.Array:
  """Cosines over temperature of all pairs of rows; -inf with oneself.

  Args:
    z: [N, 2, D] features, not normalised.
    temperature: above 0.
    precision: see `product`.

  Returns:
    [2N, 2N].

  Raises:
    InputError: another shape, or a temperature that is not a finite number above 0.
  """
  check_views(z)
  checks.positive("temperature", temperature)
  f = l2_normalize(z).reshape(-1, jnp.shape(z)[2])
  s = product(f, f.T, precision) / temperature
  # Masks instead of indexing: each device keeps its rows of `s`, nothing moves.
  i = jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
  j = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
  return jnp.where(i == j, -jnp.inf, s)
