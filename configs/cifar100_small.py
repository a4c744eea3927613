r"""CIFAR-100 by the recipe of `cifar10_small.py`.

  ncl train --config=cifar100_small:ncl \
      --workdir=runs/cifar100-ncl
"""

from ncl_jax.config import recipes


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = recipes.load("cifar10_small", argument)
  config.name = "CIFAR-100, 16-pixel views"
  config.data.source = "tfds:cifar100"
  config.augment.mean = (0.5071, 0.4865, 0.4409)
  config.augment.std = (0.2673, 0.2564, 0.2762)
  return config
