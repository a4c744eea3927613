"""A grid of runs, one after the other, each evaluated; one table and one figure."""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from ncl_jax import checks, methods
from ncl_jax import config as config_lib
from ncl_jax.errors import Failed, InputError, Stopped
from ncl_jax.evaluators import execute, knn, registry
from ncl_jax.evaluators.run import FeatureSource, Run, open_run
from ncl_jax.experiments import baseline_features, result_cache
from ncl_jax.host import paths
from ncl_jax.report import sweep as sweep_lib
from ncl_jax.runtime import jsonl
from ncl_jax.training import fingerprints, loop
from ncl_jax.training import workdir as workdir_lib

EVALUATORS = ("feature_stats", "knn")
METHOD = "method"


@dataclasses.dataclass(frozen=True)
class Trial:
  """One run of a grid."""

  settings: dict[str, Any]  # field -> value, those of the grid
  config: ConfigDict  # all settings

  @property
  def name(self) -> str:
    """Also its directory's: "loss.temperature=0.1,seed=0"."""
    return ",".join(f"{key}={value}" for key, value in self.settings.items())


def parse_grid(text: str) -> dict[str, list[str]]:
  """The grid in "FIELD=VALUE,VALUE;FIELD=VALUE".

  Raises:
    InputError: if it is not of that form, or a value or field stands there twice.

  >>> parse_grid("loss.temperature=0.1,0.5;seed=0,1")
  {'loss.temperature': ['0.1', '0.5'], 'seed': ['0', '1']}
  """
  grid: dict[str, list[str]] = {}
  for part in text.split(";"):
    key, equals, values = (word.strip() for word in part.partition("="))
    found = [value.strip() for value in values.split(",")]
    if not (key and equals and all(found)):
      raise InputError(
        f"the grid's part {part!r}: it must be FIELD=VALUE,VALUE, parts divided by ;"
      )
    if key in grid or len(set(found)) < len(found):
      raise InputError(f"the grid's part {part!r} repeats a field or a value")
    grid[key] = found
  return grid


def trials(
  config: ConfigDict,
  grid: dict[str, list[str]],
  recipe: Callable[[str], ConfigDict] | None = None,
) -> list[Trial]:
  """All combinations of a grid's values, the last field changing fastest.

  Args:
    config: what is not in the grid.
    grid: from `parse_grid`; fields of a config, "method" among them.
    recipe: from a method to the config file's settings for it, from "" to those that
      `config` was made from. Needed for "method".

  Raises:
    InputError: for unknown fields, or values that no run could take.
  """
  made = []
  for values in itertools.product(*grid.values()):
    words = dict(zip(grid, values, strict=True))
    base = _of_method(config, words, recipe)
    settings = {}
    for key, word in words.items():
      if key != METHOD:
        config_lib.put(base, key, _parsed(base, key, word))
      settings[key] = config_lib.get(base, key)
    config_lib.validate(base)
    made.append(Trial(settings, base.lock()))
  return made


def _of_method(config, words, recipe) -> ConfigDict:
  """The recipe of a trial's method, changed as `config` was from its own."""
  if METHOD not in words:
    return config.copy_and_resolve_references()
  checks.choice(METHOD, words[METHOD], methods.VARIANTS)
  if recipe is None:
    raise InputError("method in the grid: it needs a config file to take recipes from")
  base = recipe(words[METHOD])
  transformed = base.method in methods.WITH_TRANSFORM
  for key, value in config_lib.overrides(recipe(""), config).items():
    # What says where a transform is applied means nothing without one.
    if key != METHOD and (transformed or not key.startswith("loss.transform")):
      config_lib.put(base, key, value)
  if not transformed and any(key.startswith("loss.transform") for key in words):
    raise InputError(
      f"the grid has both a transform and method={base.method}, which has none: sweep "
      "methods with a transform, and loss.transform=identity,..."
    )
  return base


def _parsed(config: ConfigDict, key: str, word: str) -> Any:
  """A value of the type that the field has."""
  if key not in config_lib.known_keys():
    config_lib.put(config, key, word)  # says which field is near
  kind = type(config_lib.get(config, key))
  if kind is bool:
    checks.choice(key, word.lower(), ("true", "false"))
    return word.lower() == "true"
  if kind not in (int, float, str):
    raise InputError(f"{key} holds several values: a grid cannot change it")
  try:
    return kind(word)
  except ValueError:
    raise InputError(f"the grid's {key}={word}: it must be {kind.__name__}") from None


