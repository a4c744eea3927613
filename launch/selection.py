"""Evaluates a checkpoint with k of its dimensions.

  ncl selection --workdir=runs/imagenet100-ncl --keep=512
  ncl selection --workdir=runs/cifar100-ncl --transfer=tfds:cifar10

The selections are: all dimensions; k at random; the k with the largest expected
activation of signed outputs (ea_signed) and of rectified outputs (ea_relu); and as
baselines k active dimensions at random, k by variance, and k by PCA. Each gets a linear
probe, retrieval and, with --transfer, a probe on that data set. Also computes a curve
over k, and the rank correlation between a dimension's activation and the accuracy lost
without it. The result is a line of WORKDIR/eval/selection.jsonl.
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
  from ncl_jax.evaluators import execute, selection

  execute.run(
    selection.evaluate, workdir, step, keep=_KEEP.value, transfer=_TRANSFER.value
  )


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
