"""CL against NCL: paired runs over seeds, the evaluators on each, one report."""

import pathlib
from collections.abc import Sequence

import jax
from ml_collections import ConfigDict

from ncl_jax import checks, metrics, report
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import Failed, InputError
from ncl_jax.evaluators import registry
from ncl_jax.evaluators.run import Run
from ncl_jax.experiments import comparison as comparison_lib
from ncl_jax.experiments import controls as controls_lib
from ncl_jax.experiments import controls_table as controls_table_lib
from ncl_jax.experiments.measurements import Measurements
from ncl_jax.host import paths
from ncl_jax.runtime import jsonl
from ncl_jax.training import loop
from ncl_jax.training import workdir as workdir_lib

# Controls that are trained: CL made sparse by a penalty, CL with as few dimensions.
TRAINED = {"cl_l1": "CL + L1 penalty", "cl_narrow": "CL, NCL's active width"}
# Weight of the penalty: of 0.001, 0.003, 0.01, 0.03, 0.1 the largest with which the
# digits are learnt (neighbours on h within a point of CL; at 0.1 the loss never falls).
L1 = 0.03


def compare(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  *,
  seeds: int,
  evaluators: Sequence[str] | None = None,
  controls: Sequence[str] = ("default",),
  control_evaluators: Sequence[str] | None = None,
) -> str:
  """Trains or reuses both methods, evaluates them and the controls, writes a report.

  The two runs of a seed share initialisation, order and views; only the transform
  differs. An evaluator that fails stops no other. Results are kept, and another call
  reuses them.

  Args:
    config: an NCL config; CL is the same without its transform.
    workdir: gets seedS/cl, seedS/ncl, seedS/controls.jsonl, measured.jsonl, report/.
    seeds: how many pairs; seeds are config.seed, config.seed + 1, ...
    evaluators: of `registry.registered`, those that need two runs if there are several
      seeds; None for all that data and seeds allow.
    controls: names of `controls.CONTROLS`, which need no training ("default" and "all"
      stand for several), and of `TRAINED`, two more runs per seed: CL with an L1
      penalty, and CL at the width of NCL's active dimensions. The untrained network is
      always among them.
    control_evaluators: of `evaluators`, those that controls without training are given;
      None for all. Finetuning each of them takes longer than training CL and NCL.

  Returns:
    The tables, and where to look.

  Raises:
    InputError: for settings that cannot work, or if another comparison is at work in
      the directory.
    Failed: at the end, with the report written, if an evaluation failed.
  """
  source, evaluators, made, trained = settle(
    config, evaluators, controls, control_evaluators
  )
  root = paths.absolute(workdir)
  labels = comparison_lib.LABELS | TRAINED
  with workdir_lib.alone(root, "comparing"):
    file = root / "measured.jsonl"
    measured = Measurements(config, source, evaluators, file, labels)
    runs: dict[str, list[pathlib.Path]] = {"cl": [], "ncl": []}
    for seed in range(config.seed, config.seed + seeds):
      for method, paths_of in runs.items():
        path = root / f"seed{seed}" / method
        paths_of.append(loop.train(_method_config(config, method, seed), path, source))
    for i, pair in enumerate(zip(runs["cl"], runs["ncl"], strict=True)):
      seed = config.seed + i
      opened = _measure_pair(measured, config, seed, pair, trained)
      measured.controls(seed, opened, made, control_evaluators)
      del opened  # with its features
    if seeds > 1 and "axes" in evaluators:
      for key, directories in runs.items():
        measured.alignment(key, directories)
    return _reported(measured, config, source, root, runs)


def settle(
  config: ConfigDict,
  evaluators: Sequence[str] | None = None,
  controls: Sequence[str] = ("default",),
  control_evaluators: Sequence[str] | None = None,
) -> tuple[Source, Sequence[str], tuple[str, ...], tuple[str, ...]]:
  """Checks the arguments of `compare`, before anything is trained.

  Returns:
    The data, the evaluators, and the controls that need no training and that do.

  Raises:
    InputError: for settings that cannot work.
  """
  if config.method != "ncl" or config.loss.transform == "identity":
    raise InputError(
      f"compare needs an NCL config (CL is made from it), this is {config.method} "
      f"with the transform {config.loss.transform}"
    )
  trained = tuple(key for key in TRAINED if key in controls)
  made = controls_lib.chosen([key for key in controls if key not in TRAINED])
  for name in evaluators or ():
    checks.choice("evaluator", name, tuple(registry.registered()))
  config_lib.validate(config)
  source = workdir_lib.load_source(config)
  if evaluators is None:
    paired = [name for name, e in registry.registered().items() if e.two_runs]
    evaluators = (*registry.applicable(config, source), *paired)
  for name in evaluators:
    registry.check(registry.registered()[name], config, source)
  if control_evaluators is not None:
    allowed = [x for x in evaluators if x in registry.single()]
    for name in control_evaluators:
      checks.choice("control evaluator", name, allowed)
    if not control_evaluators:
      raise InputError(f"no control evaluator: at least one of {', '.join(allowed)}")
  return source, evaluators, made, trained


def _measure_pair(
  measured: Measurements,
  config: ConfigDict,
  seed: int,
  pair: tuple[pathlib.Path, pathlib.Path],
  trained: Sequence[str],
) -> dict[str, Run]:
  """Evaluates the runs of a seed, and trains and evaluates its trained controls."""
  cl, ncl = pair
  opened = {"cl": measured.run("cl", seed, cl), "ncl": measured.run("ncl", seed, ncl)}
  for key in trained:
    control = _trained_control(config, key, seed, opened["ncl"])
    path = loop.train(control, ncl.parent / key, opened["ncl"].source)
    measured.run(key, seed, path)
  return opened


def _reported(
  measured: Measurements,
  config: ConfigDict,
  source: Source,
  root: pathlib.Path,
  runs: dict[str, list[pathlib.Path]],
) -> str:
  """Writes the report; gives its tables, or raises `Failed` with them."""
  seeds = [config.seed + i for i in range(len(runs["cl"]))]
  comparison = comparison_lib.comparison(config, source, runs, measured.results, seeds)
  beneath = controls_table_lib.controls_table(
    config, source, measured.results, measured.labels
  )
  if jax.process_index() == 0:
    try:
      report.write(root / "report", comparison)
      jsonl.replace(root / "report" / "controls.txt", beneath + "\n")
    # A disk that is full, or image files that are gone: the tables are printed anyway.
    except (OSError, InputError) as error:
      measured.failed["the report"] = str(error)
  if measured.unkept:
    measured.failed["keeping results"] = measured.unkept
  text = (
    f"{report.table(comparison)}\n\n{beneath}\n\n"
    f"Report: {root / 'report' / 'index.html'}"
  )
  if measured.failed:
    lines = "".join(f"\n  {name}: {why}" for name, why in measured.failed.items())
    raise Failed(f"{text}\n\nevaluations that failed:{lines}")
  return text


def _method_config(config: ConfigDict, method: str, seed: int) -> ConfigDict:
  """The settings of one run of the pair."""
  changed = config.copy_and_resolve_references()
  changed.seed = seed
  if method == "cl":
    config_lib.set_method(changed, "cl")
  return changed


def _trained_control(config: ConfigDict, key: str, seed: int, ncl: Run) -> ConfigDict:
  """CL's settings with one change."""
  changed = _method_config(config, "cl", seed)
  if key == "cl_l1":
    changed.loss.l1 = L1
  else:
    f = ncl.layer("f", "train")
    live = metrics.active_dimensions(f, config.eval.threshold)
    changed.model.projector_out = max(2, int(live.sum()))
  return changed
