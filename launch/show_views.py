"""Draws the augmented views that training uses.

  ncl show_views --config=cifar10:ncl --out=views.png
  ncl show_views --workdir=runs/cifar10-ncl

Look at the views first when a run does not learn. The PNG has a row for each of some
training images: the image, its test view, and random training views. With --workdir the
settings come from the run, and the file is WORKDIR/views.png.
"""

from absl import flags

from ncl_jax import cli
from ncl_jax.errors import InputError
from ncl_jax.host import paths

_CONFIG = cli.define_config()
cli.define_data_source()
_WORKDIR = flags.DEFINE(
  cli.WORKDIR, "workdir", "", "instead of --config: work directory of a run"
)
_OUT = flags.DEFINE(
  cli.WORKDIR, "out", "", "the file; default: views.png, or in --workdir"
)
_IMAGES = flags.DEFINE_integer("images", 8, "number of images", lower_bound=1)
_VIEWS = flags.DEFINE_integer("views", 8, "random views of each image", lower_bound=1)


def main() -> None:
  """Draws."""
  from ncl_jax.experiments import show_views
  from ncl_jax.training import workdir

  if (_CONFIG.value is None) == (not _WORKDIR.value):
    raise InputError("give either --config or --workdir: see --help")
  config = _CONFIG.value or workdir.read_config(_WORKDIR.value)
  path = show_views.write(
    _OUT.value or paths.absolute(_WORKDIR.value) / "views.png",
    config,
    workdir.load_source(workdir.streamed(config)),
    images=_IMAGES.value,
    views=_VIEWS.value,
  )
  print(f"Views: {path}")


if __name__ == "__main__":
  cli.run(main)
