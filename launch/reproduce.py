"""Reproduces the paper's tables for a data set.

  ncl reproduce cifar100 --workdir=runs/cifar100

The data set is cifar10, cifar100 or imagenet100; --config=FILE:ncl selects another,
with its own `expected` numbers. The command first prints the planned runs and their
hours; --dry_run adds the claims and exits. It then writes the claims to
WORKDIR/claims.json, which later calls do not change. The result is WORKDIR/report and a
verdict on each claim. The same command resumes after an interruption.
"""

import sys

from absl import flags

from ncl_jax import cli

NAMES = ("cifar10", "cifar100", "imagenet100")

_CONFIG = cli.define_config()
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "directory of the reproduction")
_SEEDS = flags.DEFINE_integer("seeds", 5, "number of pairs of runs", lower_bound=1)
_EVALUATORS = cli.define_evaluators()
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print the planned runs and exit")


def main() -> None:
  """Reproduces."""
  from ncl_jax.experiments import reproduce

  text = reproduce.reproduce(
    _CONFIG.value,
    _WORKDIR.value or "",
    seeds=_SEEDS.value,
    evaluators=_EVALUATORS(),
    dry_run=_DRY_RUN.value,
  )
  print(text)


if __name__ == "__main__":
  if sys.argv[1:2] and sys.argv[1] in NAMES:
    sys.argv[1] = f"--config={sys.argv[1]}:ncl"
  cli.run(main, required=("config", "workdir"))
