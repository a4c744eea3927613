"""Makes a page that shows a run's dimensions and images.

  ncl explore --workdir=runs/cifar10-ncl --versus=runs/cifar10-cl

One HTML file, WORKDIR/explorer.html, that needs no network: what activates each
dimension of f, why an image has the code that it has, and which images are near it and
by which dimensions; of a vision transformer, what it looks at. With --versus a switch
shows the other run, such as CL beside NCL.
"""

from absl import flags

from ncl_jax import cli

cli.define_data_source()
_WORKDIR = flags.DEFINE(cli.PATH, "workdir", None, "directory of a training run")
_VERSUS = flags.DEFINE(cli.PATH, "versus", "", "directory of another, to compare with")
_STEP = flags.DEFINE_integer("step", None, "which checkpoint; default: the newest")
_OUT = flags.DEFINE(cli.PATH, "out", "", "the file; default: WORKDIR/explorer.html")
_SEPIN = flags.DEFINE_bool("sepin", False, "also SEPIN of each dimension; takes longer")


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
  print(f"Explorer: {path} ({path.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
  cli.run(main, required=("workdir",))
