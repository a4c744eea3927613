"""Network layers with torch's definitions: convolution, batch normalisation, linear."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.dtypes import promote_dtype
from jax.ad_checkpoint import checkpoint_name

from ncl_jax.errors import InputError
from ncl_jax.models.convolution import conv2d
from ncl_jax.numerics import at_least_float32

# What costs more to make again than to keep until the backward pass: convolutions'
# outputs, as they are, and batches' statistics.
KEPT = "kept"


def from_kept(
  method: Callable[..., Any], static: tuple[int, ...]
) -> Callable[..., Any]:
  """A method of a module that keeps `KEPT` alone for its backward pass.

  The rest follows from that at little cost: results of normalisation, ReLU and sums are
  as large as convolutions' outputs, and computing them takes hardly longer than reading
  them. The numbers are the same.

  Args:
    method: of a module, called as `method(module, ...)`.
    static: places of its arguments that are no arrays, the module's being 0.
  """
  policy = jax.checkpoint_policies.save_only_these_names(KEPT)
  return nn.remat(method, static_argnums=static, policy=policy)


def _draw(
  sampler: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
  # Drawn flat: the same numbers, but XLA needs a tenth of the time to compile them,
  # which for a whole network is seconds instead of half a minute.
  return sampler(key, (math.prod(shape),), jnp.float32).reshape(shape)


class Conv(nn.Module):
  """Convolution without bias, symmetric zero padding; He initialisation by fan-out.

  Weights are normal with variance `2 / (size^2 features)`, torchvision's choice for
  ResNets.

  Attributes:
    features: channels out.
    size: kernel height and width, in pixels.
    strides: pixels between outputs.
    padding: zero pixels on each side.
    dtype: computation's type; None = that of input and parameters. Parameters are
      float32.
    kept: whether `from_kept` keeps the output; else it is computed again.

  Reference: He et al. 2015 (arXiv:1502.01852), eq. 14.
  """

  features: int
  size: int
  strides: int = 1
  padding: int = 0
  dtype: Any = None
  kept: bool = True

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[B, H, W, C] -> [B, h, w, features]."""
    deviation = math.sqrt(2 / (self.size**2 * self.features))

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
      return deviation * _draw(jax.random.normal, key, shape)

    shape = (self.size, self.size, x.shape[-1], self.features)
    kernel = self.param("kernel", init, shape)
    x, kernel = promote_dtype(x, kernel, dtype=self.dtype)
    y = conv2d(x, kernel, self.strides, self.padding)
    return checkpoint_name(y, KEPT) if self.kept else y


class Linear(nn.Module):
  """Affine map `x kernel + bias` with torch's default initialisation.

  Both are uniform in `+-1 / sqrt(fan_in)`.

  Attributes:
    features: width out.
    dtype: computation's type; None = that of input and parameters. Parameters are
      float32.
  """

  features: int
  dtype: Any = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[..., C] -> [..., features]."""
    bound = x.shape[-1] ** -0.5

    def init(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
      return bound * (2 * _draw(jax.random.uniform, key, shape) - 1)

    kernel = self.param("kernel", init, (x.shape[-1], self.features))
    bias = self.param("bias", init, (self.features,))
    x, kernel, bias = promote_dtype(x, kernel, bias, dtype=self.dtype)
    y = x @ kernel
    return y + bias.reshape((1,) * (y.ndim - 1) + (-1,))


class BatchNorm(nn.Module):
  """Batch normalisation as torch defines it, with statistics of each view by itself.

  `y = (x - mean) / sqrt(var + 1e-5) * scale + bias`, per channel. Training uses the
  mean and the biased variance of the batch, over rows and pixels, and moves the running
  ones: `running += 0.1 (batch - running)`, where the variance counts as
  `n / (n - 1) var`, unbiased. Otherwise the running ones are used.

  With `views = V` the rows are example-major (row V n + v is view v of example n); view
  v is normalised by its own statistics and the running ones move once a view, view 0
  first, exactly as V forward passes, one a view, would move them. Under `jax.jit` with
  sharded rows the statistics are those of the whole batch.

  Statistics are float32 (float64 for float64 input) whatever the computation's type.

  Attributes:
    momentum: share of the batch in the new running statistics, torch's convention.
    epsilon: added to the variance.
    dtype: type of the result; None = that of input and parameters.

  Reference: Ioffe & Szegedy 2015 (arXiv:1502.03167); statistics per view as in the
  released code, which passes one view after the other.
  """

  momentum: float = 0.1
  epsilon: float = 1e-5
  dtype: Any = None

  @nn.compact
  def __call__(self, x: jax.Array, train: bool, views: int = 1) -> jax.Array:
    """[B, H, W, C] -> the same shape; B = N * views rows."""
    channels = x.shape[-1]
    scale = self.param("scale", nn.initializers.ones, (channels,))
    bias = self.param("bias", nn.initializers.zeros, (channels,))
    running_mean = self.variable("batch_stats", "mean", jnp.zeros, (channels,))
    running_var = self.variable("batch_stats", "var", jnp.ones, (channels,))
    if views < 1 or x.shape[0] % views:
      raise InputError(
        f"{x.shape[0]} rows in {views} views: the rows must be a multiple of the views"
      )
    # [N, V, H, W, C]: a split of the row axis, which moves nothing between devices.
    grouped = at_least_float32(x).reshape(-1, views, *x.shape[1:])
    if train:
      moments = self._move(grouped, running_mean, running_var)
      mean, var = checkpoint_name(moments, KEPT)
    else:
      mean, var = running_mean.value[None], running_var.value[None]
    factor = scale[None] * jax.lax.rsqrt(var + self.epsilon)
    mean, factor = (a[None, :, None, None] for a in (mean, factor))
    y = (grouped - mean) * factor + bias[None, None, None, None]
    dtype = jnp.result_type(x, scale) if self.dtype is None else self.dtype
    return y.reshape(x.shape).astype(dtype)

  def _move(
    self, grouped: jax.Array, running_mean: nn.Variable, running_var: nn.Variable
  ) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance [V, C] of the batch; moves the running ones."""
    rows, views, height, width, _ = grouped.shape
    count = rows * height * width
    if count < 2:
      raise InputError(
        f"{count} value per channel: training needs at least 2 to normalise a batch"
      )
    # One pass over the batch gives both moments. Taken about the running mean, which
    # soon follows the batch's, the difference below keeps its digits; exact about any.
    shift = jax.lax.stop_gradient(running_mean.value)
    moved = grouped - shift[None, None, None, None]
    first = jnp.mean(moved, (0, 2, 3))
    var = jnp.maximum(jnp.mean(moved * moved, (0, 2, 3)) - first * first, 0)
    mean = first + shift[None]
    if not self.is_initializing():
      # All views' moves at once: a view's part fades with each that comes after it.
      old = (1 - self.momentum) ** views
      faded = (1 - self.momentum) ** np.arange(views - 1, -1, -1)
      weights = (self.momentum * faded).astype(mean.dtype)[:, None]
      # No gradient flows here, and none is traced.
      seen = jax.lax.stop_gradient((mean, var * (count / (count - 1))))
      for running, batch in zip((running_mean, running_var), seen, strict=True):
        running.value = old * running.value + jnp.sum(weights * batch, 0)
    return mean, var
