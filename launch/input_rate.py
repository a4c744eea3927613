r"""Times the decoding of training images on this host.

  ncl input_rate --config=imagenet100:ncl \
      --config.data.source=folder:/data/imagenet100 --accelerator="TPU v5e"

The network is left out. Prints images a second, of the host and of a core, and how many
cores one accelerator would need for the config's network.
"""

from absl import flags
from ml_collections import config_flags

from ncl_jax import cli

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, f"{cli.CONFIG}; after a colon the method", lock_config=True
)
_BATCHES = flags.DEFINE_integer("batches", 20, "to time", lower_bound=1)
_ACCELERATOR = flags.DEFINE_string("accelerator", "TPU v5e", "whose need to compare")


def main() -> None:
  """Measures and prints."""
  from ncl_jax.preflight import input_rate

  print(input_rate.run(_CONFIG.value, _BATCHES.value, _ACCELERATOR.value))


if __name__ == "__main__":
  cli.run(main, required=("config",))
