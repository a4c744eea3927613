r"""CIFAR-10 for two CPU cores: ResNet-10 of width 16 on views of 16 pixels, 20 epochs.

  ncl train --config=cifar10_small:ncl \
      --workdir=runs/cifar10-ncl

An hour on two cores. The images stay at 32 pixels; crops are reduced to 16. The
paper's augmentation is for larger views: crops cover at least a fifth of the image
here, the colours change half as much, and nothing is blurred. An .npz file of the same
images gives the same runs: --config.data.source=arrays:cifar10.npz.
"""

from ncl_jax import config as config_lib


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()
  config.name = "CIFAR-10, 16-pixel views"
  config.data.source = "tfds:cifar10"
  config.augment.size = 16
  config.augment.crop_scale = (0.2, 1.0)
  config.augment.brightness = 0.4
  config.augment.contrast = 0.4
  config.augment.saturation = 0.4
  config.augment.hue = 0.1
  config.augment.blur = 0.0
  config.augment.mean = (0.4914, 0.4822, 0.4465)
  config.augment.std = (0.2470, 0.2435, 0.2616)
  config.model.backbone = "resnet10"
  config.model.width = 16
  config.model.projector_hidden = 512
  config.model.projector_out = 256
  config.model.dtype = "float32"  # a CPU has no fast bfloat16
  config.train.batch_size = 256
  config.train.epochs = 20
  config.train.checkpoint_every_epochs = 1
  config.optimizer.warmup_epochs = 2.0
  config_lib.set_method(config, argument)
  return config
