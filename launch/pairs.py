"""Evaluates a run on pairs: recall and zero-shot classes.

  ncl pairs --workdir=runs/emoji-ncl

For runs with --config.loss.name=clip on images with captions, and for runs on pairs of
images. The result is a line of WORKDIR/eval/pairs.jsonl, with the words and images that
activate each dimension most. For 20 dimensions they are also printed.
"""

from ncl_jax import cli


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute, pairs

  print(pairs.text(execute.run(pairs.evaluate, workdir, step)))


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
