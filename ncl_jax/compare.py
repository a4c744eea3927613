"""CL against NCL: paired runs over seeds, the evaluators on each, one report."""

import functools
import pathlib
import types
from collections.abc import Sequence
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

import ncl_jax
from ncl_jax import (
  beside,
  checks,
  controls,
  evaluators,
  ledger,
  report,
  summary,
  train,
  writer,
)
from ncl_jax import config as config_lib
from ncl_jax import workdir as workdir_lib
from ncl_jax.errors import Failed, InputError
from ncl_jax.evaluators import axes, program

# Whose backbone is their own; the others would only repeat what CL's gives.
OWN_BACKBONE = ("untrained", "untrained_calibrated")


def compare(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  *,
  seeds: int,
  programs: Sequence[str] | None = None,
  every_control: bool = True,
) -> str:
  """Trains or reuses both methods, evaluates them and the controls, writes a report.

  The two runs of a seed share initialisation, order and views; only the map differs.
  The controls are `controls.controls`. A program that fails stops no other. What has
  been measured is kept, and not measured again by another call.

  Args:
    config: an NCL config; CL is the same without its map.
    workdir: gets seedS/cl, seedS/ncl, seedS/controls.jsonl, measured.jsonl, report/.
    seeds: how many pairs; seeds are config.seed, config.seed + 1, ...
    programs: keys of `evaluators.PROGRAMS`, and "axes" if there are several seeds; None
      for all that data and seeds allow.
    every_control: False for the untrained network alone, in minutes less.

  Returns:
    The tables, and where to look.

  Raises:
    InputError: for settings that cannot work.
    Failed: at the end, with the report written, if an evaluation failed.
  """
  if config.method != "ncl" or config.loss.map == "identity":
    raise InputError(
      f"compare needs an NCL config (CL is made from it), this is {config.method} "
      f"with the map {config.loss.map}"
    )
  for name in programs or ():
    checks.choice("program", name, (*evaluators.PROGRAMS, *evaluators.PAIRED))
  config_lib.validate(config)
  root = pathlib.Path(workdir).expanduser().resolve()
  source = workdir_lib.load_source(config)
  if programs is None:
    programs = evaluators.applicable(bool(source.num_classes)) + evaluators.PAIRED
  paired = seeds > 1 and "axes" in programs
  programs = [name for name in programs if name not in evaluators.PAIRED]
  numbers = [config.seed + i for i in range(seeds)]
  runs: dict[str, list[pathlib.Path]] = {"cl": [], "ncl": []}
  for seed in numbers:
    for method, paths in runs.items():
      path = root / f"seed{seed}" / method
      paths.append(train.train(_arm_config(config, method, seed), path, source))

  results: dict[str, list[dict[str, Any]]] = {}
  failed: dict[str, str] = {}
  labels = dict(summary.LABELS)
  measured = ledger.Ledger(root / "measured.jsonl")

  def measure(arm, seed, run, names, call, folder):
    """Runs programs on an arm, and takes note of results and faults."""
    of = {"arm": arm, "seed": seed, "step": run.step, "ncl_jax": ncl_jax.__version__}
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
      options = _options(config, name)
      key = of | {"program": name} | options

      def once(module, key=key, options=options, **further):
        return measured.get(key, lambda: call(module, **options, **further))

      got, faults = program.attempt([name], once, folder)
      rows |= got
      failed.update({f"{labels[arm]}, seed {seed}, {n}": w for n, w in faults.items()})
    results.setdefault(arm, []).append(rows)

  for seed, cl, ncl in zip(numbers, runs["cl"], runs["ncl"], strict=True):
    pair = {
      "cl": program.open_run(cl, source=source),
      "ncl": program.open_run(ncl, source=source),
    }
    for key, run in pair.items():
      logging.info("evaluating %s, seed %d", labels[key], seed)
      call = functools.partial(program.evaluate, opened=run)
      measure(key, seed, run, programs, call, run.path / "eval")
    chosen, fault = _controls(pair, every_control)
    if fault:
      failed[f"controls, seed {seed}, but the untrained network"] = fault
    for control in chosen:
      key, labels[control.key] = control.key, control.label
      logging.info("evaluating the control %s, seed %d", control.label, seed)
      call = functools.partial(_evaluate, control, pair["ncl"])
      names = _that_apply(control, programs)
      measure(key, seed, pair["ncl"], names, call, ncl.parent / "controls")
    if jax.process_index() == 0:
      rows = [
        {"control": c.key, "note": c.note, "results": results[c.key][-1]}
        for c in chosen
      ]
      writer.write(ncl.parent / "controls.jsonl", rows)
  if paired:
    for key, paths in runs.items():
      for index, seed in enumerate(numbers):
        run = program.open_run(paths[index], source=source)
        other = program.open_run(paths[(index + 1) % len(paths)], source=source)
        of = {"arm": key, "seed": seed, "step": run.step, "program": "axes"}
        of |= {"ncl_jax": ncl_jax.__version__, "other": other.config.seed}
        evaluate = functools.partial(program.evaluate, axes, run, other=other)
        results[key][index]["axes"] = measured.get(of, evaluate)

  comparison = summary.comparison(config, source, runs, results, numbers)
  beneath = beside.controls_table(config, source, results, labels)
  if jax.process_index() == 0:
    report.write(root / "report", comparison)
    (root / "report" / "controls.txt").write_text(beneath + "\n", encoding="utf-8")
  text = (
    f"{report.table(comparison)}\n\n{beneath}\n\n"
    f"Report: {root / 'report' / 'index.html'}"
  )
  if failed:
    lines = "".join(f"\n  {name}: {why}" for name, why in failed.items())
    raise Failed(f"{text}\n\nevaluations that failed:{lines}")
  return text


def _arm_config(config: ConfigDict, method: str, seed: int) -> ConfigDict:
  """The settings of one run of the pair."""
  arm = config.copy_and_resolve_references()
  arm.seed = seed
  if method == "cl":
    config_lib.set_method(arm, "cl")
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
  if control.key in OWN_BACKBONE:
    return list(programs)
  left_out: tuple[str, ...] = evaluators.RESUMABLE
  if callable(control.variables):
    left_out = evaluators.NEED_NETWORK
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
