"""Evaluates a checkpoint with k of its dimensions kept.

  ncl selection --workdir=runs/imagenet100-ncl --keep=512
  ncl selection --workdir=runs/cifar100-ncl --transfer=tfds:cifar10

The rows: all; k at random; the k of largest expected activation, of signed (ea_signed)
and of rectified outputs (ea_relu); and to be fair, k at random of the live ones, by
variance, and by PCA. Each with a linear probe, retrieval, and, with --transfer, a probe
on that data set; a curve over k; and the rank correlation of activation with the
accuracy lost without a dimension. The model is rebuilt from the work directory's
config.json; the result is a line of WORKDIR/eval/selection.jsonl.
"""

from absl import flags

from ncl_jax import cli

_KEEP = flags.DEFINE_integer("keep", 0, "k; default: a quarter of the dimensions")
_TRANSFER = flags.DEFINE(
  cli.SOURCE,
  "transfer",
  None,
  "another data set, such as tfds:cifar10; default: eval.transfer",
)


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import program, selection

  program.run(selection, workdir, step, keep=_KEEP.value, transfer=_TRANSFER.value)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
