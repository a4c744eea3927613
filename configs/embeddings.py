"""An encoder of frozen embeddings, for `ncl encode`.

Not for training on images. The fields are explained in `NonNegativeEncoder`.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """The settings."""
  config = ConfigDict()
  config.n_components = 1024
  config.n_active = 32
  config.hidden = 0
  config.activation = "rep_relu"
  config.positives = "views"  # or "pairs", "labels"
  # Chosen in studies/codes to keep nearest neighbours.
  config.temperature = 0.05
  config.noise = 0.5
  config.dropout = 0.0
  config.reconstruction = 300.0
  config.epochs = 8
  config.batch_size = 256
  config.learning_rate = 3e-3
  config.weight_decay = 1e-4
  config.random_state = 0
  return config.lock()
