r"""Measures how fast this host decodes training images.

  ncl input_rate --config=imagenet100:ncl \
      --config.data.source=folder:/data/imagenet100 --accelerator="TPU v5e"

Runs without the network. Prints images a second for the host and for one core, and how
many cores it takes to supply one accelerator with the config's network.
"""

from absl import flags

from ncl_jax import cli

_CONFIG = cli.define_config()
_BATCHES = flags.DEFINE_integer("batches", 20, "batches to time", lower_bound=1)
_ACCELERATOR = flags.DEFINE_string(
  "accelerator", "TPU v5e", "accelerator to compare with"
)


def main() -> None:
  """Measures and prints."""
  from ncl_jax.preflight import input_rate

  print(input_rate.run(_CONFIG.value, _BATCHES.value, _ACCELERATOR.value))


if __name__ == "__main__":
  cli.run(main, required=("config",))
