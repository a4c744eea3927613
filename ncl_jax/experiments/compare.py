"""CL against NCL: paired runs over seeds, the evaluators on each, one report."""

import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from ncl_jax import checks, metrics, report
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import Failed, InputError
from ncl_jax.evaluators import finetune, linear_probe, registry
from ncl_jax.evaluators.run import Run
from ncl_jax.experiments import comparison as comparison_lib
from ncl_jax.experiments import controls as controls_lib
from ncl_jax.experiments.measurements import Measurements
from ncl_jax.host import paths
from ncl_jax.preflight import dry_run
from ncl_jax.runtime import checkpoint, jsonl
from ncl_jax.training import cost, loop
from ncl_jax.training import workdir as workdir_lib

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
      stand for several), and of `controls.TRAINED`, two more runs per seed: CL with an
      L1 penalty, and CL at the width of NCL's active dimensions. The untrained network
      is always among them.
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
  with workdir_lib.alone(root, "comparing"):
    measured = Measurements(config, source, evaluators, root / "measured.jsonl")
    runs: dict[str, list[pathlib.Path]] = {"cl": [], "ncl": []}
    for seed in range(config.seed, config.seed + seeds):
      for method, folders in runs.items():
        path = root / f"seed{seed}" / method
        folders.append(loop.train(_method_config(config, method, seed), path, source))
    for i, (cl_path, ncl_path) in enumerate(zip(*runs.values(), strict=True)):
      seed = config.seed + i
      cl, ncl = measured.run("cl", seed, cl_path), measured.run("ncl", seed, ncl_path)
      for key in trained:
        control = _trained_control(config, key, seed, ncl)
        measured.run(key, seed, loop.train(control, ncl.path.parent / key, source))
      measured.controls(seed, (cl, ncl), made, control_evaluators)
      del cl, ncl  # with their features
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
  """
  if config.method != "ncl" or config.loss.transform == "identity":
    raise InputError(
      f"compare needs an NCL config (CL is made from it), this is {config.method} "
      f"with the transform {config.loss.transform}"
    )
  trained = tuple(key for key in controls_lib.TRAINED if key in controls)
  made = controls_lib.chosen([key for key in controls if key not in trained])
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


def _reported(
  measured: Measurements,
  config: ConfigDict,
  source: Source,
  root: pathlib.Path,
  runs: dict[str, list[pathlib.Path]],
) -> str:
  """Writes the report; gives its tables, or raises `Failed` with them."""
  comparison = comparison_lib.comparison(config, source, runs, measured.results)
  beneath = comparison_lib.controls_table(config, source, measured.results)
  if jax.process_index() == 0:
    try:
      report.write(root / "report", comparison)
      jsonl.replace(root / "report" / "controls.txt", beneath + "\n")
    # A disk that is full, or image files that are gone: the tables are printed anyway.
    except (OSError, InputError) as error:
      measured.failed["the report"] = str(error)
  if measured.cache.fault:
    measured.failed["keeping results"] = measured.cache.fault
  text = (
    f"{report.table(comparison)}\n\n{beneath}\n\n"
    f"Report: {root / 'report' / 'index.html'}"
  )
  if measured.failed:
    lines = "".join(f"\n  {name}: {why}" for name, why in measured.failed.items())
    raise Failed(f"{text}\n\nevaluations that failed:{lines}")
  return text


def _method_config(config: ConfigDict, method: str, seed: int) -> ConfigDict:
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


def describe(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  recipe: ConfigDict | None = None,
  *,
  seeds: int,
  **asked: Any,
) -> str:
  """What a comparison would take: NCL's first run, and what the others add, as text.

  Args:
    config: as for `compare`.
    recipe: what `config` was before settings were changed on the command line.
    **asked: evaluators, controls and control_evaluators, as for `compare`.

  Raises:
    InputError: for all that would stop `compare` before it trains.
  """
  # Streamed: a plan decodes no images into a cache.
  streamed = workdir_lib.streamed(config)
  source, evaluators, made, trained = settle(streamed, **asked)
  root = paths.absolute(workdir)
  folders = {
    (method, seed): root / f"seed{seed}" / method
    for seed in range(config.seed, config.seed + seeds)
    for method in ("cl", "ncl", *trained)
  }
  run = dry_run.describe(config, folders["ncl", config.seed], recipe, source)
  resolved = config_lib.resolve(config, source)
  forward = cost.image_flops(resolved, source) / (3 * config_lib.views(resolved))
  per_epoch = source.steps_per_epoch(resolved.train.batch_size)
  last = per_epoch * resolved.train.epochs
  left = sum(last - max(checkpoint.steps(f), default=0) for f in folders.values())
  training = left * cost.step_flops(resolved, source)
  # Controls that only look at another's features cost little.
  measuring = forward * (
    len(folders) * _images(source, evaluators)
    + seeds * _images(source, asked.get("control_evaluators") or evaluators)
  )
  work = (training, measuring)
  cpu = [cost.duration(cost.cpu_seconds(resolved, x)) for x in work]
  gpu = [cost.duration(x / cost.GPU_FLOPS) for x in work]
  kept = resolved.train.keep_checkpoints
  disk = len(folders) * (kept + 1) * dry_run.state_bytes(resolved, source)
  return "\n".join(
    [
      run,
      "",
      f"Compare   {len(folders)} runs and {len(made)} controls a seed, in {root};\n"
      f"          evaluated by {', '.join(evaluators)}",
      f"Time      on two CPU cores about {cpu[0]} to train and {cpu[1]} to evaluate;\n"
      f"          on a data-centre GPU {gpu[0]} and {gpu[1]} (estimated)",
      *_disk(root, disk),
    ]
  )


def _images(source: Source, evaluators: Sequence[str]) -> float:
  """Forward passes that the evaluators make of one image each, for one network."""
  train = source.num_examples("train")
  total = float(train + source.num_examples("test"))
  for name in evaluators:
    found = registry.registered()[name]
    if found.file == "finetune":
      share = found.options.get("label_fraction", 1.0)
      total += 3 * finetune.EPOCHS * share * train  # the backward pass counts twice
    elif found.trains:
      total += linear_probe.SGD_EPOCHS * train
  return total


def _disk(root: pathlib.Path, needed: int) -> list[str]:
  if paths.in_bucket(root):
    return [f"Disk      {dry_run.mib(needed)} of checkpoints"]
  place = next(folder for folder in (root, *root.parents) if folder.exists())
  free = shutil.disk_usage(place).free
  lines = [f"Disk      {dry_run.mib(needed)} of checkpoints; {dry_run.mib(free)} free"]
  if needed > free:
    lines.append(
      "          NOT ENOUGH: choose another --workdir, or lower "
      "--config.train.keep_checkpoints"
    )
  return lines
