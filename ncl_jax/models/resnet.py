"""ResNet backbones as torchvision defines them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

from ncl_jax import checks
from ncl_jax.models.layers import SAVED, BatchNorm, Conv, remat_rest
from ncl_jax.numerics import at_least_float32

STEMS = ("cifar", "imagenet")
KEEPS = ("all", "convolutions", "blocks")


class BasicBlock(nn.Module):
  """Two 3x3 convolutions and a shortcut: `relu(x + f(x))`.

  Attributes:
    width: channels of the stage.
    strides: of the first convolution.
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
  """1x1, 3x3 and 1x1 convolution and a shortcut (version 1.5: the 3x3 is strided).

  Attributes:
    width: channels of the 3x3 convolution.
    strides: of the 3x3 convolution.
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
  """The input, projected to the block's output shape if that differs."""
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
    width: channels of the first stage; doubled in each later stage.
    dtype: of the computation, e.g. bfloat16; None = that of input and parameters.
      Parameters and results are float32.
    keep: what is saved for backward; the rest is rematerialised, with the same numbers.
      "all" = everything, the fastest; "convolutions" = their outputs, except the CIFAR
      stem's; "blocks" = each block's input, the least memory and the most time.

  Reference: He et al. 2015 (arXiv:1512.03385), table 1.
  """

  stages: tuple[int, ...]
  block: type[BasicBlock] | type[Bottleneck]
  stem: str = "cifar"
  width: int = 64
  dtype: Any = None
  keep: str = "all"

  @property
  def num_features(self) -> int:
    """Width F of the result."""
    return self.width * 2 ** (len(self.stages) - 1) * self.block.expansion

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False, views: int = 1) -> jax.Array:
    """[B, H, W, C] images -> [B, F] features h, float32."""
    x = self._wrapped(ResNet._stages, (2, 3))(self, x, train, views)
    return jnp.mean(at_least_float32(x), (1, 2))

  def _stages(self, x: jax.Array, train: bool, views: int) -> jax.Array:
    """[B, H, W, C] images -> the last stage's feature maps [B, h, w, F]."""
    # Each stage is wrapped separately. Otherwise the compiler rematerialises all of a
    # stage's feature maps as soon as the next stage needs its output.
    stage = self._wrapped(ResNet._stage, (2, 3, 4))
    for index in range(len(self.stages)):
      x = stage(self, x, index, train, views)
    return x

  def _wrapped(
    self, method: Callable[..., Any], static: tuple[int, ...]
  ) -> Callable[..., Any]:
    return remat_rest(method, static) if self.keep == "convolutions" else method

  def _stage(self, x: jax.Array, stage: int, train: bool, views: int) -> jax.Array:
    """The previous stage's feature maps (stage 0: images) -> this stage's."""
    parts: list[Any] = [ResNet._stem, self.block]
    if self.keep == "blocks":
      # Positions of train and views, which are not arrays, counted from `self`.
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
    """[B, H, W, C] images -> input of the first block."""
    size, strides, padding = (3, 1, 2) if self.stem == "cifar" else (7, 2, 3)
    # The small kernel on three channels makes a tenth of all feature maps with less
    # than a hundredth of the arithmetic, so its output is not worth saving.
    saved = self.stem != "cifar"
    x = Conv(self.width, size, strides, padding, self.dtype, saved, name="conv1")(x)
    x = nn.relu(BatchNorm(dtype=self.dtype, name="bn1")(x, train, views))
    if self.stem == "cifar":
      return x
    x = nn.max_pool(x, (3, 3), (2, 2), ((1, 1), (1, 1)))
    return checkpoint_name(x, SAVED)


def resnet10(stem: str = "cifar", width: int = 64, dtype: Any = None) -> ResNet:
  """ResNet-10 for small images: one basic block per stage, `num_features` = 8 width.

  The arguments are described in `ResNet`.

  Raises:
    InputError: an unknown stem.
  """
  return _resnet((1, 1, 1, 1), BasicBlock, stem, width, dtype)


def resnet18(stem: str = "cifar", width: int = 64, dtype: Any = None) -> ResNet:
  """ResNet-18: two basic blocks per stage, `num_features` = 8 width.

  The arguments are described in `ResNet`.

  Raises:
    InputError: an unknown stem.

  >>> resnet18().num_features
  512
  """
  return _resnet((2, 2, 2, 2), BasicBlock, stem, width, dtype)


def resnet50(stem: str = "cifar", width: int = 64, dtype: Any = None) -> ResNet:
  """ResNet-50: 3, 4, 6 and 3 bottleneck blocks, `num_features` = 32 width.

  The arguments are described in `ResNet`; `width` is that of the first stage's 3x3
  convolutions.

  Raises:
    InputError: an unknown stem.
  """
  return _resnet((3, 4, 6, 3), Bottleneck, stem, width, dtype)


def _resnet(stages, block, stem: str, width: int, dtype: Any) -> ResNet:
  checks.choice("stem", stem, STEMS)
  checks.whole("width", width, 1)
  return ResNet(stages, block, stem, width, dtype)
