"""Trains a network; run it again to resume.

  ncl train --config=cifar10:ncl --workdir=runs/cifar10-ncl

After the colon: cl or ncl; supcon or supcon_ncl, which take the labels into account;
ce, nce, ce_projector or nce_projector, which train classifiers; spectral, moco_v3,
byol, dino, barlow_twins or vicreg, or with the transform byol_ncl and the like. Those
with a map take another after a comma: ncl,relu. Single settings are changed by
--config.SECTION.FIELD=VALUE; --config.train.init_from=DIR starts from the network of
another run. The work directory gets config.json, data.json, metrics.jsonl, speed.jsonl
and checkpoints/, a classifier's also best/, the work directory of its best step on the
test set.

With --dry_run it reads some images and says what would happen: settings and what was
changed in them, parameters, memory, steps, hours. Nothing is trained or written, but a
set of TensorFlow Datasets that is not there yet is downloaded.
"""

from absl import flags
from ml_collections import config_flags

from ncl_jax import cli

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, f"{cli.CONFIG}; after a colon the method", lock_config=True
)
_WORKDIR = flags.DEFINE(cli.PATH, "workdir", None, "directory of this run")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "say what would happen, and end")
_PROFILE = flags.DEFINE_string(
  "profile", "", "FIRST:LAST, steps to record in WORKDIR/profile, for TensorBoard"
)


def main() -> None:
  """Trains."""
  # After the flags: a wrong one is answered at once.
  if _DRY_RUN.value:
    from ncl_jax.preflight import dry_run

    print(dry_run.describe(_CONFIG.value, _WORKDIR.value or "", cli.recipe()))
    return
  from ncl_jax.training import loop

  loop.train(_CONFIG.value, _WORKDIR.value or "", profile=_PROFILE.value)


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
