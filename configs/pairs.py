"""Images with captions, two towers: CLIP's loss, and its non-negative version.

  python -m studies.emoji.make_data --out=emoji
  ncl train --config=pairs:ncl --workdir=runs/emoji-ncl
  ncl pairs --workdir=runs/emoji-ncl

Ours; the paper has no texts. A caption names what is to be seen, left and right as
well: views are crops alone. Sized for small pictures on two CPU cores.
"""

from ncl_jax import config as config_lib


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()
  config.name = "pairs"
  config.data.source = "pairs:emoji/text.npz"
  config.data.image_size = 32

  config.augment.crop_scale = (0.6, 1.0)
  config.augment.flip = 0.0
  config.augment.jitter = 0.0
  config.augment.grayscale = 0.0
  config.augment.blur = 0.0

  config.model.backbone = "resnet10"
  config.model.width = 16
  config.model.projector_hidden = 512
  config.model.projector_out = 256
  config.model.dtype = "float32"
  config.text.layers = 2

  config.loss.name = "clip"
  config.loss.temperature = 0.07
  config.loss.learn_temperature = True

  config.optimizer.name = "adamw"
  config.optimizer.learning_rate = 1e-3
  config.optimizer.probe_learning_rate = 1e-3
  config.optimizer.weight_decay = 0.05
  config.optimizer.warmup_epochs = 2.0
  config.train.batch_size = 256
  config.train.epochs = 40
  config.train.log_every_steps = 11
  config.train.checkpoint_every_epochs = 10

  config_lib.set_method(config, argument)
  return config
