"""Compares two runs' dimensions, matched one to one.

  ncl axes --workdir=runs/seed0/ncl --other=runs/seed1/ncl

Dimensions are matched on the training images (Hungarian method), and their correlations
are averaged on the test images. The chance level comes from shuffled images. Both
networks see the data of the first run. The result is a line of
WORKDIR/eval/axes.jsonl.
"""

from absl import flags

from ncl_jax import cli
from ncl_jax.errors import InputError

_OTHER = flags.DEFINE(cli.WORKDIR, "other", "", "work directory of the other run")


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import axes, execute
  from ncl_jax.evaluators.run import open_run

  if not _OTHER.value:
    raise InputError("--other is missing: see --help")
  source = open_run(workdir, step).source
  other = open_run(_OTHER.value, source=source)
  execute.run(axes.evaluate, workdir, step, source, other=other)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
