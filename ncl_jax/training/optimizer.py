"""The optimiser of a config: LARS, SGD or AdamW, with warm-up and cosine decay."""

import optax
from ml_collections import ConfigDict

from ncl_jax import optimizers


def make_optimizer(
  config: ConfigDict, steps_per_epoch: int
) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """The optimiser of a resolved config, and the encoder's learning-rate schedule."""
  settings = config.optimizer
  scale = config.train.batch_size / 256

  def schedule(base: float) -> optax.Schedule:
    return optimizers.warmup_cosine(
      base * scale,
      warmup_steps=round(settings.warmup_epochs * steps_per_epoch),
      total_steps=config.train.epochs * steps_per_epoch,
      start=settings.warmup_start,
    )

  def make(learning_rate: optax.Schedule, decay: float) -> optax.GradientTransformation:
    if settings.name == "lars":
      return optimizers.lars(
        learning_rate,
        weight_decay=decay,
        momentum=settings.momentum,
        trust_coefficient=settings.trust_coefficient,
        clip=settings.trust_clip,
      )
    if settings.name == "sgd":
      return optimizers.sgd(
        learning_rate, weight_decay=decay, momentum=settings.momentum
      )
    return optimizers.adamw(learning_rate, weight_decay=decay)

  learning_rate = schedule(settings.learning_rate)
  probe = make(schedule(settings.probe_learning_rate), 0.0)
  encoder = make(learning_rate, settings.weight_decay)
  loss = None
  if config.loss.learn_temperature:
    loss = optimizers.log_scale(
      lambda step: learning_rate(step) / (settings.learning_rate * scale)
    )
  return optimizers.partition(encoder, probe, loss), learning_rate
