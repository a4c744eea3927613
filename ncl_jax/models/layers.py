"""Convolution, linear layer and batch normalisation as torch defines them."""

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

# Name of what is saved for backward, because rematerialising it would cost more: the
# convolutions' outputs and the batch statistics.
SAVED = "saved"


def remat_rest(
  method: Callable[..., Any], static: tuple[int, ...]
) -> Callable[..., Any]:
  """A module's method that saves only `SAVED` for backward and rematerialises the rest.

  Outputs of normalisation, ReLU and sums are as large as those of convolutions, but
  computing them takes hardly longer than reading them. The numbers are the same.
  `static` are the positions of arguments that are not arrays; the module's is 0.
  """
  policy = jax.checkpoint_policies.save_only_these_names(SAVED)
  return nn.remat(method, static_argnums=static, policy=policy)


def _draw(
  sampler: Callable[..., jax.Array], key: jax.Array, shape: tuple[int, ...]
) -> jax.Array:
  # Drawn flat, which gives the same numbers in a tenth of the compilation time: seconds
  # instead of half a minute for a whole network.
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
    dtype: of the computation; None = that of input and parameters. Parameters are
      float32.
    saved: whether `remat_rest` saves the output or rematerialises it.

  Reference: He et al. 2015 (arXiv:1502.01852), eq. 14.
  """

  features: int
  size: int
  strides: int = 1
  padding: int = 0
  dtype: Any = None
  saved: bool = True

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
    return checkpoint_name(y, SAVED) if self.saved else y


class Linear(nn.Module):
  """`x kernel + bias` with torch's initialisation, uniform in `+-1 / sqrt(fan_in)`.

  Attributes:
    features: width of the output.
    dtype: of the computation; None = that of input and parameters. Parameters are
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
  """Batch normalisation as in torch, with separate statistics for each view.

  `y = (x - mean) / sqrt(var + 1e-5) * scale + bias`, per channel. Training uses the
  batch's mean and biased variance over rows and pixels, and updates the running
  statistics: `running += 0.1 (batch - running)`, with the unbiased variance
  `n / (n - 1) var`. Evaluation uses the running statistics.

  With `views = V` the rows are example-major (row V n + v is view v of example n). Each
  view is normalised by its own statistics. The running statistics are updated once per
  view, view 0 first, exactly as by V forward passes with one view each. Under `jax.jit`
  with sharded rows, the statistics cover the whole batch.

  Statistics are float32 (float64 for float64 input) for any dtype.

  Attributes:
    momentum: weight of the batch in the new running statistics, as in torch.
    epsilon: added to the variance.
    dtype: of the result; None = that of input and parameters.

  Reference: Ioffe & Szegedy 2015 (arXiv:1502.03167); per-view statistics as in the
  released code, which passes the views one after the other.
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
    # [N, V, H, W, C]: splitting the row axis moves nothing between devices.
    grouped = at_least_float32(x).reshape(-1, views, *x.shape[1:])
    if train:
      moments = self._move(grouped, running_mean, running_var)
      mean, var = checkpoint_name(moments, SAVED)
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
    """Mean and biased variance [V, C] of the batch; updates the running statistics."""
    rows, views, height, width, _ = grouped.shape
    count = rows * height * width
    if count < 2:
      raise InputError(
        f"{count} value per channel: training needs at least 2 to normalise a batch"
      )
    # One pass over the batch gives both moments. They are taken about the running mean,
    # which is close to the batch's, so that the difference below keeps its precision.
    shift = jax.lax.stop_gradient(running_mean.value)
    moved = grouped - shift[None, None, None, None]
    first = jnp.mean(moved, (0, 2, 3))
    var = jnp.maximum(jnp.mean(moved * moved, (0, 2, 3)) - first * first, 0)
    mean = first + shift[None]
    if not self.is_initializing():
      # The updates of all views at once: each later view discounts the earlier ones.
      old = (1 - self.momentum) ** views
      faded = (1 - self.momentum) ** np.arange(views - 1, -1, -1)
      weights = (self.momentum * faded).astype(mean.dtype)[:, None]
      # Without gradient, so that none is traced.
      seen = jax.lax.stop_gradient((mean, var * (count / (count - 1))))
      for running, batch in zip((running_mean, running_var), seen, strict=True):
        running.value = old * running.value + jnp.sum(weights * batch, 0)
    return mean, var