def sweep(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  grid: str,
  *,
  recipe: Callable[[str], ConfigDict] | None = None,
  evaluators: Sequence[str] = EVALUATORS,
) -> str:
  """Trains and evaluates every trial of a grid, then writes a table and a figure.

  Finished trials are not repeated, and one that was killed resumes. A trial that fails
  stops no other. With labels each trial's nearest-neighbour accuracy is compared
  with that of its untrained network and of raw pixels.

  Args:
    workdir: gets a work directory for each trial, measured.jsonl, and of all trials
      sweep.jsonl, sweep.md and sweep.png, written anew after each.
    evaluators: of `registry.single`; those that need labels are left out without
      them.

  Returns:
    The table, and where to look.

  Raises:
    InputError: for settings that cannot work, or if another sweep is at work in the
      directory, before anything is trained.
    Failed: at the end, if a trial failed, naming each.
    Stopped: after one of `errors.SIGNALS`, with everything saved.
  """
  for name in evaluators:
    checks.choice("evaluator", name, registry.single())
  made = trials(config, parse_grid(grid), recipe)
  root = paths.absolute(workdir)
  with workdir_lib.alone(root, "sweeping"):
    known = result_cache.ResultCache(root / "measured.jsonl")
    rows: list[dict[str, Any]] = []
    for number, trial in enumerate(made, 1):
      logging.info("trial %d of %d: %s", number, len(made), trial.name)
      row: dict[str, Any] = {"trial": trial.name, "settings": trial.settings}
      try:
        row |= _measured(trial, root / trial.name, known, evaluators)
      except Stopped:
        raise
      # Whatever it is, the other trials still run.
      except Exception as error:
        if jax.process_count() > 1:
          raise  # the other processes would wait for this one
        logging.exception("the trial %s failed", trial.name)
        row["failed"] = str(error)
      rows.append(row)
      fault = _write(root, rows) or known.fault
  text = f"{sweep_lib.table(rows)}\n\nFigure: {root / 'sweep.png'}"
  failed = [f"\n  {row['trial']}: {row['failed']}" for row in rows if "failed" in row]
  if fault:
    failed.append(f"\n  results cannot be written: {fault}")
  if failed:
    raise Failed(f"{text}\n\ntrials that failed:{''.join(failed)}")
  return text


def _write(root: pathlib.Path, rows: list[dict[str, Any]]) -> str:
  """Why the files could not be written: the table is printed all the same."""
  if jax.process_index() == 0:
    try:
      jsonl.write(root / "sweep.jsonl", rows)
      sweep_lib.write(root, rows)
    except OSError as error:
      return str(error)
  return ""


def _on_h(make: Callable[[], FeatureSource]) -> dict[str, Any]:
  return {"h": {"accuracy": knn.evaluate(make())["h"]["accuracy"]}}


def _control_inputs(control: str, run: Run) -> dict[str, Any]:
  """What a control depends on: not on weights, so that trials share it."""
  sections = ["augment", "eval"]
  # The place of the data is left out, as their fingerprint stands for it.
  settings: dict[str, Any] = {"data": run.config.data.to_dict() | {"source": ""}}
  if control == "untrained":
    sections.append("model")
    settings["seed"] = run.config.seed
  settings |= {name: run.config[name].to_dict() for name in sections}
  return {
    "control": control,
    "settings": jsonl.to_json(settings),
    "data": fingerprints.data(run.source),
    **fingerprints.versions(knn.__name__, baseline_features.__name__),
  }


def _measured(
  trial: Trial,
  path: pathlib.Path,
  known: result_cache.ResultCache,
  names: Sequence[str],
) -> dict[str, Any]:
  """Trains a trial, and gives what the evaluators find: evaluator -> result."""
  source = workdir_lib.kept_source(trial.config)
  loop.train(trial.config, path, source)
  run = open_run(path, source=source)
  found: dict[str, Any] = {"step": run.step}
  applicable = registry.applicable(trial.config, source)
  for name in (name for name in names if name in applicable):
    evaluator = registry.registered()[name]
    options = evaluator.options_in(path / "eval")
    of = {"trial": trial.name, "step": run.step}
    of |= result_cache.inputs(evaluator, [run])
    measure = functools.partial(execute.evaluate, evaluator, run, **options)
    found[name] = known.get(of, measure)
  if "knn" in found:
    pixels = baseline_features.Pixels(run.config, source, run.mesh)
    for control, make in (("untrained", run.untrained), ("pixels", lambda: pixels)):
      of = _control_inputs(control, run)
      found[control] = known.get(of, functools.partial(_on_h, make))
  return found
