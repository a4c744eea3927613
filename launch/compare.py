"""Trains CL and NCL, evaluates both, and writes a report.

  ncl compare --config=digits --workdir=runs/digits --seeds=1

The report is WORKDIR/report: index.html, report.md, report.json, figures/, and
controls.txt with the table of all controls. Where data and network are the paper's, its
numbers stand beside the measured ones. For two towers (recipes pairs and texts) the
figures of ncl pairs come first.

The same command resumes after an interruption. It reuses runs in the work directory and
the results in WORKDIR/measured.jsonl.

Faster: --programs=feature_stats,knn,linear_probe,retrieval --controls=untrained. All
controls, without finetuning them: --control_programs=feature_stats,knn,linear_probe.
"""

from absl import flags
from ml_collections import config_flags

from ncl_jax import cli, evaluators

_CONFIG = config_flags.DEFINE_config_file(
  "config",
  None,
  f"{cli.CONFIG}; with ncl,TRANSFORM after a colon for another transform",
)
_WORKDIR = flags.DEFINE(cli.PATH, "workdir", None, "directory of the comparison")
_PROGRAMS = flags.DEFINE_list(
  "programs",
  "all",
  f"all, or of: {', '.join((*evaluators.PROGRAMS, *evaluators.PAIRED))}",
)
_CONTROLS = flags.DEFINE_enum(
  "controls",
  "all",
  ["untrained", "all", "trained"],
  "controls to compare with; trained: two more runs per seed",
)
_CONTROL_PROGRAMS = flags.DEFINE_list(
  "control_programs", "all", "those of --programs that evaluate untrained controls"
)
_SEEDS = flags.DEFINE_integer("seeds", 1, "number of pairs of runs", lower_bound=1)


def main() -> None:
  """Compares."""
  from ncl_jax.experiments import compare

  names = tuple(_PROGRAMS.value or ())
  of_controls = tuple(_CONTROL_PROGRAMS.value or ())
  text = compare.compare(
    _CONFIG.value,
    _WORKDIR.value or "",
    seeds=_SEEDS.value,
    programs=None if names == ("all",) else names,
    against=_CONTROLS.value,
    control_programs=None if of_controls == ("all",) else of_controls,
  )
  print(text)


if __name__ == "__main__":
  cli.run(main, required=("config", "workdir"))
