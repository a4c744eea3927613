"""CIFAR-100 by the paper's recipe: ResNet-18, 200 epochs.

  ncl train --config=cifar100:ncl --workdir=runs/cifar100-ncl

Table 1 of the paper (top-1, linear probe on h): CL 58.6 +- 0.2, NCL 59.7 +- 0.4.
"""

from ncl_jax import config as config_lib
from ncl_jax import methods


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()  # they are this recipe
  config.name = "CIFAR-100"
  config.data.source = "tfds:cifar100"
  config.augment.mean = (0.5071, 0.4865, 0.4409)
  config.augment.std = (0.2673, 0.2564, 0.2762)
  config_lib.set_method(config, argument)
  methods.published(config)
  return config
