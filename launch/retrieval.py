"""Evaluates a checkpoint: retrieval of the same class.

  ncl retrieval --workdir=runs/cifar10-ncl

The result is a line of WORKDIR/eval/retrieval.jsonl.
"""

from ncl_jax import cli


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute, retrieval

  execute.run(retrieval.evaluate, workdir, step)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
