"""What every evaluation program does around `evaluate`: open a run, write a result."""

import dataclasses
import functools
import importlib
import json
import math
import pathlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

import ncl_jax
from ncl_jax import checks, evaluators, features
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import Failed, InputError, Stopped
from ncl_jax.evaluators import needs
from ncl_jax.host import paths
from ncl_jax.runtime import checkpoint, jsonl
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import fingerprints
from ncl_jax.training import step as step_lib
from ncl_jax.training import workdir as workdir_lib

LAYERS = ("h", "f")
ALL_LAYERS = ("h", "hidden", "z", "f")


@dataclasses.dataclass(frozen=True)
class Run:
  """A work directory, opened for evaluation.

  Attributes:
    config: resolved settings, from its config.json.
    variables: {"params", "batch_stats"} of one checkpoint.
    step: of that checkpoint.
    source: its data.
    mesh: of this process.
    path: the absolute work directory.
  """

  config: ConfigDict
  variables: Any
  step: int
  source: Source
  mesh: Mesh
  path: pathlib.Path


def open_run(
  workdir: str | pathlib.Path, step: int | None = None, source: Source | None = None
) -> Run:
  """Reads the config, the data and a checkpoint of a work directory.

  Args:
    workdir: of a training run.
    step: which checkpoint; None for the newest.
    source: its data, if they are loaded already.

  Raises:
    FileNotFoundError: if there is no config or no such checkpoint.
    InputError: if either cannot be used.
  """
  path = paths.local(workdir).resolve()
  config = workdir_lib.read_config(path)
  sharding_lib.set_cpu_devices(config.train.batch_size, config.train.cpu_devices)
  source = source or workdir_lib.kept_source(config, "--data_source")
  if change := workdir_lib.data_changed(path, source):
    if workdir_lib.moved_to():
      raise InputError(
        f"{config.data.source} is not the training set of {path}: {change}. Name by "
        "--data_source the place that it was moved to"
      )
    logging.warning(
      "the training set of %s is not the one that %s was trained on: %s. Results are "
      "of other neighbours and probes%s",
      *(source.name, path, change),
      ", and of test images that it may have been trained on" * source.divided,
    )
  mesh = sharding_lib.make_mesh()
  shapes = jax.eval_shape(lambda: step_lib.init_variables(config, source))
  variables, step = checkpoint.load_model(
    path, shapes, sharding_lib.replicated(mesh), step
  )
  return Run(config, variables, step, source, mesh, path)


def untrained(run: Run) -> Any:
  """The variables of the same network before its first step."""
  return step_lib.build(
    lambda: step_lib.init_variables(run.config, run.source), run.mesh
  )


def extract(
  config: ConfigDict, variables: Any, source: Source, split: str, mesh: Mesh
) -> features.Features:
  """`features.extract` with everything taken from the config.

  Controls that are no network give a function in place of the variables. Asked again
  for the same objects, it gives the features that it has: take them as read-only.
  """
  key = (split, config_lib.to_json(config))
  same = _kept.get("variables") is variables and _kept.get("source") is source
  if same and key in _kept:
    return _kept[key]
  # A control may call this for another network's features: what is kept is settled
  # only afterwards.
  found = _extract(config, variables, source, split, mesh)
  if _kept.get("variables") is not variables or _kept.get("source") is not source:
    _kept.clear()
  _kept.update({"variables": variables, "source": source, key: found})
  return found


# The features of the last variables: several programs look at the same.
_kept: dict[Any, Any] = {}


def _extract(
  config: ConfigDict, variables: Any, source: Source, split: str, mesh: Mesh
) -> features.Features:
  if callable(variables):
    return variables(config, source, split, mesh)
  return features.extract(
    config_lib.model(config),
    variables,
    source,
    split,
    view=config_lib.augmentation(config),
    mesh=mesh,
    batch_size=config.eval.batch_size,
  )


def extract_two_views(
  config: ConfigDict, variables: Any, source: Source, split: str, mesh: Mesh
) -> tuple[features.Features, features.Features]:
  """`features.extract_two_views` with everything taken from the config."""
  return features.extract_two_views(
    config_lib.model(config),
    variables,
    source,
    split,
    view=config_lib.augmentation(config),
    mesh=mesh,
    batch_size=config.eval.batch_size,
    seed=config.seed,
  )


def describe(config: ConfigDict, source: Source, **settings: Any) -> dict[str, Any]:
  """The settings that a result needs beside it to be repeated."""
  return settings | {
    "transform": config.loss.transform,
    "method": config.method,
    "seed": config.seed,
    "source": source.name,
    "unseen_test_images": source.unseen()[0],
    "eval_crop": config.augment.eval_crop,
    "size": config.augment.size,
    "mean": list(config.augment.mean),
    "std": list(config.augment.std),
  }


