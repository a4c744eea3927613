"""Similarities of all pairs of rows, and the matrix product that all losses use."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.numerics import l2_normalize

PRECISIONS = ("highest", "bfloat16")


def product(a: jax.Array, b: jax.Array, precision: str) -> jax.Array:
  """The matrix product `a b`, accumulated in the type of `a`.

  Similarities are divided by the temperature, which magnifies rounding errors. Some
  devices round to bfloat16 or TF32 by default. Here only `precision="bfloat16"` rounds
  the factors, and does so on any device.
  """
  if precision == "bfloat16":
    low = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return jnp.matmul(*low, preferred_element_type=jnp.float32).astype(a.dtype)
  return jnp.matmul(a, b, precision="highest")


def rounded(a: jax.Array, precision: str) -> jax.Array:
  """`a` rounded as in `product`: to bfloat16 for "bfloat16", else unchanged."""
  # Compilers may remove a cast to bfloat16 and back, but not `reduce_precision`.
  return jax.lax.reduce_precision(a, 8, 7) if precision == "bfloat16" else a


def check_views(**named: jax.typing.ArrayLike) -> None:
  """Raises InputError unless all are [N, 2, D], real, of one shape and not empty."""
  shapes = {name: list(checks.real(name, z)) for name, z in named.items()}
  for name, shape in shapes.items():
    if len(shape) != 3 or shape[1] != 2 or 0 in shape:
      raise InputError(
        f"{name} has shape {shape}: it must be [N, 2, D], two views of each example"
      )
    if shape != next(iter(shapes.values())):
      seen = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
      raise InputError(f"{seen}: they must have the same shape")


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
  """Cosines over temperature of all rows of `z` [N, 2, D]: [2N, 2N], diagonal -inf."""
  check_views(z=z)
  temperature = checks.positive("temperature", temperature)
  f = l2_normalize(z).reshape(-1, jnp.shape(z)[2])
  s = product(f, f.T, precision) / temperature
  # Masks instead of indexing, so that each device keeps its rows of `s`.
  i = jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
  j = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
  return jnp.where(i == j, -jnp.inf, s)
