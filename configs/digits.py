"""scikit-learn's digits at 16 pixels: minutes on two CPU cores, no download.

  make demo

Not in the paper. The digits are easy (raw pixels reach 98 %), so accuracy tells little
here; sparsity and purity of single dimensions are what to look at. What the command
above gave once, on the test set, CL / NCL / untrained: sparsity of f 0 / 97 / 49 %,
purity at 3 % activity 63 / 72 / 43 %, nearest neighbours on h 96.7 / 98.1 / 88.3 %.
"""

from ncl_jax import config as config_lib


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()
  config.name = "digits"
  config.data.source = "digits"
  config.data.image_size = 16

  # A mirrored or very small part of a digit is another digit.
  config.augment.crop_scale = (0.4, 1.0)
  config.augment.flip = 0.0
  config.augment.brightness = 0.4
  config.augment.contrast = 0.4
  config.augment.blur_radius = (0.1, 1.0)

  config.model.backbone = "resnet10"
  config.model.width = 8
  config.model.projector_hidden = 512
  config.model.projector_out = 128
  config.model.dtype = "float32"

  config.train.batch_size = 128
  config.train.epochs = 36
  config.train.log_every_steps = 11
  config.train.checkpoint_every_epochs = 10
  config.optimizer.warmup_epochs = 4.0

  config_lib.set_method(config, argument)
  return config
