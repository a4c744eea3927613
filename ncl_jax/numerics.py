"""Operations that are defined at their edges: zero rows, empty sums, low precision."""

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
  """Casts to float32 unless the input is float64, which stays.

  Losses, norms and statistics are never computed below float32; float64 is kept so that
  formulas can be checked to the last digit.

  Args:
    x: any real array.

  Returns:
    The same values in float32, or in float64 if `x` is float64.
  """
  x = jnp.asarray(x)
  return x if x.dtype == jnp.float64 else x.astype(jnp.float32)


def safe_divide(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
  """`numerator / denominator`, with value 0 and gradient 0 where the denominator is 0.

  NaN and infinity are not zero: a NaN denominator gives NaN, and so does a numerator
  that is NaN or infinite over a denominator of 0.

  Args:
    numerator: any shape.
    denominator: same shape, or one that broadcasts to it.

  Returns:
    The quotient.
  """
  zero = denominator == 0
  # Nothing is divided by 0, so that value and gradient are finite; the factor, unlike
  # a `where`, lets NaN through.
  quotient = numerator / jnp.where(zero, 1, denominator)
  return quotient * (~zero).astype(quotient.dtype)


def l2_normalize(z: jax.typing.ArrayLike, axis: int = -1) -> jax.Array:
  """Scales vectors to unit length: `z / |z|`; an all-zero vector stays zero.

  A row that a non-negative transform has emptied is common, not an accident. Its value
  and its gradient are defined as 0; `z / max(|z|, eps)` would give NaN or 1/eps there.

  Args:
    z: array with vectors along `axis`.
    axis: the axis of the vectors.

  Returns:
    Array of the same shape, in float32 (float64 if `z` is float64). A vector with NaN
    or an infinite entry holds NaN, so that a loss or a metric of it is no number.

  Raises:
    InputError: `z` is no array of real numbers.

  >>> l2_normalize(jnp.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
  [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
  """
  checks.real("z", z)
  z = at_least_float32(z)
  # Dividing by the largest entry first keeps the square in range for any finite vector;
  # a constant factor changes neither the value nor the gradient of a unit vector.
  largest = jax.lax.stop_gradient(
    jnp.max(jnp.abs(z), axis=axis, keepdims=True, initial=0)
  )
  # The reciprocal of a larger one is subnormal, and compilers flush that to 0.
  largest = jnp.minimum(largest, jnp.finfo(z.dtype).max / 4)
  z = safe_divide(z, largest)
  square = jnp.sum(z * z, axis=axis, keepdims=True)
  # `square > 0` would take NaN for an empty row.
  return z * jax.lax.rsqrt(jnp.where(square == 0, 1, square))


def key(seed: jax.typing.ArrayLike) -> jax.Array:
  """Returns a random key that gives the same numbers under every setting of JAX.

  `jax_default_prng_impl` (rbg on many TPU machines) would change them, and under rbg
  the numbers of keys that are mapped over depend on how many there are: an image's
  random views would depend on the batch size.

  Args:
    seed: an integer, 0 or more.
  """
  return jax.random.key(seed, impl="threefry2x32")


@contextlib.contextmanager
def reverse_mode_alone(message: str) -> Iterator[None]:
  """Says what to do instead where `jax.jvp` meets a gradient written by hand.

  Args:
    message: of the error.

  Raises:
    InputError: where jax refuses forward mode of a `jax.custom_vjp` function.
  """
  try:
    yield
  except TypeError as error:
    if "forward-mode" not in str(error):
      raise
    raise InputError(message) from error


def entropy(p: jax.Array, axis: int = -1) -> jax.Array:
  """`-sum p log p` in nats, where `0 log 0` is 0 and its derivative finite.

  Args:
    p: probabilities along `axis`.
    axis: summed over.

  Returns:
    The shape of `p` without `axis`.

  >>> print(entropy(jnp.array([0.5, 0.5, 0.0])).round(3))
  0.693
  """
  # `p > 0` would take NaN for 0.
  # Negated inside the sum, which then is 0 and not -0.
  return jnp.sum(p * -jnp.log(jnp.where(p == 0, 1, p)), axis=axis)


def undefined_is_nan() -> contextlib.AbstractContextManager[None]:
  """A context for results that are NaN by definition, as of a dead dimension.

  `JAX_DEBUG_NANS` stops at any NaN; in here it lets them pass. Inside a caller's
  `jax.jit` it has no effect.
  """
  return jax.debug_nans(False)


def on_any_mesh(rows: str = "") -> Callable[[F], F]:
  """Makes a function of global arrays work on meshes with Explicit axes, too.

  With such axes, which `jax.make_mesh` makes by default, every ambiguous operation must
  state its sharding. Inside the function the axes are Auto and XLA chooses. On other
  arrays the function runs as it is.

  Args:
    rows: the argument whose leading axis is that of the results, which then are split
      as it is; "" = the results are whole on each device.

  Returns:
    A decorator.
  """

  def decorate(function: F) -> F:
    signature = inspect.signature(function)
    call = functools.partial(_with_auto_axes, function, signature, rows)

    def wrapper(*args, **kwargs):
      return call(*args, **kwargs)

    # With the globals of its module, by which doctest knows a module's own functions.
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
  given = signature.bind(*args, **kwargs).arguments
  arrays = {name: x for name, x in given.items() if isinstance(x, jax.Array)}
  spec = PartitionSpec()
  if rows and _explicit_mesh(given[rows]):
    spec = PartitionSpec(*jax.typeof(given[rows]).sharding.spec[:1])

  def inside(arrays):
    call = signature.bind(*args, **kwargs)
    call.arguments.update(arrays)
    return function(*call.args, **call.kwargs)

  return jax.sharding.auto_axes(
    inside, axes=mesh.explicit_axes, out_sharding=NamedSharding(mesh, spec)
  )(arrays)


def _explicit_mesh(x: Any) -> Any:
  """The mesh of an array on Explicit axes; None for all else."""
  if not isinstance(x, jax.Array):
    return None
  mesh = jax.typeof(x).sharding.mesh
  return mesh if mesh.explicit_axes else None
