"""CIFAR-10 by the paper's recipe: ResNet-18, 200 epochs.

  ncl train --config=cifar10:ncl --workdir=runs/cifar10-ncl

Table 1 of the paper (top-1, linear probe on h): CL 87.6 +- 0.2, NCL 87.8 +- 0.2.
"""

from ncl_jax import config as config_lib
from ncl_jax import methods


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()  # they are this recipe
  config.name = "CIFAR-10"
  config.data.source = "tfds:cifar10"
  config.augment.mean = (0.4914, 0.4822, 0.4465)
  config.augment.std = (0.2470, 0.2435, 0.2616)
  config_lib.set_method(config, argument)
  methods.published(config)
  return config
