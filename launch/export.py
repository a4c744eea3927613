"""Writes a checkpoint's tensors, or a split's features.

  ncl export --workdir=runs/cifar10-ncl --out=ncl.safetensors --names=torch
  ncl export --workdir=runs/cifar10-ncl --features=test.npz --split=test

The feature file, for numpy.load, holds h, z, f (float32), labels, ids, class_names and,
for image files, their names. An existing file is never replaced.
"""

from absl import flags

from ncl_jax import cli
from ncl_jax.errors import InputError

_OUT = flags.DEFINE(cli.PATH, "out", "", "FILE.safetensors for the tensors")
_NAMES = flags.DEFINE_enum("names", "torch", ("torch", "ours"), "names of the tensors")
_FEATURES = flags.DEFINE(cli.PATH, "features", "", "FILE.npz for the features")
_SPLIT = flags.DEFINE_string("split", "test", "split of the features")


def main(workdir: str, step: int | None) -> None:
  """Exports."""
  from ncl_jax.evaluators import torch_exchange

  if not (_OUT.value or _FEATURES.value):
    raise InputError("nothing to write: give --out=FILE or --features=FILE")
  if _OUT.value:
    torch_exchange.export_variables(workdir, _OUT.value, names=_NAMES.value, step=step)
  if _FEATURES.value:
    split = _SPLIT.value or "test"
    torch_exchange.export_features(workdir, _FEATURES.value, split=split, step=step)


if __name__ == "__main__":
  cli.run_on_checkpoint(main)
