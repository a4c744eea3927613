"""CL against NCL: paired runs over seeds, the evaluators on each, one report."""

import functools
import pathlib
import types
from collections.abc import Sequence
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from ncl_jax import checks, evaluators, metrics, report
from ncl_jax import config as config_lib
from ncl_jax.errors import Failed, InputError
from ncl_jax.evaluators import needs, other_sets, program
from ncl_jax.experiments import (
  comparison as comparison_lib,
)
from ncl_jax.experiments import (
  controls,
  result_cache,
)
from ncl_jax.experiments import (
  controls_table as controls_table_lib,
)
from ncl_jax.host import paths
from ncl_jax.runtime import jsonl
from ncl_jax.training import fingerprints, loop
from ncl_jax.training import workdir as workdir_lib

# Whose backbone is their own; the others would only repeat what CL's gives.
OWN_BACKBONE = ("untrained", "untrained_calibrated")
CONTROLS = ("untrained", "all", "trained")
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
  programs: Sequence[str] | None = None,
  against: str = "all",
  control_programs: Sequence[str] | None = None,
) -> str:
  """Trains or reuses both methods, evaluates them and the controls, writes a report.

  The two runs of a seed share initialisation, order and views; only the transform
  differs. A program that fails stops no other. What has been measured is kept, and not
  measured again by another call.

  Args:
    config: an NCL config; CL is the same without its transform.
    workdir: gets seedS/cl, seedS/ncl, seedS/controls.jsonl, measured.jsonl, report/.
    seeds: how many pairs; seeds are config.seed, config.seed + 1, ...
    programs: keys of `evaluators.PROGRAMS`, and "axes" if there are several seeds; None
      for all that data and seeds allow.
    against: which controls: "untrained", that network alone, in minutes less; "all"
      that need no training, `controls.controls`; "trained": also CL with an L1 penalty
      and CL at the width of NCL's active dimensions, two more trainings a seed.
    control_programs: of `programs`, those that controls without training are given;
      None for all. Finetuning each of them takes longer than training CL and NCL.

  Returns:
    The tables, and where to look.

  Raises:
    InputError: for settings that cannot work, or if another comparison is at work in
      the directory.
    Failed: at the end, with the report written, if an evaluation failed.
  """
  if config.method != "ncl" or config.loss.transform == "identity":
    raise InputError(
      f"compare needs an NCL config (CL is made from it), this is {config.method} "
      f"with the transform {config.loss.transform}"
    )
  checks.choice("controls", against, CONTROLS)
  for name in programs or ():
    checks.choice("program", name, (*evaluators.PROGRAMS, *evaluators.PAIRED))
  config_lib.validate(config)
  root = paths.local(workdir).resolve()
  source = workdir_lib.load_source(config)
  if programs is None:
    programs = needs.applicable(config, source) + evaluators.PAIRED
  needs.check(programs, config, source)
  if control_programs is not None:
    allowed = [x for x in programs if x in evaluators.PROGRAMS]
    for name in control_programs:
      checks.choice("control program", name, allowed)
    if not control_programs:
      raise InputError(f"no control program: at least one of {', '.join(allowed)}")
  numbers = [config.seed + i for i in range(seeds)]
  with workdir_lib.alone(root, "comparing"):
    return _compare(config, root, source, numbers, programs, against, control_programs)


def _compare(config, root, source, numbers, programs, against, control_programs) -> str:
  """`compare` of what was checked, in a directory that is held."""
  runs: dict[str, list[pathlib.Path]] = {"cl": [], "ncl": []}
  for seed in numbers:
    for method, trained in runs.items():
      path = root / f"seed{seed}" / method
      trained.append(loop.train(_arm_config(config, method, seed), path, source))

  measured = _Measurements(config, source, programs, root / "measured.jsonl")
  for seed, cl, ncl in zip(numbers, runs["cl"], runs["ncl"], strict=True):
    pair = {"cl": measured.run("cl", seed, cl), "ncl": measured.run("ncl", seed, ncl)}
    if against == "trained":
      for key in TRAINED:
        arm = _trained_control(config, key, seed, pair["ncl"])
        measured.run(key, seed, loop.train(arm, ncl.parent / key, source))
    measured.controls(seed, pair, against != "untrained", control_programs)
  if len(numbers) > 1 and "axes" in programs:
    for key, trained in runs.items():
      measured.axes(key, trained)

  comparison = comparison_lib.comparison(
    config, source, runs, measured.results, numbers
  )
  beneath = controls_table_lib.controls_table(
    config, source, measured.results, measured.labels
  )
  if jax.process_index() == 0:
    try:
      report.write(root / "report", comparison)
      jsonl.replace(root / "report" / "controls.txt", beneath + "\n")
    except OSError as error:  # the tables are printed all the same
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


