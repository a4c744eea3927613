"""Methods that decorrelate dimensions: no negatives, no second network."""

from ncl_jax import losses
from ncl_jax.methods.record import (
  NOT_NEGATIVE,
  PAIR_SETTINGS,
  LossInputs,
  Method,
  Setting,
  projector_batch_norm,
)


def _barlow_twins(given: LossInputs):
  return losses.barlow_twins(
    given.f[:, 0],
    given.f[:, 1],
    off_diagonal=given.settings.off_diagonal,
    precision=given.settings.precision,
  )


def _vicreg(given: LossInputs):
  return losses.vicreg(
    given.f[:, 0],
    given.f[:, 1],
    invariance=given.settings.invariance,
    variance=given.settings.variance,
    covariance=given.settings.covariance,
    precision=given.settings.precision,
  )


def _set_up(config, variant):
  projector_batch_norm(config, variant)
  # As wide as its hidden layers: the more dimensions, the better.
  config.model.projector_layers = 3
  config.model.projector_out = config.model.projector_hidden


METHODS = (
  Method(
    name="barlow_twins",
    loss=_barlow_twins,
    variants=(("barlow_twins", "barlow_twins_ncl"),),
    settings=(
      *PAIR_SETTINGS,
      # The weight of the correlations between different dimensions.
      Setting("loss.off_diagonal", 0.0051, NOT_NEGATIVE),
    ),
    set_up=_set_up,
    published=(
      {
        "model.projector_hidden": 2048,
        "model.projector_out": 2048,
        "loss.weight": 0.1,
        "optimizer.learning_rate": 0.3,
      },
      {},
    ),
  ),
  Method(
    name="vicreg",
    loss=_vicreg,
    variants=(("vicreg", "vicreg_ncl"),),
    settings=(
      *PAIR_SETTINGS,
      # The weights of its three terms.
      Setting("loss.invariance", 25.0, NOT_NEGATIVE),
      Setting("loss.variance", 25.0, NOT_NEGATIVE),
      Setting("loss.covariance", 1.0, NOT_NEGATIVE),
    ),
    set_up=_set_up,
    published=(
      {
        "model.projector_hidden": 2048,
        "model.projector_out": 2048,
        "augment.crop_scale": (0.2, 1.0),
        "optimizer.learning_rate": 0.3,
      },
      {},
    ),
  ),
)
