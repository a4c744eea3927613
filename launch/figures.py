"""Draws every figure of two runs, as PNG and as SVG.

  ncl figures --workdir=runs/seed0/ncl --versus=runs/seed0/cl

WORKDIR/figures gets the images that activate single dimensions most, expected
activations, correlation, training curves, the values of f, and t-SNE maps of h and f.
If ncl selection has evaluated both runs, also the accuracy against the number of
dimensions kept. For two classifiers, such as CE and NCE, also the test accuracy during
training.
"""

from absl import flags

from ncl_jax import cli

cli.define_data_source()
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "work directory of a run")
_VERSUS = flags.DEFINE(
  cli.WORKDIR, "versus", None, "directory of a run to compare with"
)
_OUT = flags.DEFINE(cli.WORKDIR, "out", "", "the folder; default: WORKDIR/figures")


def main() -> None:
  """Draws."""
  from ncl_jax.experiments import figures

  for file in figures.draw(
    _WORKDIR.value or "", _VERSUS.value or "", _OUT.value or None
  ):
    print(file)


if __name__ == "__main__":
  cli.run(main, required=("workdir", "versus"))
