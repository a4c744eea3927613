"""Trains CL and NCL, evaluates both, and writes a report.

  ncl compare --config=digits --workdir=runs/digits --seeds=1

The report is WORKDIR/report: index.html, report.md, report.json, figures/, and
controls.txt with the table of all controls. If data and network are the paper's, the
report also shows the paper's numbers. For two towers (recipes pairs and texts) the
figures of ncl pairs come first.

The same command resumes after an interruption. It reuses runs in the work directory and
the results in WORKDIR/measured.jsonl.

To save time: --evaluators=feature_stats,knn,linear_probe,retrieval
--controls=untrained.

Default controls: the untrained network with the transform; CL with thresholds that give
NCL's activation rates; CL rotated by varimax; and k-means of the pixels, of CL's h and
of CL's f. --controls=all adds the other controls that need no training. Names,
separated by commas, select some; cl_l1 and cl_narrow each train one more network per
seed. To skip finetuning for controls:
--control_evaluators=feature_stats,knn,linear_probe.

--dry_run reads a few images, prints the time, memory and disk space that the comparison
needs, and exits.
"""

from typing import Any

from absl import flags

from ncl_jax import cli

_CONFIG = cli.define_config("ncl,TRANSFORM for another transform")
_WORKDIR = flags.DEFINE(cli.WORKDIR, "workdir", None, "directory of the comparison")
_EVALUATORS = cli.define_evaluators()
_CONTROLS = flags.DEFINE_list(
  "controls", "default", "controls to evaluate: default, all, or names"
)
_CONTROL_EVALUATORS = cli.define_evaluators(
  "control_evaluators",
  "all, or some of --evaluators, for controls that need no training",
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "print the plan and exit")
_SEEDS = flags.DEFINE_integer("seeds", 1, "number of pairs of runs", lower_bound=1)


def main() -> None:
  """Compares."""
  from ncl_jax.experiments import compare

  asked: dict[str, Any] = {
    "seeds": _SEEDS.value,
    "evaluators": _EVALUATORS(),
    "controls": tuple(_CONTROLS.value or ()),
    "control_evaluators": _CONTROL_EVALUATORS(),
  }
  config, workdir = _CONFIG.value, _WORKDIR.value or ""
  if _DRY_RUN.value:
    print(compare.describe(config, workdir, cli.recipe(), **asked))
  else:
    print(compare.compare(config, workdir, **asked))


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
