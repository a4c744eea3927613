"""Evaluates a checkpoint under corruption and few labels.

  ncl robustness --workdir=runs/imagenet100-ncl
  ncl robustness --workdir=runs/imagenet100-ncl \\
      --ood=folder:/data/sketch,tfds:imagenet2012_corrupted/gaussian_noise_3

Linear probes on h and on f are fitted to the clean training images. They are tested on
13 corruptions at five severities (those of CIFAR-10-C or ImageNet-C, computed here
without a download) and on images of other data sets (--ood), for classes that have the
same name in both. Prints a table; the result is a line of
WORKDIR/eval/robustness.jsonl.
"""

from absl import flags

from ncl_jax import cli

_OOD = flags.DEFINE(
  cli.SOURCES,
  "ood",
  None,
  "other sets, FORM:PATH, separated by commas; default: eval.ood",
)


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute, robustness

  ood = None if _OOD.value is None else tuple(_OOD.value)
  row = execute.run(robustness.evaluate, workdir, step, ood=ood)
  print(robustness.table(row))


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
