"""Draws every figure of two runs, as PNG and as SVG.

  ncl figures --workdir=runs/seed0/ncl --versus=runs/seed0/cl

In WORKDIR/figures: the images that activate single dimensions most, expected
activations, correlation, training curves, the values of f, t-SNE maps of h and f; where
both runs have been through ncl selection the accuracy over the number of dimensions
kept; of two classifiers, CE and NCE say, the accuracy on the test set over the steps.
"""

from absl import flags

from ncl_jax import cli

cli.define_data_source()
_WORKDIR = flags.DEFINE(cli.PATH, "workdir", None, "directory of a training run")
_VERSUS = flags.DEFINE(cli.PATH, "versus", None, "directory of another, such as of CL")
_OUT = flags.DEFINE(cli.PATH, "out", "", "the folder; default: WORKDIR/figures")


def main() -> None:
  """Draws."""
  from ncl_jax.experiments import figures

  for file in figures.draw(
    _WORKDIR.value or "", _VERSUS.value or "", _OUT.value or None
  ):
    print(file)


if __name__ == "__main__":
  cli.run(main, required=("workdir", "versus"))
