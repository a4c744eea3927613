"""Evaluates a checkpoint by several programs, or by all.

  ncl evaluate --workdir=runs/cifar10-ncl
  ncl evaluate --workdir=runs/cifar10-ncl --watch --programs=knn,retrieval

With --watch it follows a running training: each checkpoint as it appears, until the
training is complete. One program that fails stops no other. Results are lines of
WORKDIR/eval/PROGRAM.jsonl.
"""

from absl import flags

from ncl_jax import cli, evaluators

_PROGRAMS = flags.DEFINE_list(
  "programs", "all", f"all, or of: {', '.join(evaluators.PROGRAMS)}"
)


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import program

  names = tuple(_PROGRAMS.value or ())
  program.run_all(None if names == ("all",) else names, workdir, step)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
