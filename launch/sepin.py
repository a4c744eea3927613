"""Evaluates a checkpoint: SEPIN of single dimensions.

  ncl sepin --workdir=runs/cifar10-ncl

Two random views of each test image pass through the network. SEPIN@k is the mean over
the k best dimensions of L(f without the dimension) - L(f), with L = InfoNCE. The k are
chosen on one half of the images and scored on the other. Also reports the scores of
noise, the scores at other temperatures, and whether the two views activate the same
dimensions (`view_agreement`). The result is a line of WORKDIR/eval/sepin.jsonl.
"""

from ncl_jax import cli


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute, sepin

  execute.run(sepin.evaluate, workdir, step)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
