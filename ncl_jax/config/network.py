"""What the settings of a run build: its network and its views."""

from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from ncl_jax import augment, families, models, towers, vit
from ncl_jax.config.fields import VITS


def model(
  config: ConfigDict, keep_all: bool = False
) -> models.ContrastiveModel | towers.TwoTowers:
  """The network that the settings describe: of images, or of images and texts.

  Args:
    config: resolved settings.
    keep_all: of a ResNet, see there; the numbers are the same.
  """
  settings = config.model
  text = towers.TextTransformer(**config.text, dtype=jnp.dtype(settings.dtype))
  if settings.backbone == "text":
    backbone: Any = towers.PixelText(text.clone())
  else:
    backbone = _backbone(config).clone(remat=settings.remat)
    if isinstance(backbone, models.ResNet):
      backbone = backbone.clone(keep_all=keep_all)
  if not settings.projector:
    return models.ContrastiveModel(backbone, models.NoProjector())
  projector = models.Projector(
    settings.projector_hidden,
    settings.projector_out,
    jnp.dtype(settings.dtype),
    settings.projector_layers,
    settings.projector_batch_norm,
  )
  if config.loss.name != "clip":
    return models.ContrastiveModel(backbone, projector)
  return towers.TwoTowers(backbone, projector, text, projector.clone())


def _backbone(config: ConfigDict) -> models.ResNet | vit.ViT:
  settings = config.model
  given = {"width": settings.width, "dtype": jnp.dtype(settings.dtype)}
  if settings.backbone not in VITS:
    return getattr(models, settings.backbone)(stem=settings.stem, **given)
  given |= {name: settings[name] for name in ("patch", "pool", "positions")}
  return getattr(vit, settings.backbone)(config.augment.size, **given)


def predictor(config: ConfigDict) -> models.Projector | None:
  """The network after the projector that foresees the other view's features, if any."""
  settings = config.model
  if config.loss.name not in families.PREDICTOR:
    return None
  return models.Projector(
    settings.predictor_hidden or settings.projector_hidden,
    settings.projector_out,
    jnp.dtype(settings.dtype),
    batch_norm=True,
  )


def widths(config: ConfigDict) -> dict[str, int]:
  """The widths of the layers h, hidden, z and f."""
  settings = config.model
  width = model(config).backbone.num_features
  if not settings.projector:
    return dict.fromkeys(("h", "hidden", "z", "f"), width)
  hidden, out = settings.projector_hidden, settings.projector_out
  return {"h": width, "hidden": hidden, "z": out, "f": out}


def views(config: ConfigDict) -> int:
  """V, views of each image in training: pairs of images need two.

  A classifier sees one, and so does a tower beside another.
  """
  return 1 if config.loss.name in ("cross_entropy", "clip") else 2


def augmentation(config: ConfigDict) -> augment.AugmentConfig:
  """The view settings of a resolved config, in the form that jitted functions take."""
  return augment.AugmentConfig(**config.augment)
