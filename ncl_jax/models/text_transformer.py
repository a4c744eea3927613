"""The text tower's backbone: a small transformer over bytes."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ncl_jax.errors import InputError
from ncl_jax.models import byte_tokenizer
from ncl_jax.models.layers import Linear
from ncl_jax.numerics import at_least_float32


class Block(nn.Module):
  """Attention and two linear layers, each behind a LayerNorm and beside a shortcut.

  Attributes:
    heads: of the attention.
    dtype: computation's type.
  """

  heads: int
  dtype: Any = None

  @nn.compact
  def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
    """[B, L, W] and mask [B, 1, L, L] -> [B, L, W]."""
    width = x.shape[-1]
    y = nn.LayerNorm(dtype=self.dtype, name="norm1")(x)
    y = nn.MultiHeadDotProductAttention(self.heads, self.dtype, name="attention")(
      y, y, mask=mask
    )
    x = x + y
    y = nn.LayerNorm(dtype=self.dtype, name="norm2")(x)
    y = nn.gelu(Linear(4 * width, self.dtype, name="linear1")(y))
    return x + Linear(width, self.dtype, name="linear2")(y)


class PixelText(nn.Module):
  """A text tower in the place of an image tower: a text comes as `data.texts` has it.

  Attributes:
    text: what takes the tokens; bytes beyond its length are cut off.
  """

  text: "TextTransformer"

  @property
  def num_features(self) -> int:
    """Width F of the result."""
    return self.text.width

  def __call__(self, x: jax.Array, train: bool = False, views: int = 1) -> jax.Array:
    """Pixels [B, S, S, 1], each a byte to within 0.5 -> [B, F], float32."""
    rows = jnp.round(x.reshape(x.shape[0], -1)[:, : self.text.length])
    rows = rows.astype(jnp.int32)
    return self.text(jnp.where(rows > 0, rows + 1, byte_tokenizer.PADDING))


class TextTransformer(nn.Module):
  """Tokens to one feature a text: the mean over what is not padding.

  Padding is neither attended to nor counted, so it changes nothing.

  Attributes:
    length: L, tokens of a text at most.
    width: W, of the layers and of the result.
    layers: number of blocks.
    heads: of the attention; divides the width.
    dtype: computation's type, e.g. bfloat16; None = that of the parameters, float32.

  Reference: Vaswani et al. 2017 (arXiv:1706.03762), normalised before each part.
  """

  length: int
  width: int
  layers: int
  heads: int
  dtype: Any = None

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Tokens int32 [B, l], l <= L, 0 = padding -> [B, W], float32; no token: zeros."""
    count = tokens.shape[1]
    if count > self.length:
      raise InputError(
        f"{count} tokens a text; allowed: {self.length}, the tower's length"
      )
    real = tokens != byte_tokenizer.PADDING
    init = nn.initializers.normal(0.02)
    table = self.param("tokens", init, (byte_tokenizer.VOCABULARY, self.width))
    places = self.param("places", init, (self.length, self.width))
    x = jnp.take(table, tokens, axis=0) + places[None, :count]
    x = x.astype(self.dtype or x.dtype)
    mask = nn.make_attention_mask(real, real, dtype=bool)
    for index in range(self.layers):
      x = Block(self.heads, self.dtype, name=f"block{index}")(x, mask)
    x = at_least_float32(nn.LayerNorm(dtype=self.dtype, name="norm")(x))
    weights = real.astype(x.dtype)[..., None]
    return jnp.sum(x * weights, 1) / jnp.maximum(jnp.sum(weights, 1), 1)
