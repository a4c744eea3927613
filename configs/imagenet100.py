r"""ImageNet-100 by the paper's recipe: ResNet-18 at 224 pixels, 100 epochs.

  ncl train --config=imagenet100:ncl \
      --config.data.source=folder:/data/imagenet100 --workdir=runs/imagenet100-ncl

The folder has train/CLASS/*.JPEG and val/CLASS/*.JPEG for the 100 classes. With all of
ImageNet in the folder, or --config.data.source=tfds:imagenet2012 (prepared with
--file_format=array_record), --config.data.classes_file=FILE names the 100, one a line.
Images are decoded once to 256 pixels; views of 224 are cut from that square.

Table 1 of the paper (top-1, linear probe on h): CL 68.7 +- 0.3, NCL 69.4 +- 0.3. The
paper's text gives a batch of 256, the released configuration 128: this is the text's.
"""

from ncl_jax import config as config_lib
from ncl_jax import methods


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()
  config.name = "ImageNet-100"
  config.data.source = "folder:imagenet100"
  config.data.image_size = 256
  config.augment.size = 224
  config.augment.eval_crop = 224 / 256
  config.augment.mean = (0.485, 0.456, 0.406)
  config.augment.std = (0.229, 0.224, 0.225)
  config.model.stem = "imagenet"
  config.model.projector_hidden = 16384
  config.model.projector_out = 2048
  config.loss.transform = "relu"
  config.optimizer.learning_rate = 0.3
  config.train.epochs = 100
  config_lib.set_method(config, argument)
  methods.published(config, photographs=True)
  return config
