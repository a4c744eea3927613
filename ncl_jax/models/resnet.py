"""ResNet backbones with torchvision's definitions."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from ncl_jax import checks
from ncl_jax.models.layers import KEPT, BatchNorm, Conv, from_kept
from ncl_jax.numerics import at_least_float32

STEMS = ("cifar", "imagenet")


class BasicBlock(nn.Module):
  """Two 3x3 convolutions and a shortcut: `relu(x + f(x))`.

  Attributes:
    width: channels of the stage.
    strides: of the first convolution.
    dtype: computation's type.
  """

  width: int
  strides: int
  dtype: Any = None
  expansion = 1

  @nn.compact
  def __call__(self, x: jax.Array, train: bool, views: int) -> jax.Array:
    """[B, H, W, C] -> [B, h, w, width]."""
    y = Conv(self.width, 3, self.strides, 1, self.dtype, name="conv1")(x)
    y = nn.relu(BatchNorm(dtype=self.dtype, name="bn1")(y, train, views))
    y = Conv(self.width, 3, 1, 1, self.dtype, name="conv2")(y)
    y = BatchNorm(dtype=self.dtype, name="bn2")(y, train, views)
    return nn.relu(y + _shortcut(self, x, train, views))


class Bottleneck(nn.Module):
  """1x1, 3x3 and 1x1 convolution and a shortcut; the 3x3 one strides (version 1.5).

  Attributes:
    width: channels of the 3x3 convolution.
    strides: of the 3x3 convolution.
    dtype: computation's type.
  """

  width: int
  strides: int
  dtype: Any = None
  expansion = 4

  @nn.compact
  def __call__(self, x: jax.Array, train: bool, views: int) -> jax.Array:
    """[B, H, W, C] -> [B, h, w, 4 width]."""
    y = Conv(self.width, 1, 1, 0, self.dtype, name="conv1")(x)
    y = nn.relu(BatchNorm(dtype=self.dtype, name="bn1")(y, train, views))
    y = Conv(self.width, 3, self.strides, 1, self.dtype, name="conv2")(y)
    y = nn.relu(BatchNorm(dtype=self.dtype, name="bn2")(y, train, views))
    y = Conv(4 * self.width, 1, 1, 0, self.dtype, name="conv3")(y)
    y = BatchNorm(dtype=self.dtype, name="bn3")(y, train, views)
    return nn.relu(y + _shortcut(self, x, train, views))


def _shortcut(block: Any, x: jax.Array, train: bool, views: int) -> jax.Array:
  """The input, brought to the block's output shape where that differs."""
  features = block.width * block.expansion
  if block.strides == 1 and x.shape[-1] == features:
    return x
  x = Conv(features, 1, block.strides, 0, block.dtype, name="downsample_conv")(x)
  return BatchNorm(dtype=block.dtype, name="downsample_bn")(x, train, views)


