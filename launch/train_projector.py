r"""Trains only the projector, on a frozen backbone.

  ncl train_projector --config=folder:ncl \
      --config.data.source=folder:/path/to/photos --config.model.stem=imagenet \
      --backbone=resnet18.pth --workdir=runs/quick-ncl
  ncl explore --workdir=runs/quick-ncl

--backbone is a file of torchvision's ResNet-18 or -50 (.pth needs torch installed;
.safetensors and .npz do not), or the work directory of another run. The backbone
computes features of --views views of each image once. The projector then trains on them
for --epochs, which takes minutes. Only the weight decay of the config's optimizer is
used. The result is a work directory that all evaluators accept.
"""

from absl import flags

from ncl_jax import cli
from ncl_jax.errors import InputError

_CONFIG = cli.define_config()
_BACKBONE = flags.DEFINE(
  cli.WORKDIR, "backbone", None, "file, or work directory of a run"
)
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "directory to make")
_VIEWS = flags.DEFINE_integer("views", 4, "random views of each image; an even number")
_EPOCHS = flags.DEFINE_integer("epochs", 100, "passes over the images")


def main() -> None:
  """Trains."""
  from ncl_jax import config as config_lib
  from ncl_jax.training import frozen_backbone

  changed = config_lib.overrides(cli.recipe(), _CONFIG.value)
  for key in frozen_backbone.OWN:
    if key in changed:
      raise InputError(
        f"--config.{key} does not apply here: the projector is trained for "
        f"--epochs={_EPOCHS.value} by AdamW with its own settings"
      )
  frozen_backbone.train_projector(
    _CONFIG.value,
    _BACKBONE.value or "",
    _WORKDIR.value or "",
    views=_VIEWS.value or 0,
    epochs=_EPOCHS.value or 0,
  )


if __name__ == "__main__":
  cli.run(main, required=("config", "backbone", "workdir"))
