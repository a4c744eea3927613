r"""Trains and evaluates every combination of some settings.

  ncl sweep --config=digits --workdir=runs/temperatures \
      --grid='loss.temperature=0.1,0.2,0.5;seed=0,1'

A field is method, which takes the config file's recipe for each, or any setting. One
after the other; the same command goes on where it stopped, finished cells are not made
again, and one that fails stops no other. The work directory gets a run for each cell,
and sweep.jsonl, sweep.md and sweep.png of all. With labels, nearest neighbours on h
stand beside those of the untrained network and of raw pixels.
"""

from absl import flags
from ml_collections import config_flags

from ncl_jax import cli

_CONFIG = config_flags.DEFINE_config_file(
  "config", None, f"{cli.CONFIG}; after a colon the method where the grid has none"
)
_WORKDIR = flags.DEFINE(cli.PATH, "workdir", None, "directory of the sweep")
_GRID = flags.DEFINE_string("grid", None, "FIELD=VALUE,VALUE;FIELD=VALUE,...")
_PROGRAMS = flags.DEFINE_list(
  "programs", "feature_stats,knn", "evaluations of each cell, see ncl evaluate"
)


def main() -> None:
  """Sweeps."""
  from ncl_jax.experiments import sweep

  text = sweep.sweep(
    _CONFIG.value,
    _WORKDIR.value or "",
    _GRID.value or "",
    recipe=cli.recipe,
    programs=tuple(_PROGRAMS.value or ()),
  )
  print(text)


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir", "grid"))
