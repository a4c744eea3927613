"""Methods that learn from a momentum encoder: MoCo v3, BYOL and DINO."""

from ncl_jax import losses
from ncl_jax.methods.record import (
  FRACTION,
  LEARN_TEMPERATURE,
  NOT_NEGATIVE,
  PAIR_SETTINGS,
  POSITIVE,
  LossInputs,
  Method,
  Setting,
  projector_batch_norm,
)

# Of the exponential moving average, at the first step; it rises to 1.
_EMA_DECAY = Setting("loss.ema_decay", 0.99, FRACTION)
_PREDICTOR_HIDDEN = Setting("model.predictor_hidden", 0, NOT_NEGATIVE)  # 0: projector's


def _moco_v3(given: LossInputs):
  return losses.moco_v3(
    given.f,
    given.keys,
    temperature=given.temperature,
    precision=given.settings.precision,
  ).mean()


def _dino(given: LossInputs):
  return losses.dino(
    given.f,
    given.keys,
    given.centre,
    student_temperature=given.temperature,
    teacher_temperature=given.settings.teacher_temperature,
  ).mean()


def _set_up_dino(config, variant):
  projector_batch_norm(config, variant)
  config.loss.update(temperature=0.1, prototypes=4 * config.model.projector_hidden)


METHODS = (
  Method(
    name="moco_v3",
    loss=_moco_v3,
    variants=(("moco_v3", "moco_v3_ncl"),),
    negatives=(
      "each view has {others} negatives, the momentum encoder's features of the other "
      "images of the batch"
    ),
    momentum_encoder=True,
    predictor=True,
    settings=(*PAIR_SETTINGS, LEARN_TEMPERATURE, _EMA_DECAY, _PREDICTOR_HIDDEN),
    set_up=projector_batch_norm,
    published=(
      {
        "model.projector_hidden": 4096,
        "model.projector_out": 256,
        "loss.temperature": 0.2,
        "loss.ema_decay": 0.99,
        "optimizer.learning_rate": 0.3,
        "optimizer.probe_learning_rate": 0.3,
        "optimizer.weight_decay": 1e-6,
      },
      {},
    ),
  ),
  Method(
    name="byol",
    loss=lambda given: losses.byol(given.f, given.keys).mean(),
    variants=(("byol", "byol_ncl"),),
    momentum_encoder=True,
    predictor=True,
    settings=(*PAIR_SETTINGS, _EMA_DECAY, _PREDICTOR_HIDDEN),
    set_up=projector_batch_norm,
    published=(
      {
        "model.projector_hidden": 4096,
        "model.projector_out": 256,
        "loss.ema_decay": 0.99,
        "optimizer.learning_rate": 1.0,
        "optimizer.weight_decay": 1e-5,
      },
      {
        "model.predictor_hidden": 8192,
        "optimizer.learning_rate": 0.5,
        "optimizer.weight_decay": 1e-6,
      },
    ),
  ),
  Method(
    name="dino",
    loss=_dino,
    variants=(("dino", "dino_ncl"),),
    momentum_encoder=True,
    prototypes=True,
    settings=(
      *PAIR_SETTINGS,
      LEARN_TEMPERATURE,
      _EMA_DECAY,
      Setting("loss.prototypes", 0, NOT_NEGATIVE),  # how many; at least 2
      Setting("loss.teacher_temperature", 0.04, POSITIVE),
      Setting("loss.centre_momentum", 0.9, FRACTION),
    ),
    set_up=_set_up_dino,
    published=(
      {
        "model.projector_hidden": 2048,
        "model.projector_out": 256,
        "loss.prototypes": 4096,
        "loss.ema_decay": 0.9995,
        "optimizer.learning_rate": 0.3,
        "optimizer.weight_decay": 1e-6,
      },
      {},
    ),
  ),
)