class ResNet(nn.Module):
  """Residual network without its classifier, as in torchvision (version 1.5).

  Attributes:
    stages: number of blocks in each of the four stages.
    block: `BasicBlock` or `Bottleneck`.
    stem: "cifar" = 3x3 convolution, stride 1, padding 2 (the released code's); or
      "imagenet" = 7x7, stride 2, padding 3, then 3x3 max-pooling, stride 2.
    width: channels of the first stage; doubled in each further one.
    dtype: computation's type, e.g. bfloat16; None = that of input and parameters.
      Parameters and results are float32.
    remat: keep only each block's input for the backward pass and compute the rest
      again: the same numbers in less memory and more time. Otherwise convolutions'
      outputs are kept, and what lies between them is computed again, with it the CIFAR
      stem's.
    keep_all: without `remat`, leave to the compiler what is kept. A CPU's computes
      cheap parts again by itself, and tracing takes a fifth less.

  Reference: He et al. 2015 (arXiv:1512.03385), table 1.
  """

  stages: tuple[int, ...]
  block: type[BasicBlock] | type[Bottleneck]
  stem: str = "cifar"
  width: int = 64
  dtype: Any = None
  remat: bool = False
  keep_all: bool = False

  @property
  def num_features(self) -> int:
    """Width F of the result."""
    return self.width * 2 ** (len(self.stages) - 1) * self.block.expansion

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False, views: int = 1) -> jax.Array:
    """[B, H, W, C] images -> [B, F] features h, float32."""
    x = self._wrapped(ResNet._maps, (2, 3))(self, x, train, views)
    return jnp.mean(at_least_float32(x), (1, 2))

  def _maps(self, x: jax.Array, train: bool, views: int) -> jax.Array:
    """[B, H, W, C] images -> the last stage's maps [B, h, w, F]."""
    # Each by itself: otherwise the compiler makes the maps of a stage together with its
    # output, which the next one needs long before.
    stage = self._wrapped(ResNet._stage, (2, 3, 4))
    for index in range(len(self.stages)):
      x = stage(self, x, index, train, views)
    return x

  def _wrapped(
    self, method: Callable[..., Any], static: tuple[int, ...]
  ) -> Callable[..., Any]:
    plain = self.remat or self.keep_all
    return method if plain else from_kept(method, static)

  def _stage(self, x: jax.Array, stage: int, train: bool, views: int) -> jax.Array:
    """Images, for stage 0, or the maps of the stage before -> maps of this one."""
    parts: list[Any] = [ResNet._stem, self.block]
    if self.remat:
      # Counted with `self`: train and views are no arrays.
      parts = [nn.remat(part, static_argnums=(2, 3)) for part in parts]
    stem, block = parts
    if stage == 0:
      x = stem(self, x, train, views)
    for index in range(self.stages[stage]):
      strides = 2 if stage and not index else 1
      name = f"layer{stage + 1}_{index}"
      width = self.width * 2**stage
      x = block(width, strides, self.dtype, name=name)(x, train, views)
    return x

  def _stem(self, x: jax.Array, train: bool, views: int) -> jax.Array:
    """[B, H, W, C] images -> what the first block sees."""
    size, strides, padding = (3, 1, 2) if self.stem == "cifar" else (7, 2, 3)
    # Of three channels a small kernel makes a tenth of all maps by less than a
    # hundredth of all products: not worth keeping.
    kept = self.stem != "cifar"
    x = Conv(self.width, size, strides, padding, self.dtype, kept, name="conv1")(x)
    x = nn.relu(BatchNorm(dtype=self.dtype, name="bn1")(x, train, views))
    if self.stem == "cifar":
      return x
    x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
    return checkpoint_name(x, KEPT)


def resnet10(stem: str = "cifar", width: int = 64, dtype: Any = None) -> ResNet:
  """ResNet-10, one basic block a stage: the smallest, for small images.

  Args:
    stem: "cifar" or "imagenet", see `ResNet`.
    width: channels of the first stage, at least 1.
    dtype: computation's type; None = that of input and parameters.

  Returns:
    The backbone, `num_features` = 8 width.

  Raises:
    InputError: an unknown stem.
  """
  return _resnet((1, 1, 1, 1), BasicBlock, stem, width, dtype)


def resnet18(stem: str = "cifar", width: int = 64, dtype: Any = None) -> ResNet:
  """ResNet-18, two basic blocks a stage.

  Args:
    stem: "cifar" or "imagenet", see `ResNet`.
    width: channels of the first stage, at least 1.
    dtype: computation's type; None = that of input and parameters.

  Returns:
    The backbone, `num_features` = 8 width.

  Raises:
    InputError: an unknown stem.

  >>> resnet18().num_features
  512
  """
  return _resnet((2, 2, 2, 2), BasicBlock, stem, width, dtype)


def resnet50(stem: str = "cifar", width: int = 64, dtype: Any = None) -> ResNet:
  """ResNet-50, bottleneck blocks, 3, 4, 6 and 3 a stage.

  Args:
    stem: "cifar" or "imagenet", see `ResNet`.
    width: channels of the first stage's 3x3 convolutions, at least 1.
    dtype: computation's type; None = that of input and parameters.

  Returns:
    The backbone, `num_features` = 32 width.

  Raises:
    InputError: an unknown stem.
  """
  return _resnet((3, 4, 6, 3), Bottleneck, stem, width, dtype)


def _resnet(stages, block, stem: str, width: int, dtype: Any) -> ResNet:
  checks.choice("stem", stem, STEMS)
  checks.whole("width", width, 1)
  return ResNet(stages, block, stem, width, dtype)
