"""Vision transformers, Tiny and Small, as backbones."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.numerics import at_least_float32

POOLS = ("class_token", "mean")
POSITIONS = ("learned", "fixed")
_LARGEST_PATCH, _FEWEST = 16, 7


def patch_for(size: int) -> int:
  """The default side of a patch for a view of `size` pixels: 16 at 224, 4 at 32.

  This is the largest power of two up to 16 that divides the size and gives at least 7
  patches per side, or 1 for smaller images.

  >>> [patch_for(size) for size in (224, 96, 64, 32, 28, 16, 8)]
  [16, 8, 8, 4, 4, 2, 1]
  """
  sides = [2**i for i in range(1 + int(math.log2(_LARGEST_PATCH)))]
  fitting = [p for p in sides if size % p == 0 and size // p >= _FEWEST]
  return max(fitting, default=1)


def sin_cos(side: int, width: int) -> jax.Array:
  """Fixed position embeddings [side^2, width]: sines and cosines of row and column.

  Sin and cos of the column and of the row take a quarter of the width each, with angles
  `place 10000^(-i / (width / 4))`. The width must be a multiple of 4.

  Source: Chen, Xie & He 2021 (arXiv:2104.02057), Section 4.

  >>> [round(float(x), 2) for x in sin_cos(2, 4)[1]]  # second column, first row
  [0.84, 0.54, 0.0, 1.0]
  """
  rates = 10000.0 ** (-jnp.arange(width // 4) / (width // 4))
  rows, columns = jnp.divmod(jnp.arange(side * side), side)
  angles = [place[:, None] * rates[None] for place in (columns, rows)]
  return jnp.concatenate([f(a) for a in angles for f in (jnp.sin, jnp.cos)], axis=1)


class Attention(nn.Module):
  """Multi-head self-attention: `softmax(q k^T / sqrt(width)) v`, then a linear layer.

  Attributes:
    width: of a head.
    dtype: of the computation. The softmax is float32.

  Reference: Vaswani et al. 2017 (arXiv:1706.03762), Section 3.2.
  """

  heads: int
  width: int
  dtype: Any = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[B, T, heads width] -> the same shape."""
    shape = (*x.shape[:2], self.heads, self.width)
    # Three layers, so that each is initialised for its own width.
    q, k, v = (
      _dense(self.heads * self.width, self.dtype, name)(x).reshape(shape)
      for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * self.width**-0.5
    share = jax.nn.softmax(at_least_float32(scores))
    self.sow("intermediates", "share", share)  # used only by `attention`
    y = jnp.einsum("bhqk,bkhd->bqhd", share.astype(v.dtype), v).reshape(x.shape)
    return _dense(x.shape[-1], self.dtype, "out")(y)


class Block(nn.Module):
  """A pre-norm transformer block: attention, then two linear layers."""

  heads: int
  width: int
  dtype: Any = None

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    """[B, T, C] -> the same shape."""
    y = _norm(self.dtype, "norm1")(x)
    x = x + Attention(self.heads, self.width, self.dtype, name="attention")(y)
    y = _dense(4 * x.shape[-1], self.dtype, "linear1")(_norm(self.dtype, "norm2")(x))
    y = jax.nn.gelu(y, approximate=False)
    return x + _dense(x.shape[-1], self.dtype, "linear2")(y)


class ViT(nn.Module):
  """Vision transformer without its classifier.

  Attributes:
    heads: of each block's attention.
    width: of a head; tokens are `heads width` wide.
    size: side of the images, in pixels.
    patch: side of a patch; it must divide `size`.
    pool: "class_token" = its last state, or "mean" over the patches.
    positions: "learned", or "fixed" (`sin_cos`; the class token has none).
    dtype: of the computation; None = that of input and parameters. Parameters and
      results are float32.
    keep: what is saved for backward: "blocks" = each block's input, otherwise all.

  References: Dosovitskiy et al. 2020 (arXiv:2010.11929); Tiny and Small as in Touvron
  et al. 2020 (arXiv:2012.12877), table 1; Xavier's initialisation and fixed positions
  as in Chen, Xie & He 2021 (arXiv:2104.02057).
  """

  heads: int
  width: int
  size: int
  patch: int
  pool: str = "class_token"
  positions: str = "learned"
  depth: int = 12
  dtype: Any = None
  keep: str = "all"

  @property
  def num_features(self) -> int:
    """Width F of the result."""
    return self.heads * self.width

  @nn.compact
  def __call__(self, x: jax.Array, train: bool = False, views: int = 1) -> jax.Array:
    """[B, size, size, C] images -> [B, F] features h, float32; `train` is not used.

    Raises:
      InputError: for images of another size.
    """
    if x.shape[1:3] != (self.size, self.size):
      raise InputError(
        f"images have {x.shape[1]} x {x.shape[2]} pixels: this ViT takes {self.size}"
      )
    side, width = self.size // self.patch, self.num_features
    # A strided convolution, written as one matrix product.
    x = x.reshape(len(x), side, self.patch, side, self.patch, -1)
    x = x.swapaxes(2, 3).reshape(len(x), side * side, -1)
    x = _dense(width, self.dtype, "patches")(x)
    small = nn.initializers.normal(0.02)
    token = self.pool == "class_token"
    if self.positions == "learned":
      places = self.param("positions", small, (side * side + token, width))
    else:
      places = jnp.pad(sin_cos(side, width), ((int(token), 0), (0, 0)))
    if token:
      first = self.param("class_token", small, (width,)).astype(x.dtype)
      first = jnp.broadcast_to(first[None, None], (len(x), 1, width))
      x = jnp.concatenate([first, x], axis=1)
    x = x + places[None].astype(x.dtype)
    block = nn.remat(Block) if self.keep == "blocks" else Block
    for i in range(self.depth):
      x = block(self.heads, self.width, self.dtype, name=f"layer{i + 1:02}")(x)
    x = at_least_float32(_norm(self.dtype, "norm")(x))
    return x[:, 0] if token else jnp.mean(x, axis=1)


def attention(model: ViT, params: Any, images: jax.Array) -> jax.Array:
  """The last block's attention to each patch, per head.

  Args:
    params: of the backbone, without a projector's.
    images: [B, size, size, C].

  Returns:
    [B, heads, size / patch, size / patch] float32: the class token's attention to each
    patch; the rest of it goes to the token itself. With `pool` "mean": the mean
    attention of all patches, which sums to 1.

  Reference: Caron et al. 2021 (arXiv:2104.14294), figure 1.
  """
  _, kept = model.apply({"params": params}, images, mutable=["intermediates"])
  (share,) = kept["intermediates"][f"layer{model.depth:02}"]["attention"]["share"]
  token = model.pool == "class_token"
  share = share[:, :, 0, 1:] if token else jnp.mean(share, axis=2)
  side = model.size // model.patch
  return share.reshape(*share.shape[:2], side, side)


def vit_tiny(size: int, width: int = 64, **settings: Any) -> ViT:
  """ViT-Tiny: 3 heads, `num_features` = 3 width.

  With patches of 16 at 224 pixels it has 5.5 million parameters (5.7 including
  ImageNet's classifier, which is not part of it).

  Args:
    size: side of the images, in pixels.
    width: of a head, a multiple of 4; 64 as published.
    **settings: of `ViT`; the default `patch` is `patch_for(size)`.

  Raises:
    InputError: for a patch that does not divide the image, or an unknown choice.
  """
  return _vit(3, size, width, **settings)


def vit_small(size: int, width: int = 64, **settings: Any) -> ViT:
  """ViT-Small: 6 heads, `num_features` = 6 width; see `vit_tiny`.

  With patches of 16 at 224 pixels it has 21.7 million parameters (22.1 including
  ImageNet's classifier, which is not part of it).

  Raises:
    InputError: for a patch that does not divide the image, or an unknown choice.

  >>> vit_small(224).num_features
  384
  """
  return _vit(6, size, width, **settings)


def _vit(heads: int, size: int, width: int, patch: int = 0, **settings: Any) -> ViT:
  patch = patch or patch_for(size)
  checks.whole("size", size, 1)
  checks.whole("width", width, 4)
  if width % 4:
    raise InputError(f"width = {width}: a ViT's heads must be a multiple of 4 wide")
  if size % patch:
    raise InputError(f"patch = {patch}: it must divide the image's side, {size}")
  checks.choice("pool", settings.get("pool", POOLS[0]), POOLS)
  checks.choice("positions", settings.get("positions", POSITIONS[0]), POSITIONS)
  return ViT(heads, width, size, patch, **settings)


def _dense(features: int, dtype: Any, name: str) -> nn.Dense:
  init = nn.initializers.xavier_uniform()
  return nn.Dense(features, dtype=dtype, kernel_init=init, name=name)


def _norm(dtype: Any, name: str) -> nn.LayerNorm:
  return nn.LayerNorm(epsilon=1e-6, dtype=dtype, name=name)
