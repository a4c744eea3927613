"""The self-supervised methods beside CL: their names, what each needs, its recipe.

Each has a variant with the transform, NAME_ncl: the same loss of features after it.
Nothing here trains: `pair_loss` has the losses, `momentum` the slow copy.
"""

from typing import Any

from ml_collections import ConfigDict

from ncl_jax.errors import InputError

NAMES = ("spectral", "moco_v3", "byol", "dino", "barlow_twins", "vicreg")
MOMENTUM = ("moco_v3", "byol", "dino")  # compare with a slow copy of the network
PREDICTOR = ("moco_v3", "byol")  # have a further network after the projector
STATISTICS = ("barlow_twins", "vicreg")  # compare dimensions, not images
TEMPERATURE = ("nt_xent", "sup_con", "clip", "moco_v3", "dino")  # losses that have one
# Settings that belong to some losses: refused elsewhere, where nothing reads them.
TAKEN_BY = {
  "weight": ("nt_xent", "sup_con", *NAMES, "clip"),
  "ema_decay": MOMENTUM,
  "off_diagonal": ("barlow_twins",),
  "invariance": ("vicreg",),
  "variance": ("vicreg",),
  "covariance": ("vicreg",),
  "prototypes": ("dino",),
  "teacher_temperature": ("dino",),
  "centre_momentum": ("dino",),
}


def set_up(config: ConfigDict, name: str) -> None:
  """Makes a config a method's: its loss, and the parts of a network that it needs.

  Widths stay as the config has them, so that a small config stays small.

  Args:
    config: changed in place.
    name: one of `NAMES`.
  """
  config.loss.name = name
  if name == "spectral":
    return
  config.model.projector_batch_norm = True
  if name == "dino":
    config.loss.update(temperature=0.1, prototypes=4 * config.model.projector_hidden)
  if name in STATISTICS:
    # As wide as its hidden layers: the more dimensions, the better.
    config.model.projector_layers = 3
    config.model.projector_out = config.model.projector_hidden


def check(config: ConfigDict, usual: ConfigDict) -> None:
  """Whether the settings of single methods are in place, and only there.

  Args:
    config: settings.
    usual: their defaults.

  Raises:
    InputError: naming the field, its value and what is allowed.
  """
  settings = config.loss
  for key, takers in TAKEN_BY.items():
    if settings[key] != usual.loss[key] and settings.name not in takers:
      raise InputError(
        f"loss.{key} is {settings[key]}: only loss.name={' or '.join(takers)} takes it"
      )
  for key in ("ema_decay", "centre_momentum"):
    if not 0 <= settings[key] < 1:
      raise InputError(f"loss.{key} is {settings[key]}: allowed is [0, 1)")
  if settings.name == "dino" and settings.prototypes < 2:
    raise InputError(f"loss.prototypes is {settings.prototypes}: dino needs 2 or more")
  if config.model.predictor_hidden and settings.name not in PREDICTOR:
    raise InputError(
      f"model.predictor_hidden is {config.model.predictor_hidden}: only "
      f"loss.name={' or '.join(PREDICTOR)} has a predictor"
    )
  if settings.learn_temperature and settings.name not in TEMPERATURE:
    raise InputError(f"loss.learn_temperature: {settings.name} has no temperature")


# What solo-learn publishes for ResNet-18: (CIFAR, 1,000 epochs; ImageNet-100, 400
# epochs). Fields that are the same in both, and what differs on ImageNet-100.
_PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
  "moco_v3": (
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
  "byol": (
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
  "dino": (
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
  "barlow_twins": (
    {
      "model.projector_hidden": 2048,
      "model.projector_out": 2048,
      "loss.weight": 0.1,
      "optimizer.learning_rate": 0.3,
    },
    {},
  ),
  "vicreg": (
    {
      "model.projector_hidden": 2048,
      "model.projector_out": 2048,
      "augment.crop_scale": (0.2, 1.0),
      "optimizer.learning_rate": 0.3,
    },
    {},
  ),
}
# Weaker than CL's. Of two views there, one is inverted with probability 0.2 and one
# never (VICReg: both with 0.1): views are drawn alike here, with the mean.
_COLOURS = {
  "augment.brightness": 0.4,
  "augment.contrast": 0.4,
  "augment.saturation": 0.2,
  "augment.hue": 0.1,
  "augment.solarize": 0.1,
}


def published(config: ConfigDict, *, photographs: bool = False) -> None:
  """Gives a config of one of these methods the numbers of its published recipe.

  Of other methods, `spectral` among them, it changes nothing.

  Args:
    config: of a method; changed in place.
    photographs: the recipe of ImageNet-100, not of CIFAR.

  Source: scripts/pretrain of solo-learn, da Costa et al. 2022 (JMLR 23, 21-1155).
  """
  if config.loss.name not in _PUBLISHED:
    return
  fields, large = _PUBLISHED[config.loss.name]
  fields = fields | _COLOURS | (large if photographs else {"augment.blur": 0.0})
  config.train.epochs = 400 if photographs else 1000
  for key, value in fields.items():
    section, field = key.split(".")
    config[section][field] = value
