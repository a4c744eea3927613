"""Trains CL and NCL side by side, evaluates both and a control, writes a report.

  python -m launch.compare --config=configs/digits.py --workdir=runs/digits --seeds=1

Finished and half-finished runs in the work directory are used, not repeated. The report
is WORKDIR/report: index.html, report.md, report.json, figures/.
"""

from absl import flags
from ml_collections import config_flags

from ncl_jax import cli

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, "config file; with ncl,MAP after a colon for another map"
)
_WORKDIR = flags.DEFINE_string("workdir", None, "directory of the comparison")
_SEEDS = flags.DEFINE_integer("seeds", 1, "how many pairs of runs", lower_bound=1)


def main() -> None:
  """Compares."""
  from ncl_jax import compare

  print(compare.compare(_CONFIG.value, _WORKDIR.value or "", seeds=_SEEDS.value))


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
