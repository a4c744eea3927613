"""Trains CL and NCL, evaluates both, and writes a report.

  ncl compare --config=digits --workdir=runs/digits --seeds=1

Finished and half-finished runs in the work directory are used, not repeated. The report
is WORKDIR/report: index.html, report.md, report.json, figures/, and the table of all
controls, controls.txt. Where data and network are the paper's, its numbers stand beside
ours. Killed, the same command goes on; what was measured is in WORKDIR/measured.jsonl.
Quick: --programs=feature_stats,knn,linear_probe,retrieval --controls=untrained. All
controls, but none of them finetuned: --control_programs=feature_stats,knn,linear_probe.
Of two towers (recipes pairs and texts) the figures of ncl pairs come first.
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
  "what CL and NCL are held against; trained: two more trainings a seed",
)
_CONTROL_PROGRAMS = flags.DEFINE_list(
  "control_programs", "all", "of --programs, those that controls without training get"
)
_SEEDS = flags.DEFINE_integer("seeds", 1, "how many pairs of runs", lower_bound=1)


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
