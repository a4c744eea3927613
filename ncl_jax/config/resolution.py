"""What the data decide of the settings."""

import math
import pathlib

from ml_collections import ConfigDict

from ncl_jax.config.fields import CHOICES, LABELLED
from ncl_jax.config.network import model
from ncl_jax.config.validation import check_augment, check_map
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError


def resolve(config: ConfigDict, source: Source) -> ConfigDict:
  """Fills in what the data decide: view size, image statistics, batch and epochs.

  Args:
    config: as given; not changed.
    source: its data.

  Returns:
    A copy in which no field means "from the data" any more.

  Raises:
    InputError: if the batch is larger than the training set.
  """
  config = config.copy_and_resolve_references()
  if config.loss.name in LABELLED and not source.num_classes:
    raise InputError(
      f"loss.name is {config.loss.name} and {source.name} has no labels: without them "
      f"only {', '.join(n for n in CHOICES['loss.name'] if n not in LABELLED)} work"
    )
  if config.loss.name == "clip" and source.split("train").captions is None:
    raise InputError(
      f"loss.name is clip and {source.name} has no captions: a pairs:FILE.npz has them"
    )
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
    run = pathlib.Path(config.train.init_from).expanduser().resolve()
    config.train.init_from = str(run)
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
      f"cannot be longer than the training, train.epochs = {config.train.epochs}"
    )
  check_augment(config)
  model(config)  # refuses a ViT whose patches do not fit the images
  check_map(config)
  return config.lock()
