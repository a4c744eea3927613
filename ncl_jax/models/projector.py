"""The projector, and an identity for models without one."""

from typing import Any

import jax
from flax import linen as nn

from ncl_jax.models.layers import BatchNorm, Linear
from ncl_jax.numerics import at_least_float32


class Projector(nn.Module):
  """Linear layers with biases and a ReLU between any two; by default two layers.

  Attributes:
    hidden: width of the hidden layers.
    out: width D of the result.
    dtype: of the computation; None = that of input and parameters. Results are float32.
    depth: linear layers, at least 1.
    batch_norm: normalise each hidden layer before its ReLU.

  Reference: the released code's recipe, e.g. 2048 and 256 on CIFAR; three layers and
  normalisation as in Zbontar et al. 2021 (arXiv:2103.03230), Section 2.2.
  """

  hidden: int
  out: int
  dtype: Any = None
  depth: int = 2
  batch_norm: bool = False

  @nn.compact
  def layers(
    self, h: jax.Array, train: bool = False, views: int = 1
  ) -> tuple[jax.Array, jax.Array]:
    """[B, F] -> last hidden layer after the ReLU [B, hidden] and z [B, D], float32."""
    hidden = h
    for i in range(1, self.depth):
      hidden = Linear(self.hidden, self.dtype, name=f"linear{i}")(hidden)
      if self.batch_norm:
        pixel = hidden[:, None, None]  # for BatchNorm, a row is an image of one pixel
        norm = BatchNorm(dtype=self.dtype, name=f"bn{i}")
        hidden = norm(pixel, train, views)[:, 0, 0]
      hidden = nn.relu(hidden)
    z = Linear(self.out, self.dtype, name=f"linear{self.depth}")(hidden)
    return at_least_float32(hidden), at_least_float32(z)

  def __call__(self, h: jax.Array, train: bool = False, views: int = 1) -> jax.Array:
    """[B, F] -> z [B, D], float32; train and views as in `ContrastiveModel`."""
    return self.layers(h, train, views)[1]


class NoProjector(nn.Module):
  """Used for models without a projector: hidden layer and z are h."""

  def layers(self, h: jax.Array) -> tuple[jax.Array, jax.Array]:
    """[B, F] -> h twice."""
    return h, h

  def __call__(self, h: jax.Array, train: bool = False, views: int = 1) -> jax.Array:
    """[B, F] -> h."""
    return h
