"""Evaluates runs: does each dimension stand for one factor?

  ncl disentangle --workdirs=runs/dsprites/cl,runs/dsprites/ncl

Prints MIG, SAP, DCI, modularity, explicitness and the FactorVAE score of each run, of
its untrained network, of the same number of principal components of the pixels, and of
its features with the images shuffled (chance). Only factors that positive pairs share
are scored. For several runs of a method, such as seeds, it also prints mean and
standard deviation. The result is a line of WORKDIR/eval/disentangle.jsonl.
"""

from absl import flags

from ncl_jax import cli

cli.define_data_source()
_WORKDIRS = flags.DEFINE(cli.WORKDIRS, "workdirs", None, "directories of training runs")


def main() -> None:
  """Evaluates."""
  from ncl_jax.evaluators import disentangle, execute
  from ncl_jax.evaluators.run import open_run

  rows: dict[str, dict[str, float]] = {}
  groups: dict[str, list[dict[str, float]]] = {}
  for workdir in _WORKDIRS.value or ():
    run = open_run(workdir)
    row = execute.evaluate(disentangle.evaluate, run)
    name = f"{run.config.method}, seed {run.config.seed}"
    for key in ("f", "untrained", "pca", "shuffled"):
      rows[f"{name}: {key} ({run.path.name})"] = row[key]
      groups.setdefault(f"{run.config.method}: {key}", []).append(row[key])
  print(disentangle.table(rows))
  if len(groups) < len(rows):
    print(f"\n{disentangle.over_runs(groups)}")


if __name__ == "__main__":
  cli.run(main, required=("workdirs",))
