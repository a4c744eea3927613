"""The text tower's backbone: a small byte-level transformer."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ncl_jax.errors import InputError
from ncl_jax.models import byte_tokenizer
from ncl_jax.models.layers import Linear
from ncl_jax.numerics import at_least_float32


class Block(nn.Module):
  """A pre-norm transformer block: attention, then two linear layers."""

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
  """A text tower in place of the image tower, for texts stored as in `data.texts`.

  Bytes beyond the length of `text` are truncated.
  """

  text: "TextTransformer"

  @property
  def num_features(self) -> int:
    """Width F of the result."""
    return self.text.width

  def __call__(self, x: jax.Array, train: bool = False, views: int = 1) -> jax.Array:
    """Pixels [B, S, S, 1], each within 0.5 of a byte -> [B, F], float32."""
    rows = jnp.round(x.reshape(x.shape[0], -1)[:, : self.text.length])
    rows = rows.astype(jnp.int32)
    return self.text(jnp.where(rows > 0, rows + 1, byte_tokenizer.PADDING))


class TextTransformer(nn.Module):
  """Encodes each text as the mean over its tokens; padding has no influence.

  Attributes:
    length: L, the largest number of tokens in a text.
    width: W, of the layers and of the result.
    heads: of the attention; must divide the width.
    dtype: of the computation, e.g. bfloat16; None = that of the parameters, float32.

  Reference: Vaswani et al. 2017 (arXiv:1706.03762), with pre-norm blocks.
  """

  length: int
  width: int
  layers: int
  heads: int
  dtype: Any = None

  @nn.compact
  def __call__(self, tokens: jax.Array) -> jax.Array:
    """Tokens int32 [B, l], l <= L, 0 = padding -> [B, W], float32; 0 if no token."""
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
