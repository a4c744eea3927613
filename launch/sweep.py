r"""Trains and evaluates every combination of the given settings.

  ncl sweep --config=digits --workdir=runs/temperatures \
      --grid='loss.temperature=0.1,0.2,0.5;seed=0,1'

A field of the grid is any setting, or method, which applies the config's settings for
each method. Trials run one after the other; if one fails, the others still run. The
same command resumes, without repeating finished trials. The work directory gets a run
for each trial, and sweep.jsonl, sweep.md and sweep.png for all of them. With labels,
nearest neighbours on h are compared with those of the untrained network and of raw
pixels.
"""

from absl import flags

from ncl_jax import cli

_CONFIG = cli.define_config("the method where the grid has none")
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "directory of the sweep")
_GRID = flags.DEFINE_string("grid", None, "FIELD=VALUE,VALUE;FIELD=VALUE,...")
_EVALUATORS = flags.DEFINE_list(
  "evaluators", "feature_stats,knn", "evaluators of each trial, see ncl evaluate"
)


def main() -> None:
  """Sweeps."""
  from ncl_jax.experiments import sweep

  text = sweep.sweep(
    _CONFIG.value,
    _WORKDIR.value or "",
    _GRID.value or "",
    recipe=cli.recipe,
    evaluators=tuple(_EVALUATORS.value or ()),
  )
  print(text)


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir", "grid"))
