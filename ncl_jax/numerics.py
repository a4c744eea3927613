"""Safe arithmetic: defined for zero rows, empty sums and low precision."""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ncl_jax import checks
from ncl_jax.errors import InputError

F = TypeVar("F", bound=Callable)


def at_least_float32(x: jax.typing.ArrayLike) -> jax.Array:
  """Casts a real array to float32; float64 is kept.

  Losses, norms and statistics are never computed below float32. Keeping float64 allows
  tests to check formulas to the last digit.
  """
  x = jnp.asarray(x)
  return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def safe_divide(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
  """`numerator / denominator`, with value 0 and gradient 0 where the denominator is 0.

  A NaN denominator gives NaN, and so does a NaN or infinite numerator over 0.
  """
  zero = denominator == 0
  # Dividing by 1 instead of 0 keeps value and gradient finite. A final `where` would
  # hide NaN; multiplying by the mask keeps it.
  quotient = numerator / jnp.where(zero, 1, denominator)
  return quotient * (~zero).astype(quotient.dtype)


def l2_normalize(z: jax.typing.ArrayLike, axis: int = -1) -> jax.Array:
  """Scales vectors along `axis` to unit length: `z / |z|`; an all-zero vector stays 0.

  Non-negative transforms often leave all-zero rows. Their value and gradient are
  defined as 0; `z / max(|z|, eps)` would give a gradient of NaN or 1/eps.

  Returns:
    Array of the same shape, in float32 (float64 if `z` is float64). A vector with a NaN
    or infinite entry becomes NaN, so that losses and metrics of it are NaN too.

  Raises:
    InputError: `z` is not an array of real numbers.

  >>> l2_normalize(jnp.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
  [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
  """
  checks.real("z", z)
  z = at_least_float32(z)
  # Dividing by the largest entry first keeps the square in range for any finite vector.
  # A constant factor changes neither the value nor the gradient of the unit vector.
  largest = jax.lax.stop_gradient(
    jnp.max(jnp.abs(z), axis=axis, keepdims=True, initial=0)
  )
  # The reciprocal of a larger number is subnormal, and compilers flush it to 0.
  largest = jnp.minimum(largest, jnp.finfo(z.dtype).max / 4)
  z = safe_divide(z, largest)
  square = jnp.sum(z * z, axis=axis, keepdims=True)
  # `square > 0` would treat NaN as an all-zero row.
  return z * jax.lax.rsqrt(jnp.where(square == 0, 1, square))


def key(seed: jax.typing.ArrayLike) -> jax.Array:
  """Returns a random key whose numbers do not depend on JAX's settings.

  `jax_default_prng_impl` (rbg on many TPU machines) would change them. Under rbg the
  numbers also depend on how many keys `jax.vmap` sees, so an image's random views would
  depend on the batch size.
  """
  return jax.random.key(seed, impl="threefry2x32")


@contextlib.contextmanager
def reverse_mode_only(message: str) -> Iterator[None]:
  """Raises an InputError with this message where JAX refuses forward mode.

  JAX refuses `jax.jvp` of a function with a `jax.custom_vjp`.
  """
  try:
    yield
  except TypeError as error:
    if "forward-mode" not in str(error):
      raise
    raise InputError(message) from error


def entropy(p: jax.Array, axis: int = -1) -> jax.Array:
  """`-sum p log p` along `axis` in nats; `0 log 0` is 0 with a finite derivative.

  >>> print(entropy(jnp.array([0.5, 0.5, 0.0])).round(3))
  0.693
  """
  # `p > 0` would treat NaN as 0. Negating inside the sum gives 0 instead of -0.
  return jnp.sum(p * -jnp.log(jnp.where(p == 0, 1, p)), axis=axis)


def undefined_is_nan() -> contextlib.AbstractContextManager[None]:
  """A context that allows NaN results, for example for a dead dimension.

  `JAX_DEBUG_NANS` raises at any NaN except inside this context. Inside a caller's
  `jax.jit` the context has no effect.
  """
  return jax.debug_nans(False)


def on_any_mesh(rows: str = "") -> Callable[[F], F]:
  """Returns a decorator that makes a function work on meshes with Explicit axes.

  `jax.make_mesh` makes Explicit axes by default, on which every ambiguous operation
  must state its sharding. Inside the function the axes are Auto, so XLA chooses. On
  other arrays the function is unchanged.

  Args:
    rows: name of the argument whose leading axis the results share; the results are
      sharded like it. "": the results are replicated.
  """

  def decorate(function: F) -> F:
    signature = inspect.signature(function)
    call = functools.partial(_with_auto_axes, function, signature, rows)

    def wrapper(*args, **kwargs):
      return call(*args, **kwargs)

    # doctest recognises a module's own functions by their globals.
    local = types.FunctionType(
      wrapper.__code__, function.__globals__, closure=wrapper.__closure__
    )
    return cast(F, functools.wraps(function)(local))

  return decorate


def _with_auto_axes(function, signature, rows, *args, **kwargs):
  values = (*args, *kwargs.values())
  mesh = next(filter(None, map(_explicit_mesh, values)), None)
  if mesh is None:
    return function(*args, **kwargs)
  call = signature.bind(*args, **kwargs)
  given = dict(call.arguments)
  arrays = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
  spec = PartitionSpec()
  if rows and _explicit_mesh(given[rows]):
    spec = PartitionSpec(*jax.typeof(given[rows]).sharding.spec[:1])

  def inside(arrays):
    call.arguments.update(arrays)
    return function(*call.args, **call.kwargs)

  return jax.sharding.auto_axes(
    inside, axes=mesh.explicit_axes, out_sharding=NamedSharding(mesh, spec)
  )(arrays)


def _explicit_mesh(x: Any) -> Any:
  """The mesh of an array on Explicit axes, else None."""
  if not isinstance(x, jax.Array):
    return None
  mesh = jax.typeof(x).sharding.mesh
  return mesh if mesh.explicit_axes else None
