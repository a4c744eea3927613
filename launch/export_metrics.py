"""Copies a run's metrics to TensorBoard or Weights & Biases.

  ncl export_metrics --workdir=runs/cifar10-ncl --to=tensorboard --follow

TensorBoard's files go to WORKDIR/tensorboard (pip install '.[tensorboard]'); with
--to=wandb a run of the project ncl_jax is made (pip install '.[wandb]';
WANDB_MODE=offline needs no account). --follow goes on until the run is complete. Called
again, it copies what is new, to the same run; remove WORKDIR/TARGET.copied.json to copy
everything anew.
"""

from absl import flags

from ncl_jax import cli

_WORKDIR = flags.DEFINE(cli.PATH, "workdir", None, "directory of a training run")
_TO = flags.DEFINE_enum("to", "tensorboard", ["tensorboard", "wandb"], "for whom")
_FOLLOW = flags.DEFINE_bool("follow", False, "until the run is complete")


def main() -> None:
  """Copies."""
  from ncl_jax.training import tracker_export

  tracker_export.export(_WORKDIR.value or "", _TO.value, follow=_FOLLOW.value)


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
