"""Tests whether NCL recovers known latent classes.

  ncl identifiability --config=latent --workdir=runs/latent

Free features and an MLP are trained with the spectral loss and NT-Xent, CL and NCL, on
finite sample spaces with P(x, x') = sum_c P(c) P(x|c) P(x'|c). Prints a table and PASS
or FAIL for each prediction of the theory. The exit code is 1 if one fails. Writes
WORKDIR/identifiability.md and .json.
"""

from absl import flags
from ml_collections import config_flags

from ncl_jax import cli
from ncl_jax.errors import Failed
from ncl_jax.experiments.identifiability import study
from ncl_jax.host import paths

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "the recipe latent, or a file like it"
)
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "directory of the result")


def main() -> None:
  """Studies."""
  config = _CONFIG.value
  rows, claims = study.run(config)
  shown = study.text(rows, claims, config)
  folder = paths.absolute(_WORKDIR.value or "")
  study.write(folder, rows, claims, shown)
  print(shown)
  failed = [claim.text for claim in claims if not claim.holds]
  if failed:
    raise Failed(f"does not hold: {'; '.join(failed)}")


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"), fields=study.FIELDS)
