"""What the data decide of the settings."""

import math

from ml_collections import ConfigDict

from ncl_jax import methods
from ncl_jax.config.build import model
from ncl_jax.config.fields import CHOICES
from ncl_jax.config.keys import get
from ncl_jax.config.validation import check_augment
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.host import paths


def resolve(config: ConfigDict, source: Source) -> ConfigDict:
  """Fills in what the data decide: view size, image statistics, batch and epochs.

  Returns:
    A copy in which no field means "from the data" any more.

  Raises:
    InputError: if the batch is larger than the training set.
  """
  config = config.copy_and_resolve_references()
  method = methods.of(config)
  if method.labels and not source.num_classes:
    raise InputError(
      f"loss.name is {method.name} and {source.name} has no labels: without them "
      f"only {', '.join(m.name for m in methods.METHODS if not m.labels)} work"
    )
  if method.captions and source.split("train").captions is None:
    raise InputError(
      f"loss.name is {method.name} and {source.name} has no captions: a pairs:FILE.npz "
      "has them, and a tfds set with texts in a feature named caption, captions or text"
    )
  _check_texts(config, source)
  examples = source.num_examples("train")
  height, width, channels = source.image_shape
  if not config.augment.size:
    config.augment.size = round(min(height, width) * config.augment.eval_crop)
  if not config.augment.mean:
    mean, std = source.channel_statistics()
    config.augment.mean, config.augment.std = mean, std
  for key in ("mean", "std"):
    if len(config.augment[key]) != channels:
      raise InputError(
        f"augment.{key} has {len(config.augment[key])} values: the images of "
        f"{source.name} have {channels} channels"
      )
  if config.train.init_from:
    config.train.init_from = str(paths.absolute(config.train.init_from))
  if not config.train.batch_size:
    # The largest power of two that leaves eight steps an epoch, within [8, 256].
    config.train.batch_size = 2 ** int(
      min(8, max(3, math.floor(math.log2(max(examples, 1) / 8))))
    )
  if not config.train.epochs:
    # About 20,000 steps, as 100 epochs of 50,000 images at 256; within [20, 800].
    steps = max(1, examples // config.train.batch_size)
    config.train.epochs = int(min(800, max(20, 20_000 // steps)))
  if config.train.batch_size > examples:
    raise InputError(
      f"train.batch_size is {config.train.batch_size}: the training set of "
      f"{source.name} has only {examples} images"
    )
  if config.optimizer.warmup_epochs > config.train.epochs:
    raise InputError(
      f"optimizer.warmup_epochs is {config.optimizer.warmup_epochs}: the warm-up "
      f"cannot be longer than the training, train.epochs = {config.train.epochs}; "
      "set both"
    )
  check_augment(config)
  model(config)  # refuses a ViT whose patches do not fit the images
  return config.lock()


def _check_texts(config: ConfigDict, source: Source) -> None:
  """Texts go to a text tower, unchanged, and images to one of images."""
  backbone = config.model.backbone
  if source.texts != (backbone == "text"):
    allowed = [n for n in CHOICES["model.backbone"] if (n == "text") == source.texts]
    raise InputError(
      f"model.backbone is {backbone} and {source.name} holds "
      f"{'texts' if source.texts else 'images'}: allowed are {', '.join(allowed)}"
    )
  if not source.texts:
    return
  mean, std = source.channel_statistics()
  steps = ("flip", "jitter", "grayscale", "blur", "solarize")
  fixed: dict[str, tuple] = {
    "loss.name": tuple(m.name for m in methods.METHODS if m.captions),
    "augment.eval_crop": (1.0,),
    "augment.crop_scale": ((1.0, 1.0),),
    "augment.crop_ratio": ((1.0, 1.0),),
    # From the data, and again where they have been filled in.
    "augment.size": (0, source.image_shape[0]),
    "augment.mean": ((), mean),
    "augment.std": ((), std),
    **{f"augment.{step}": (0.0,) for step in steps},
  }
  for key, values in fixed.items():
    value = get(config, key)
    value = tuple(value) if isinstance(value, (tuple, list)) else value
    if value not in values:
      raise InputError(
        f"{key} is {value} and {source.name} holds texts: allowed is {values[0]}, as "
        "in configs/texts.py"
      )
