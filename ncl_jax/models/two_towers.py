"""An image tower and a text tower with a shared embedding space."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ncl_jax.models.projector import Projector
from ncl_jax.models.text_transformer import TextTransformer


class TwoTowers(nn.Module):
  """A contrastive model of images and one of texts.

  The image tower's parameters and `embed` are named as in `models.ContrastiveModel`, so
  evaluators can evaluate it in the same way.

  Attributes:
    backbone: of the image tower.
    projector: of the image tower.
    text: backbone of the text tower.
    text_projector: of the text tower; its output is as wide as the other projector's.
  """

  backbone: Any
  projector: Projector
  text: TextTransformer
  text_projector: Projector

  def __call__(
    self,
    x: jax.Array,
    train: bool = False,
    views: int = 1,
    tokens: jax.Array | None = None,
  ) -> tuple[jax.Array, jax.Array]:
    """Images [N, H, W, C] and their texts -> h of the images and z of both.

    Args:
      views: views per image, each with its own text.
      tokens: int32 [N, L], see `byte_tokenizer.encode`; None for empty texts.

    Returns:
      h [N, F], and z [2 N, D]: rows 2 n and 2 n + 1 are image n and text n; float32.
    """
    if tokens is None:
      tokens = jnp.zeros((x.shape[0], self.text.length), jnp.int32)
    h = self.backbone(x, train, views)
    text = self.text_projector(self.text(tokens), train, views)
    z = jnp.stack([self.projector(h, train, views), text], axis=1)
    # Pairs stay together, so that sharding the rows moves nothing.
    return h, z.reshape(-1, z.shape[-1])

  def embed(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Images [N, H, W, C] -> h [N, F], projector's hidden layer, z [N, D]."""
    h = self.backbone(x, False)
    return h, *self.projector.layers(h)

  def embed_text(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens [N, L] -> h [N, W], projector's hidden layer, z [N, D]."""
    h = self.text(tokens)
    return h, *self.text_projector.layers(h)
