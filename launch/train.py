"""Pretrains a network with CL or NCL; run it again to go on where it stopped.

  python -m launch.train --config=configs/cifar10.py:ncl --workdir=runs/cifar10-ncl

After the colon: cl, ncl, or ncl,MAP with another map. Single settings are changed by
--config.SECTION.FIELD=VALUE. The work directory gets config.json, metrics.jsonl and
checkpoints/.
"""

from absl import flags
from ml_collections import config_flags

from ncl_jax import cli

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "config file, and after a colon the method", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "directory of this run")
_PROFILE = flags.DEFINE_string(
  "profile", "", "FIRST:LAST, steps to record in WORKDIR/profile, for TensorBoard"
)


def main() -> None:
  """Trains."""
  from ncl_jax import train  # after the flags: a wrong one is answered at once

  train.train(_CONFIG.value, _WORKDIR.value or "", profile=_PROFILE.value)


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
