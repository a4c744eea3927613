"""Evaluates a checkpoint: nearest neighbours, on h and f.

  ncl knn --workdir=runs/cifar10-ncl

The result is a line of WORKDIR/eval/knn.jsonl.
"""

from ncl_jax import cli


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute, knn

  execute.run(knn.evaluate, workdir, step)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
