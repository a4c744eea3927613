"""All methods, by the names that configs use."""

from typing import Any

from ml_collections import ConfigDict

from ncl_jax.errors import InputError
from ncl_jax.methods import classifiers, pairs, redundancy, teachers
from ncl_jax.methods.record import Method, Setting

# Of the published recipes; weaker than CL's. Of two views there, one is inverted with
# probability 0.2 and one never (VICReg: both with 0.1): views are drawn alike here,
# with the mean.
_COLOURS = {
  "augment.brightness": 0.4,
  "augment.contrast": 0.4,
  "augment.saturation": 0.2,
  "augment.hue": 0.1,
  "augment.solarize": 0.1,
}

METHODS: tuple[Method, ...] = (
  *pairs.METHODS,
  *classifiers.METHODS,
  *teachers.METHODS,
  *redundancy.METHODS,
)
BY_NAME = {method.name: method for method in METHODS}  # values of `loss.name`
# Values of `config.method`: the method, and its variant without the transform.
BY_VARIANT = {
  name: (method, pair[0])
  for method in METHODS
  for pair in method.variants
  for name in pair
}
VARIANTS = tuple(BY_VARIANT)
# Those whose features, and class weights where there are any, pass the transform.
WITH_TRANSFORM = tuple(name for name in VARIANTS if name != BY_VARIANT[name][1])


def of(config: ConfigDict) -> Method:
  """The method of a config, by its `loss.name`."""
  return BY_NAME[config.loss.name]


def set_up(config: ConfigDict, variant: str) -> None:
  """Gives a config the loss and the settings of one of `VARIANTS`, in place."""
  config.method = variant
  method, plain = BY_VARIANT[variant]
  # CL and NCL are the two sides of a config's own loss, be it CLIP's.
  if method is not pairs.NT_XENT:
    config.loss.name = method.name
  method.set_up(config, plain)
  if not of(config).takes("loss.learn_temperature"):
    config.loss.learn_temperature = False


def settings() -> tuple[Setting, ...]:
  """Every field that only some methods take, once."""
  return tuple(dict.fromkeys(s for method in METHODS for s in method.settings))


def check(config: ConfigDict) -> None:
  """Checks the fields that only some methods take.

  Raises:
    InputError: for a value out of range, or one that the config's method never reads.
  """
  method = of(config)
  for setting in settings():
    section, field = setting.key.split(".")
    value = config[section][field]
    setting.check(value)
    if value != setting.default and not method.takes(setting.key):
      takers = " or ".join(m.name for m in METHODS if m.takes(setting.key))
      raise InputError(
        f"{setting.key} is {value}: only loss.name={takers} takes it, not {method.name}"
      )
  if method.prototypes and config.loss.prototypes < 2:
    raise InputError(
      f"loss.prototypes is {config.loss.prototypes}: {method.name} needs 2 or more"
    )


def published(config: ConfigDict, *, photographs: bool = False) -> None:
  """Gives a config the numbers of its method's published recipe, if there is one.

  Args:
    photographs: the recipe of ImageNet-100, not of CIFAR.

  Source: scripts/pretrain of solo-learn, da Costa et al. 2022 (JMLR 23, 21-1155), for
  ResNet-18.
  """
  if recipe := of(config).published:
    fields: dict[str, Any] = recipe[0] | _COLOURS
    fields |= recipe[1] if photographs else {"augment.blur": 0.0}
    config.train.epochs = 400 if photographs else 1000
    config.update_from_flattened_dict(fields)
