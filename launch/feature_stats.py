"""Evaluates a checkpoint: sparsity, purity, correlation.

  ncl feature_stats --workdir=runs/cifar10-ncl

The result is a line of WORKDIR/eval/feature_stats.jsonl.
"""

from ncl_jax import cli


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute, feature_stats

  execute.run(feature_stats.evaluate, workdir, step)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
