"""Networks: ResNet and ViT backbones, projectors, text and two-tower models."""

from ncl_jax.models.contrastive import ContrastiveModel
from ncl_jax.models.projector import NoProjector, Projector
from ncl_jax.models.resnet import (
  KEEPS,
  STEMS,
  BasicBlock,
  Bottleneck,
  ResNet,
  resnet10,
  resnet18,
  resnet50,
)
from ncl_jax.models.text_transformer import PixelText, TextTransformer
from ncl_jax.models.two_towers import TwoTowers
from ncl_jax.models.vit import ViT, vit_small, vit_tiny

VITS = ("vit_tiny", "vit_small")
# Of images, by the names of their functions here; ViTs take other arguments.
BACKBONES = ("resnet10", "resnet18", "resnet50", *VITS)

__all__ = [
  "BACKBONES",
  "KEEPS",
  "STEMS",
  "BasicBlock",
  "Bottleneck",
  "ContrastiveModel",
  "NoProjector",
  "PixelText",
  "Projector",
  "ResNet",
  "TextTransformer",
  "TwoTowers",
  "VITS",
  "ViT",
  "resnet10",
  "resnet18",
  "resnet50",
  "vit_small",
  "vit_tiny",
]
