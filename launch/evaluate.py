"""Evaluates a checkpoint with several evaluators, or all.

  ncl evaluate --workdir=runs/cifar10-ncl
  ncl evaluate --workdir=runs/cifar10-ncl --watch --evaluators=knn,retrieval

If an evaluator fails, the others still run. With --watch each new checkpoint is
evaluated until training is complete. Results are lines of WORKDIR/eval/NAME.jsonl.
"""

from absl import flags

from ncl_jax import cli

_EVALUATORS = flags.DEFINE_list(
  "evaluators", "all", "all, or some, by the names in docs/evaluation.md"
)


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute

  names = tuple(_EVALUATORS.value or ())
  execute.run_all(None if names == ("all",) else names, workdir, step)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