class _Measurements:
  """Results of all arms, and what went wrong; each is measured once.

  Attributes:
    results: key of an arm or control -> for each seed, program -> result.
    failed: what failed -> why.
    labels: key of an arm or control -> what a reader sees.
  """

  def __init__(self, config, source, programs: Sequence[str], file: pathlib.Path):
    self.results: dict[str, list[dict[str, Any]]] = {}
    self.failed: dict[str, str] = {}
    self.labels: dict[str, str] = comparison_lib.LABELS | TRAINED
    self._config, self._source = config, source
    self._programs = [name for name in programs if name not in evaluators.PAIRED]
    self._ledger = result_cache.Ledger(file)

  @property
  def unkept(self) -> str:
    """Why a result could not be written; "" if all were."""
    return self._ledger.fault

  def run(self, arm: str, seed: int, path: pathlib.Path) -> program.Run:
    """Evaluates the newest checkpoint of a run."""
    logging.info("evaluating %s, seed %d", self.labels[arm], seed)
    run = program.open_run(path, source=self._source)
    call = functools.partial(program.evaluate, opened=run)
    self._measure(arm, seed, (run,), self._programs, call, path / "eval")
    return run

  def controls(
    self,
    seed: int,
    pair: dict[str, program.Run],
    every: bool,
    programs: Sequence[str] | None,
  ) -> None:
    """Evaluates what needs no training, by some of the programs or all."""
    wanted = self._programs
    if programs is not None:
      wanted = [name for name in wanted if name in programs]
    ncl = pair["ncl"]
    folder = ncl.path.parent
    chosen, fault = _controls(pair, every)
    if fault:
      self.failed[f"controls, seed {seed}, but the untrained network"] = fault
    for control in chosen:
      self.labels[control.key] = control.label
      logging.info("evaluating the control %s, seed %d", control.label, seed)
      call = functools.partial(_evaluate, control, ncl)
      names = _that_apply(control, wanted)
      both = (pair["cl"], ncl)
      self._measure(control.key, seed, both, names, call, folder / "controls")
    if jax.process_index() == 0:
      rows = [
        {"control": c.key, "note": c.note, "results": self.results[c.key][-1]}
        for c in chosen
      ]
      jsonl.write(folder / "controls.jsonl", rows)

  def axes(self, arm: str, directories: Sequence[pathlib.Path]) -> None:
    """Compares the dimensions of each seed's run with the next seed's."""
    runs = [program.open_run(path, source=self._source) for path in directories]
    for run, other, rows in zip(
      runs, runs[1:] + runs[:1], self.results[arm], strict=True
    ):
      of = self._of(arm, run.config.seed, (run, other), "axes")
      call = functools.partial(program.evaluate, opened=run, other=other)
      rows |= self._attempt(arm, run.config.seed, "axes", of, call, run.path / "eval")

  def _of(self, arm, seed, runs: Sequence[program.Run], name: str) -> dict[str, Any]:
    """What a result is of: weights and settings too, as a run may be trained anew."""
    digests = [fingerprints.network(run.config, run.variables) for run in runs]
    of = {"arm": arm, "seed": seed, "program": name, "runs": digests}
    of |= {"data": other_sets.fingerprint(name, self._config, self._source)}
    module, _ = evaluators.PROGRAMS.get(name, (name, {}))
    # The controls' code, too: this arm may be one.
    code = (f"{evaluators.__name__}.{module}", controls.__name__)
    return of | fingerprints.versions(*code)

  def _measure(self, arm, seed, runs, names, call, folder):
    """Runs programs on an arm, and takes note of results and faults."""
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
      options = _options(self._config, name)
      of = self._of(arm, seed, runs, name) | options
      asked = functools.partial(call, **options)
      rows |= self._attempt(arm, seed, name, of, asked, folder)
    self.results.setdefault(arm, []).append(rows)

  def _attempt(self, arm, seed, name, of, call, folder):
    """{program: result}, from the ledger if it is known; {} if it failed."""

    def once(module, **options):
      return self._ledger.get(of, lambda: call(module, **options))

    got, faults = program.attempt([name], once, folder)
    for fault, why in faults.items():
      self.failed[f"{self.labels[arm]}, seed {seed}, {fault}"] = why
    return got


def _arm_config(config: ConfigDict, method: str, seed: int) -> ConfigDict:
  """The settings of one run of the pair."""
  arm = config.copy_and_resolve_references()
  arm.seed = seed
  if method == "cl":
    config_lib.set_method(arm, "cl")
  return arm


def _trained_control(
  config: ConfigDict, key: str, seed: int, ncl: program.Run
) -> ConfigDict:
  """CL's settings with one change."""
  arm = _arm_config(config, "cl", seed)
  if key == "cl_l1":
    arm.loss.l1 = L1
  else:
    seen = program.extract(ncl.config, ncl.variables, ncl.source, "train", ncl.mesh)
    f = seen.layer("f", ncl.config.loss.transform)
    live = metrics.active_dimensions(f, config.eval.threshold)
    arm.model.projector_out = max(2, int(live.sum()))
  return arm


def _options(config: ConfigDict, name: str) -> dict[str, Any]:
  """What a program is asked for, as the config of the comparison says today."""
  options = {
    "selection": {"transfer": config.eval.transfer},
    "robustness": {"ood": tuple(config.eval.ood)},
  }
  return options.get(name, {})


def _controls(
  pair: dict[str, program.Run], every: bool
) -> tuple[list[controls.Control], str]:
  """The controls that are wanted, and why there is but the untrained network if so."""
  fault = ""
  if every:
    try:
      return controls.controls(pair["cl"], pair["ncl"]), ""
    # As in `program.attempt`: the evaluations of hours are not to be lost.
    except Exception as error:
      if jax.process_count() > 1:
        raise
      logging.exception("the controls could not be made")
      fault = str(error)
  return [controls.untrained(pair["ncl"])], fault


def _that_apply(control: controls.Control, programs: Sequence[str]) -> list[str]:
  """The programs that say something about a control."""
  left_out: tuple[str, ...] = ()
  if callable(control.variables):
    left_out = evaluators.NEED_NETWORK
  elif control.key not in OWN_BACKBONE:
    left_out = evaluators.RESUMABLE
  two_towers = control.config.loss.name == "clip"
  if two_towers and control.key not in controls.BOTH_TOWERS:
    left_out += evaluators.NEED_PAIRS
  return [name for name in programs if name not in left_out]


def _evaluate(
  control: controls.Control,
  run: program.Run,
  module: types.ModuleType,
  **options: Any,
) -> dict[str, Any]:
  return module.evaluate(
    control.config, control.variables, run.source, run.mesh, **options
  )
