"""Sample spaces of known latent classes, for `ncl identifiability`: some minutes.

Not a training config: see `ncl_jax/experiments/identifiability/study.py`.
"""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """The settings."""
  config = ConfigDict()
  config.kinds = ("one_hot", "unequal", "overlapping", "no_anchors")
  config.more_kinds = ("one_hot", "overlapping")  # also with an MLP and NT-Xent
  config.classes = 8
  config.per_class = 4  # samples
  config.seeds = 5
  config.steps = 1500
  config.narrow = 5  # a number of dimensions below that of the classes
  config.label_counts = (16, 64, 256, 1024)  # of the probe
  return config.lock()
