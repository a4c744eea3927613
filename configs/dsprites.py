"""dSprites, drawn here: pairs share shape, scale and position, not the orientation.

  ncl train --config=dsprites:ncl --workdir=runs/dsprites/ncl

Not in the paper's recipe. A quarter of the side and a small network, for CPUs; a pair
is two images, not two crops of one, so that no other factor is lost.
"""

from ncl_jax import config as config_lib


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()
  config.name = "dSprites"
  config.data.source = "dsprites"
  config.data.image_size = 16
  config.data.train_examples = 20_000
  config.data.pair_factors = ("orientation",)

  config.augment.crop_scale = (1.0, 1.0)
  config.augment.crop_ratio = (1.0, 1.0)
  config.augment.flip = 0.0
  config.augment.jitter = 0.0
  config.augment.grayscale = 0.0
  config.augment.blur = 0.0

  config.model.backbone = "resnet10"
  config.model.width = 8
  config.model.projector_hidden = 256
  config.model.projector_out = 32
  config.model.dtype = "float32"

  config.train.epochs = 5
  config.train.checkpoint_every_epochs = 5
  # By LARS at the recipe's rate most of NCL's dimensions die in the first epoch.
  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 0.001
  config.optimizer.warmup_epochs = 2.5

  config_lib.set_method(config, argument)
  return config