def run(
  program: types.ModuleType,
  workdir: str | pathlib.Path,
  step: int | None = None,
  source: Source | None = None,
  **options: Any,
) -> dict[str, Any]:
  """Evaluates a checkpoint and appends the result to `eval/PROGRAM.jsonl`.

  Args:
    program: a module of this package, with `evaluate(config, variables, source, mesh)`.
    workdir: of a training run.
    step: which checkpoint; None for the newest.
    source: its data, if they are loaded already.
    **options: further arguments of the program's `evaluate`.

  Returns:
    The row that was written.
  """
  return evaluate(program, open_run(workdir, step, source), **options)


def run_all(
  programs: Sequence[str] | None,
  workdir: str | pathlib.Path,
  step: int | None = None,
  source: Source | None = None,
) -> dict[str, dict[str, Any]]:
  """Evaluates a checkpoint by several programs; one that fails stops no other.

  Args:
    programs: keys of `evaluators.PROGRAMS`; None for all that the data allow.
    workdir: of a training run.
    step: which checkpoint; None for the newest.
    source: its data, if they are loaded already.

  Returns:
    Program -> the row that was written.

  Raises:
    Failed: at the end, if one failed.
    InputError: for an unknown program.
    Stopped: if one was asked to stop.
  """
  for name in programs or ():
    checks.choice("program", name, tuple(evaluators.PROGRAMS))
  opened = open_run(workdir, step, source)
  if programs is None:
    programs = needs.applicable(opened.config, opened.source)
  rows, failed = attempt(
    programs, functools.partial(evaluate, opened=opened), opened.path / "eval"
  )
  if failed:
    lines = "".join(f"\n  {name}: {reason}" for name, reason in failed.items())
    raise Failed(f"step {opened.step} in {opened.path}: programs that failed:{lines}")
  return rows


def attempt(
  programs: Sequence[str], call: Callable[..., dict[str, Any]], folder: pathlib.Path
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
  """Calls several programs; one that fails stops no other.

  Args:
    programs: keys of `evaluators.PROGRAMS`, or of `PAIRED`.
    call: takes a program's module and its further arguments; gives its result.
    folder: where those that train for long keep checkpoints.

  Returns:
    Program -> result, and program -> why it failed.

  Raises:
    Stopped: if one was asked to stop.
  """
  rows: dict[str, dict[str, Any]] = {}
  failed: dict[str, str] = {}
  for name in programs:
    module, options = evaluators.PROGRAMS.get(name, (name, {}))
    if name in evaluators.RESUMABLE:
      options = options | {"folder": folder / module}
    try:
      loaded = importlib.import_module(f"{evaluators.__name__}.{module}")
      rows[name] = call(loaded, **options)
    except Stopped:
      raise
    # Whatever it is, the other programs are to run all the same.
    except Exception as error:
      if jax.process_count() > 1:
        raise  # the other processes would wait for this one
      logging.exception("%s failed", name)
      failed[name] = str(error)
  return rows, failed


def evaluate(program: types.ModuleType, opened: Run, **options: Any) -> dict[str, Any]:
  """`run` on a checkpoint that is open already.

  Raises:
    Failed: if the result cannot be written; the message holds the row.
  """
  name = program.__name__.rsplit(".", 1)[-1]
  try:
    result = program.evaluate(
      opened.config, opened.variables, opened.source, opened.mesh, **options
    )
  except FloatingPointError as error:
    where = f"checkpoint {opened.step} of {opened.path}"
    raise FloatingPointError(f"{name} of {where}: {error}") from error
  row = {
    "program": name,
    "step": opened.step,
    **result,
    "data": fingerprints.data(opened.source),
    "versions": {"ncl_jax": ncl_jax.__version__, "jax": jax.__version__},
  }
  if jax.process_index() == 0:
    for part, values in result.items():
      if part != "settings" and isinstance(values, dict):
        numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
        shown = "  ".join(
          f"{k} {v:.4g}" if math.isfinite(v) else f"{k} -" for k, v in numbers.items()
        )
        logging.info("step %d, %s: %s", opened.step, part, shown)
    file = opened.path / "eval" / f"{name}.jsonl"
    try:
      file.parent.mkdir(exist_ok=True)
      jsonl.append(file, row)
    except OSError as error:
      raise Failed(
        f"the result of {name} cannot be written ({error}); it is:\n"
        f"{json.dumps(jsonl.to_json(row), allow_nan=False)}"
      ) from error
    logging.info("written to %s", file)
  return row
