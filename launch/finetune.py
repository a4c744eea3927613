"""Evaluates a checkpoint by finetuning its backbone.

  ncl finetune --workdir=runs/cifar10-ncl
  ncl finetune --workdir=runs/cifar10-ncl --label_fraction=0.01

The defaults are 30 epochs and the paper's values for the kind of network. The result is
a line of WORKDIR/eval/finetune.jsonl; the checkpoint is not changed. The same command
resumes from its own checkpoints in WORKDIR/eval/finetune/. With other data, settings or
code it starts again.
"""

from ncl_jax import cli
from ncl_jax.config.supervised_recipe import Recipe, for_stem
from ncl_jax.host import paths

_RECIPE = cli.define_fields(Recipe)


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute, finetune
  from ncl_jax.training import workdir as workdir_lib

  stem = workdir_lib.read_config(workdir).model.stem
  recipe = for_stem(stem, **({"epochs": finetune.EPOCHS} | _RECIPE()))
  folder = paths.absolute(workdir) / "eval" / "finetune"
  execute.run(finetune.evaluate, workdir, step, recipe=recipe, folder=folder)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
