"""Trains a network; run the same command again to resume.

  ncl train --config=cifar10:ncl --workdir=runs/cifar10-ncl

The method follows the colon: cl or ncl; supcon or supcon_ncl, which use the labels; ce,
nce, ce_projector or nce_projector, which train classifiers; spectral, moco_v3, byol,
dino, barlow_twins or vicreg, and each of these with the transform, such as byol_ncl.
Append another transform after a comma: ncl,relu. Change settings with
--config.SECTION.FIELD=VALUE. --config.train.init_from=DIR starts from the network of
another run.

The work directory gets config.json, data.json, metrics.jsonl, speed.jsonl and
checkpoints/. A classifier also gets best/, a work directory with its best step on the
test set.

--dry_run reads a few images and prints the planned run: settings and changes to them,
parameters, memory, steps and hours. It trains and writes nothing, but downloads a
missing set of TensorFlow Datasets.
"""

from absl import flags

from ncl_jax import cli

_CONFIG = cli.define_config()
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "directory of this run")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print the planned run and exit")
_PROFILE = flags.DEFINE_string(
  "profile", "", "FIRST:LAST, the steps to record in WORKDIR/profile for TensorBoard"
)


def main() -> None:
  """Trains."""
  # Imported here, so that wrong flags are reported at once.
  if _DRY_RUN.value:
    from ncl_jax.preflight import dry_run

    print(dry_run.describe(_CONFIG.value, _WORKDIR.value or "", cli.recipe()))
    return
  from ncl_jax.training import loop

  loop.train(_CONFIG.value, _WORKDIR.value or "", profile=_PROFILE.value)


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
