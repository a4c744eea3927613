"""Writes a page to explore dimensions and images.

  ncl explore --workdir=runs/cifar10-ncl --versus=runs/cifar10-cl

The page is one HTML file, WORKDIR/explorer.html, that works offline. It shows the
images that activate each dimension of f, the active dimensions of each image, and each
image's neighbours with the dimensions they share. For a vision transformer it also
shows attention. With --versus you can switch to another run, such as CL.
"""

from absl import flags

from ncl_jax import cli

cli.define_data_source()
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "work directory of a run")
_VERSUS = flags.DEFINE(cli.WORKDIR, "versus", "", "directory of a run to compare with")
_STEP = flags.DEFINE_integer("step", None, "step of the checkpoint; default: newest")
_OUT = flags.DEFINE(cli.WORKDIR, "out", "", "the file; default: WORKDIR/explorer.html")
_SEPIN = flags.DEFINE_bool("sepin", False, "also show SEPIN; takes longer")


def main() -> None:
  """Makes the page."""
  from ncl_jax.experiments import explorer as explorer_lib

  path = explorer_lib.explore(
    _WORKDIR.value or "",
    _VERSUS.value or None,
    step=_STEP.value,
    out=_OUT.value or None,
    sepin=_SEPIN.value,
  )
  print(f"Explorer: {path} ({len(path.read_bytes()) / 1e6:.1f} MB)")


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
