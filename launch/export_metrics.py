"""Exports a run's metrics to TensorBoard or W&B.

  ncl export_metrics --workdir=runs/cifar10-ncl --to=tensorboard --follow

Works during or after the run. TensorBoard files go to WORKDIR/tensorboard (pip install
'.[tensorboard]'). --to=wandb creates a run of the project ncl_jax (pip install
'.[wandb]'; WANDB_MODE=offline needs no account). --follow continues until the run is
complete. A second call exports only new rows, to the same run; to export all rows
again, remove WORKDIR/TARGET.copied.json.
"""

from absl import flags

from ncl_jax import cli

_WORKDIR = flags.DEFINE(cli.PATH, "workdir", None, "work directory of a run")
_TO = flags.DEFINE_enum("to", "tensorboard", ["tensorboard", "wandb"], "the tracker")
_FOLLOW = flags.DEFINE_bool("follow", False, "continue until the run is complete")


def main() -> None:
  """Exports."""
  from ncl_jax.training import tracker_export

  tracker_export.export(_WORKDIR.value or "", _TO.value, follow=_FOLLOW.value)


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
