r"""Your own images: a folder with a sub-folder a class, or a flat one without labels.

  ncl train --config=folder:ncl \
      --config.data.source=folder:/path/to/images --workdir=runs/mine

PATH/CLASS/*.jpg, PATH/train/CLASS/*.jpg with PATH/test/CLASS/*.jpg, or PATH/*.jpg.
Image size, channel statistics, batch and number of epochs are worked out from the data,
logged, and written to config.json. For photographs of 100 pixels and more add
--config.model.stem=imagenet.
"""

from ncl_jax import config as config_lib


def get_config(argument: str = "ncl"):
  """The settings; `argument` is a method, see `config.set_method`."""
  config = config_lib.defaults()
  config.data.source = "folder:"
  config.train.batch_size = 0
  config.train.epochs = 0
  config_lib.set_method(config, argument)
  return config
