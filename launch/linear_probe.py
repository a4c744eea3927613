"""Evaluates a checkpoint: linear probes, on h and f.

  ncl linear_probe --workdir=runs/cifar10-ncl
  ncl linear_probe --workdir=runs/cifar10-ncl --protocol=sgd --layers=h

The first command fits logistic regression to the features by L-BFGS. The second uses
the paper's protocol: 50 epochs of augmented images through the frozen network. The
flags from --epochs on apply only to sgd; their defaults are the paper's values for the
kind of network. The result is a line of WORKDIR/eval/linear_probe.jsonl. The same
command resumes sgd from its checkpoints in WORKDIR/eval/linear_probe/.
"""

from typing import Any

from absl import flags

from ncl_jax import cli
from ncl_jax.config.supervised_recipe import Recipe, for_stem
from ncl_jax.errors import InputError
from ncl_jax.host import paths

_PROTOCOL = flags.DEFINE_enum("protocol", "lbfgs", ("lbfgs", "sgd"), "how to fit")
_LAYERS = flags.DEFINE_list("layers", "h,f", "some of h, hidden, z, f")
_RECIPE = cli.define_fields(Recipe)


def main(workdir: str, step: int | None) -> None:
  """Evaluates."""
  from ncl_jax.evaluators import execute, linear_probe
  from ncl_jax.training import workdir as workdir_lib

  options: dict[str, Any] = {
    "protocol": _PROTOCOL.value,
    "layers": tuple(_LAYERS.value or ()),
  }
  if _PROTOCOL.value == "sgd":
    stem = workdir_lib.read_config(workdir).model.stem
    recipe = for_stem(stem, **({"epochs": linear_probe.SGD_EPOCHS} | _RECIPE()))
    folder = paths.absolute(workdir) / "eval" / "linear_probe"
    options |= {"recipe": recipe, "folder": folder}
  elif _RECIPE():
    raise InputError(f"--{', --'.join(_RECIPE())}: only for --protocol=sgd")
  execute.run(linear_probe.evaluate, workdir, step, **options)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
