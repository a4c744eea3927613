"""Evaluates a checkpoint: linear probes on h and on f, fitted by L-BFGS.

  python -m launch.linear_probe --workdir=runs/cifar10-ncl

The model is rebuilt from the work directory's config.json; the result is a line of
WORKDIR/eval/linear_probe.jsonl.
"""

from ncl_jax import cli


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import linear_probe, program

  program.run(linear_probe, workdir, step)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
