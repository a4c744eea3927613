"""Runs evaluators on a checkpoint and appends their results to the run's `eval/`."""

import functools
import json
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging

import ncl_jax
from ncl_jax import checks
from ncl_jax.data.source import Source
from ncl_jax.errors import Failed, Stopped
from ncl_jax.evaluators import registry
from ncl_jax.evaluators.registry import Evaluator
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.host import paths
from ncl_jax.runtime import jsonl
from ncl_jax.training import fingerprints


def run(
  evaluator: Evaluator,
  workdir: str | pathlib.Path,
  step: int | None = None,
  source: Source | None = None,
  **options: Any,
) -> dict[str, Any]:
  """Evaluates a checkpoint; appends its row to `eval/EVALUATOR.jsonl`, returns it."""
  return evaluate(evaluator, open_run(workdir, step, source), **options)


def run_all(
  names: Sequence[str] | None,
  workdir: str | pathlib.Path,
  step: int | None = None,
  source: Source | None = None,
) -> dict[str, dict[str, Any]]:
  """Evaluates a checkpoint by several evaluators; one that fails stops no other.

  Args:
    names: of `registry.single`; None for all that the data allow.

  Returns:
    Evaluator -> the row that was written.

  Raises:
    Failed: at the end, if one failed.
    InputError: for an unknown evaluator.
  """
  for name in names or ():
    checks.choice("evaluator", name, registry.single())
  opened = open_run(workdir, step, source)
  if names is None:
    names = registry.applicable(opened.config, opened.source)
  rows, failed = attempt(
    names, functools.partial(evaluate, opened=opened), opened.path / "eval"
  )
  if failed:
    lines = "".join(f"\n  {name}: {reason}" for name, reason in failed.items())
    raise Failed(f"step {opened.step} in {opened.path}: evaluators that failed:{lines}")
  return rows


def attempt(
  names: Sequence[str], call: Callable[..., dict[str, Any]], folder: pathlib.Path
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
  """Calls several evaluators, of `registry.registered`; one that fails stops no other.

  Args:
    call: takes an `Evaluator` and further arguments of it; gives its result.
    folder: where those that train for long keep checkpoints.

  Returns:
    Evaluator -> result, and evaluator -> why it failed.
  """
  rows: dict[str, dict[str, Any]] = {}
  failed: dict[str, str] = {}
  for name in names:
    evaluator = registry.registered()[name]
    try:
      rows[name] = call(evaluator, **evaluator.options_in(folder))
    except Stopped:
      raise
    # Whatever it is, the other evaluators still run.
    except Exception as error:
      if jax.process_count() > 1:
        raise  # the other processes would wait for this one
      logging.exception("%s failed", name)
      failed[name] = str(error)
  return rows, failed


def evaluate(evaluator: Evaluator, opened: Run, **options: Any) -> dict[str, Any]:
  """`run` on a checkpoint that is open already.

  Raises:
    Failed: if the result cannot be written; the message holds the row.
  """
  name = evaluator.file
  try:
    result = evaluator(opened, **options)
  except FloatingPointError as error:
    where = f"checkpoint {opened.step} of {opened.path}"
    raise FloatingPointError(f"{name} of {where}: {error}") from error
  row = {
    "evaluator": name,
    "step": opened.step,
    **result,
    "data": fingerprints.data(opened.source),
    "versions": {"ncl_jax": ncl_jax.__version__, "jax": jax.__version__},
  }
  if jax.process_index() == 0:
    _log(opened.step, result)
    file = opened.path / "eval" / f"{name}.jsonl"
    try:
      paths.make(file.parent)
      jsonl.append(file, row)
    except OSError as error:
      raise Failed(
        f"the result of {name} cannot be written ({error}); it is:\n"
        f"{json.dumps(jsonl.to_json(row), allow_nan=False)}"
      ) from error
    logging.info("written to %s", file)
  return row


def _log(step: int, result: dict[str, Any]) -> None:
  for part, values in result.items():
    if part != "settings" and isinstance(values, dict):
      numbers = {k: v for k, v in values.items() if isinstance(v, int | float)}
      shown = "  ".join(
        f"{k} {v:.4g}" if math.isfinite(v) else f"{k} -" for k, v in numbers.items()
      )
      logging.info("step %d, %s: %s", step, part, shown)
