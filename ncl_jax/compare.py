"""CL against NCL: paired runs over seeds, the evaluators on each, one report."""

import pathlib
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import report, summary, train
from ncl_jax import workdir as workdir_lib
from ncl_jax.errors import InputError
from ncl_jax.evaluators import (
  feature_stats,
  knn,
  linear_probe,
  program,
  retrieval,
  sepin,
)


def compare(config: ConfigDict, workdir: str | pathlib.Path, *, seeds: int) -> str:
  """Trains or reuses both methods, evaluates them and the control, writes a report.

  The two runs of a seed share initialisation, order and views; only the map differs.
  The control is the network before training, with NCL's map on it.

  Args:
    config: an NCL config; CL is the same without its map.
    workdir: gets seedS/cl, seedS/ncl and report/.
    seeds: how many pairs; seeds are config.seed, config.seed + 1, ...

  Returns:
    The table, and where to look.

  Raises:
    InputError: for settings that cannot work.
  """
  if config.method != "ncl" or config.loss.map == "identity":
    raise InputError(
      f"compare needs an NCL config (CL is made from it), this is {config.method} "
      f"with the map {config.loss.map}"
    )
  config_lib.validate(config)
  root = pathlib.Path(workdir).expanduser().resolve()
  source = workdir_lib.load_source(config)
  numbers = [config.seed + i for i in range(seeds)]
  runs: dict[str, list[pathlib.Path]] = {"cl": [], "ncl": []}
  for seed in numbers:
    for method, paths in runs.items():
      path = root / f"seed{seed}" / method
      paths.append(train.train(_arm_config(config, method, seed), path, source))

  programs = [feature_stats, sepin]
  if source.num_classes:
    programs += [knn, linear_probe, retrieval]
  results: dict[str, list[dict[str, Any]]] = {"cl": [], "ncl": [], "untrained": []}
  for index, seed in enumerate(numbers):
    for method, paths in runs.items():
      logging.info("evaluating %s, seed %d", summary.LABELS[method], seed)
      rows = [program.run(p, paths[index], source=source) for p in programs]
      results[method].append(_by_program(programs, rows))
    logging.info("evaluating the control, seed %d", seed)
    opened = program.open_run(runs["ncl"][index], source=source)
    variables = program.untrained(opened)
    rows = [p.evaluate(opened.config, variables, source, opened.mesh) for p in programs]
    results["untrained"].append(_by_program(programs, rows))

  comparison = summary.comparison(config, source, runs, results, numbers)
  if jax.process_index() == 0:
    report.write(root / "report", comparison)
  return f"{report.table(comparison)}\n\nReport: {root / 'report' / 'index.html'}"


def _arm_config(config: ConfigDict, method: str, seed: int) -> ConfigDict:
  """The settings of one run of the pair."""
  arm = config.copy_and_resolve_references()
  arm.seed = seed
  if method == "cl":
    config_lib.set_method(arm, "cl")
  return arm


def _by_program(programs: list, rows: list[dict[str, Any]]) -> dict[str, Any]:
  names = [p.__name__.rsplit(".", 1)[-1] for p in programs]
  return dict(zip(names, rows, strict=True))
