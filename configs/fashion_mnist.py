r"""Fashion-MNIST from its IDX files: grey images of clothes at 28 pixels.

  ncl train --config=fashion_mnist:ncl \
      --config.data.source=idx:/usr/share/datasets/fashion-mnist \
      --workdir=runs/fashion-ncl

The path above is where Debian's package dataset-fashion-mnist puts them. Not in the
paper: its CIFAR recipe with a narrower network.
"""

from ncl_jax import config as config_lib


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()
  config.name = "Fashion-MNIST"
  config.data.source = "idx:/usr/share/datasets/fashion-mnist"
  config.augment.mean = (0.2860,)
  config.augment.std = (0.3530,)
  config.model.backbone = "resnet10"
  config.model.width = 16
  config.model.dtype = "float32"  # a CPU has no fast bfloat16
  config.train.epochs = 50
  config.optimizer.warmup_epochs = 5.0
  config_lib.set_method(config, argument)
  return config
