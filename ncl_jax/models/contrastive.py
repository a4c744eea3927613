"""The contrastive model: a backbone and a projector."""

from typing import Any

import jax
from flax import linen as nn

from ncl_jax.models.projector import NoProjector, Projector


class ContrastiveModel(nn.Module):
  """A backbone with a projector; the transform and the loss are applied outside.

  Hashable, so it can be a static argument of a jitted function. The variables are
  `{"params": {"backbone", "projector"}, "batch_stats": {"backbone"}}`; a projector with
  BatchNorm also has statistics.

  Attributes:
    backbone: e.g. `resnet18()` or `vit.vit_tiny(32)`.
    projector: e.g. `Projector(2048, 256)`, or `NoProjector()`.
  """

  backbone: Any
  projector: Projector | NoProjector

  def __call__(
    self, x: jax.Array, train: bool = False, views: int = 1
  ) -> tuple[jax.Array, jax.Array]:
    """Images [B, H, W, C] -> backbone features h [B, F] and raw projection z [B, D].

    Args:
      x: images; with `views = V`, row V n + v is view v of example n.
      train: True normalises each view by its batch statistics and updates the running
        statistics (`mutable=["batch_stats"]`); False uses the running statistics.

    Returns:
      h and z, float32 (float64 for float64 input and parameters).
    """
    h = self.backbone(x, train, views)
    return h, self.projector(h, train, views)

  def embed(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """In evaluation mode: images [B, H, W, C] -> h [B, F], hidden layer, z [B, D].

    The hidden layer is the projector's. Call as `model.apply(variables, x,
    method="embed")`.
    """
    h = self.backbone(x, False)
    return h, *self.projector.layers(h)
