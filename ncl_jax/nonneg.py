"""Non-negative transforms of a projector's output.

Contrastive learning uses the transform `identity`. Its non-negative version uses any
transform in `NON_NEGATIVE`, applied to the projector's output before normalisation and
loss (Wang et al. 2024, arXiv:2403.12459, Section 3). `gelu` and `leaky_relu` can be
negative; they are included for comparison. Integers and booleans are converted to
float32. Anything but an array of real numbers raises an InputError.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from ncl_jax import checks

Transform = Callable[[jax.typing.ArrayLike], jax.Array]


def identity(z: jax.typing.ArrayLike) -> jax.Array:
  """Returns `z`: plain contrastive learning."""
  return _given(z)


def relu(z: jax.typing.ArrayLike) -> jax.Array:
  """`max(z, 0)`; derivative 0 at 0."""
  return jax.nn.relu(_given(z))


def gelu(z: jax.typing.ArrayLike) -> jax.Array:
  """`z Phi(z)` with the exact normal distribution function Phi, not the tanh form."""
  return jax.nn.gelu(_given(z), approximate=False)


def rep_relu(z: jax.typing.ArrayLike) -> jax.Array:
  """ReLU with the derivative of GELU, so that dead dimensions still learn.

  The value is `max(z, 0)`, with exact zeros where `z <= 0`. The derivative is `Phi(z) +
  z phi(z)`, where Phi and phi are the normal distribution function and its density.

  Source: the released code's transform for CIFAR (Wang et al. 2024, arXiv:2403.12459).

  >>> rep_relu(jnp.array([-1.0, 0.0, 2.0])).tolist()
  [0.0, 0.0, 2.0]
  >>> float(jax.grad(rep_relu)(0.0))
  0.5
  """
  return _rep_relu(_given(z))


@jax.custom_jvp
def _rep_relu(z: jax.Array) -> jax.Array:
  return jax.nn.relu(z)


@_rep_relu.defjvp
def _rep_relu_jvp(primals, tangents):
  _, tangent = jax.jvp(gelu, primals, tangents)
  return _rep_relu(*primals), tangent


def sigmoid(z: jax.typing.ArrayLike) -> jax.Array:
  """`1 / (1 + exp(-z))`: in (0, 1), never exactly sparse."""
  return jax.nn.sigmoid(_given(z))


def softplus(z: jax.typing.ArrayLike) -> jax.Array:
  """`log(1 + exp(z))`: a smooth ReLU, never exactly sparse."""
  return jax.nn.softplus(_given(z))


def exp(z: jax.typing.ArrayLike) -> jax.Array:
  """`exp(z)`: infinite in float32 above 88."""
  return jnp.exp(_given(z))


def leaky_relu(z: jax.typing.ArrayLike) -> jax.Array:
  """`z` if `z > 0`, else `0.01 z`; derivative 0.01 at 0."""
  # `jax.nn.leaky_relu` has derivative 1 at 0, the released code 0.01.
  z = _given(z)
  return jnp.where(z > 0, z, 0.01 * z)


def _given(z: jax.typing.ArrayLike) -> jax.Array:
  """`z` as an array of its own floating type; other numbers become float32."""
  checks.real("z", z)
  z = jnp.asarray(z)
  return z if jnp.issubdtype(z.dtype, jnp.floating) else z.astype(jnp.float32)


_ALL = (identity, relu, rep_relu, gelu, sigmoid, softplus, exp, leaky_relu)
_TRANSFORMS: dict[str, Transform] = {x.__name__: x for x in _ALL}

NAMES = frozenset(_TRANSFORMS)
NON_NEGATIVE = frozenset({"relu", "rep_relu", "sigmoid", "softplus", "exp"})
SPARSE = frozenset({"relu", "rep_relu"})  # those with exact zeros


def get(name: str) -> Transform:
  """Returns the transform in `NAMES` called `name`, a function [.., D] -> [.., D].

  Raises:
    InputError: unknown name.

  >>> get("relu")(jnp.array([-1.0, 2.0])).tolist()
  [0.0, 2.0]
  """
  checks.choice("transform", name, sorted(NAMES))
  return _TRANSFORMS[name]


def apply(z: jax.typing.ArrayLike, name: str) -> jax.Array:
  """Applies the transform called `name` to `z` [.., D]; the result is not normalised.

  Raises:
    InputError: unknown name.

  >>> apply(jnp.array([-1.0, 2.0]), "rep_relu").tolist()
  [0.0, 2.0]
  """
  return get(name)(z)
