"""What the settings of a run build: its network and its views."""

from typing import Any

import jax.numpy as jnp
from ml_collections import ConfigDict

from ncl_jax import augment, methods, models
from ncl_jax.data.source import Source
from ncl_jax.models import byte_tokenizer, vit


def model(config: ConfigDict) -> models.ContrastiveModel | models.TwoTowers:
  """The network that the settings describe: of images, or of images and texts."""
  settings = config.model
  text = models.TextTransformer(**config.text, dtype=jnp.dtype(settings.dtype))
  if settings.backbone == "text":
    backbone: Any = models.PixelText(text.clone())
  else:
    backbone = _backbone(config).clone(keep=settings.keep)
  if not settings.projector:
    return models.ContrastiveModel(backbone, models.NoProjector())
  projector = models.Projector(
    settings.projector_hidden,
    settings.projector_out,
    jnp.dtype(settings.dtype),
    settings.projector_layers,
    settings.projector_batch_norm,
  )
  if not methods.of(config).captions:
    return models.ContrastiveModel(backbone, projector)
  return models.TwoTowers(backbone, projector, text, projector.clone())


def _backbone(config: ConfigDict) -> models.ResNet | vit.ViT:
  settings = config.model
  given = {"width": settings.width, "dtype": jnp.dtype(settings.dtype)}
  if settings.backbone not in models.VITS:
    return getattr(models, settings.backbone)(stem=settings.stem, **given)
  given |= {name: settings[name] for name in ("patch", "pool", "positions")}
  return getattr(vit, settings.backbone)(config.augment.size, **given)


def predictor(config: ConfigDict) -> models.Projector | None:
  """The network after the projector that predicts the other view's features, if any."""
  settings = config.model
  if not methods.of(config).predictor:
    return None
  return models.Projector(
    settings.predictor_hidden or settings.projector_hidden,
    settings.projector_out,
    jnp.dtype(settings.dtype),
    batch_norm=True,
  )


def texts_cut(config: ConfigDict, source: Source) -> list[str]:
  """Sentences about the texts of a set that are longer than the text tower."""
  if not methods.of(config).captions:
    return []
  sentences = []
  for name, split in source.splits.items():
    kinds: dict[str, Any] = {"captions": split.captions, "texts": source.texts_of(name)}
    for kind, texts in kinds.items():
      found = "" if texts is None else byte_tokenizer.cut(texts, config.text.length)
      if found:
        sentences.append(
          f"{name} {kind}: {found}. Raise text.length={config.text.length}"
        )
  return sentences


def negatives(config: ConfigDict) -> str:
  """How many negatives the loss sets against each positive, for the log.

  Of the global batch, over all devices, processes and chunks.
  """
  return methods.of(config).describe_negatives(config.train.batch_size)


def widths(config: ConfigDict) -> dict[str, int]:
  """The widths of the layers h, hidden, z and f."""
  settings = config.model
  width = model(config).backbone.num_features
  if not settings.projector:
    return dict.fromkeys(("h", "hidden", "z", "f"), width)
  hidden, out = settings.projector_hidden, settings.projector_out
  return {"h": width, "hidden": hidden, "z": out, "f": out}


def views(config: ConfigDict) -> int:
  """V, random views of each image in a training step."""
  return methods.of(config).views


def augmentation(config: ConfigDict) -> augment.AugmentConfig:
  """The view settings of a resolved config, in the form that jitted functions take."""
  return augment.AugmentConfig(**config.augment)
