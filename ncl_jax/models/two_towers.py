"""An image tower and a text tower that end in one space."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from ncl_jax.models.projector import Projector
from ncl_jax.models.text_transformer import TextTransformer


class TwoTowers(nn.Module):
  """A contrastive model of images with another of texts beside it.

  The image tower's parameters have the names, and `embed` the meaning, that they have
  in `models.ContrastiveModel`: what evaluates that evaluates this tower.

  Attributes:
    backbone: of the image tower.
    projector: of the image tower.
    text: backbone of the text tower.
    text_projector: of the text tower, as wide at its end as the other.
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
      x: images.
      train: see `models.ContrastiveModel`.
      views: views of each image among the rows, each with a text of its own.
      tokens: int32 [N, L], see `tokens.encode`; None for texts without a byte.

    Returns:
      h [N, F], and z [2 N, D]: rows 2 n and 2 n + 1 are image n and text n; float32.
    """
    if tokens is None:
      tokens = jnp.zeros((x.shape[0], self.text.length), jnp.int32)
    h = self.backbone(x, train, views)
    text = self.text_projector(self.text(tokens), train, views)
    z = jnp.stack([self.projector(h, train, views), text], axis=1)
    # Pairs stay together: a split of the rows over devices moves nothing.
    return h, z.reshape(-1, z.shape[-1])

  def embed(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Images [N, H, W, C] -> h [N, F], projector's hidden layer, z [N, D]."""
    h = self.backbone(x, False)
    return h, *self.projector.layers(h)

  def embed_text(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Tokens [N, L] -> h [N, W], projector's hidden layer, z [N, D]."""
    h = self.text(tokens)
    return h, *self.text_projector.layers(h)
