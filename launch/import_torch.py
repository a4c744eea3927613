"""Makes a work directory from a PyTorch checkpoint.

  ncl import_torch --file=X.ckpt --config=cifar100:ncl \\
      --workdir=runs/released

The file may be .npz or .safetensors and, where torch is installed, .ckpt, .pth or .pt.
Nothing in it is executed. The config must describe the file's network; if it does not,
the message lists the differences.
"""

from absl import flags

from ncl_jax import cli

_CONFIG = cli.define_config()
_FILE = flags.DEFINE(cli.PATH, "file", None, "the checkpoint to read")
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "directory to make")
_CLASSIFIER = flags.DEFINE_bool(
  "classifier", True, "import the classifier; --noclassifier for other classes"
)


def main() -> None:
  """Imports."""
  from ncl_jax.evaluators import torch_exchange

  torch_exchange.import_torch(
    _CONFIG.value,
    _FILE.value or "",
    _WORKDIR.value or "",
    classifier=bool(_CLASSIFIER.value),
  )


if __name__ == "__main__":
  cli.run(main, required=("config", "file", "workdir"))
