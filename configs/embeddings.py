"""An encoder of frozen embeddings, for `ncl encode`.

Not for training on images. The fields are explained in `NonNegativeEncoder`.
"""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
  """The settings."""
  config = ConfigDict()
  config.n_components = 1024
  config.n_active = 32
  # Chosen in studies/codes to keep nearest neighbours.
  config.objective = "csr"  # or "contrastive", "reconstruction"
  config.beta = 1 / 32
  config.gamma = 0.1
  config.tied = True
  config.positives = "views"  # or "pairs", "labels"
  config.temperature = 0.2
  config.noise = 0.0
  config.dropout = 0.0
  config.normalize = True
  config.epochs = 10
  # Epochs without a higher held-out recall after which training ends.
  config.n_iter_no_change = config_dict.placeholder(int)
  config.batch_size = 256
  config.learning_rate = 1e-2
  config.weight_decay = 0.0
  config.random_state = 0
  return config.lock()
