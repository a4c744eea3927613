"""The evaluations of a comparison: each method's and control's, made once and kept."""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from ncl_jax import methods
from ncl_jax.data.source import Source
from ncl_jax.evaluators import execute, registry
from ncl_jax.evaluators.run import FeatureSource, Run, open_run
from ncl_jax.experiments import controls, result_cache
from ncl_jax.runtime import jsonl


class Measurements:
  """Results of all methods and controls, and what went wrong.

  Attributes:
    results: key of a method or control -> for each seed, evaluator -> result.
    failed: what failed -> why.
    cache: what was measured before.
  """

  def __init__(
    self, config: ConfigDict, source: Source, names: Sequence[str], file: pathlib.Path
  ):
    self.results: dict[str, list[dict[str, Any]]] = {}
    self.failed: dict[str, str] = {}
    self.cache = result_cache.ResultCache(file)
    self._config, self._source = config, source
    self._names = [name for name in names if name in registry.single()]

  def run(self, key: str, seed: int, path: pathlib.Path) -> Run:
    """Evaluates the newest checkpoint of a run."""
    logging.info("evaluating %s, seed %d", controls.LABELS[key], seed)
    run = open_run(path, source=self._source)
    call = functools.partial(execute.evaluate, opened=run)
    found = self._measure(key, seed, self._names, (run,), call, path / "eval")
    self.results.setdefault(key, []).append(found)
    return run

  def controls(
    self,
    seed: int,
    pair: tuple[Run, Run],
    keys: Sequence[str],
    names: Sequence[str] | None,
  ) -> None:
    """Evaluates controls, by some of the evaluators or all (None)."""
    wanted = [name for name in self._names if names is None or name in names]
    folder = pair[1].path.parent
    rows = []
    for key in keys:
      features = self._made(key, seed, pair)
      if features is None:
        continue
      logging.info("evaluating the control %s, seed %d", controls.LABELS[key], seed)
      found = self._measure(
        key,
        seed,
        [name for name in wanted if _applies(name, key, features)],
        pair,
        lambda evaluator, features=features, **options: evaluator(features, **options),
        folder / "controls",
      )
      self.results.setdefault(key, []).append(found)
      note = controls.CONTROLS[key].note
      rows.append({"control": key, "note": note, "results": found})
    if jax.process_index() == 0:
      jsonl.write(folder / "controls.jsonl", rows)

  def alignment(self, key: str, directories: Sequence[pathlib.Path]) -> None:
    """Compares the dimensions of each seed's run with the next seed's."""
    first = run = open_run(directories[0], source=self._source)
    # Two at a time and the first, as each keeps its features.
    for rows, path in zip(self.results[key], [*directories[1:], None], strict=True):
      other = open_run(path, source=self._source) if path else first
      call = functools.partial(execute.evaluate, opened=run, other=other)
      seed = run.config.seed
      folder = run.path / "eval"
      rows |= self._measure(key, seed, ["axes"], (run, other), call, folder)
      run = other

  def _made(self, key: str, seed: int, pair: tuple[Run, Run]) -> FeatureSource | None:
    try:
      return controls.CONTROLS[key].make(*pair)
    # As in `execute.attempt`: one failure must not lose hours of evaluations.
    except Exception as error:
      if jax.process_count() > 1 or key == "untrained":
        raise  # the report is made with that one
      logging.exception("the control %s could not be made", key)
      self.failed[f"{controls.LABELS[key]}, seed {seed}"] = str(error)
    return None

  def _measure(
    self,
    key: str,
    seed: int,
    names: Sequence[str],
    runs: Sequence[Run],
    call: Callable[..., dict[str, Any]],
    folder: pathlib.Path,
  ) -> dict[str, dict[str, Any]]:
    """{evaluator: result} of a method or control; takes note of what failed."""

    def once(evaluator: registry.Evaluator, **options: Any) -> dict[str, Any]:
      asked = evaluator.asked(self._config)
      inputs = result_cache.inputs(evaluator, runs)
      of = {"method": key, "seed": seed, **inputs, **asked}
      return self.cache.get(of, lambda: call(evaluator, **options, **asked))

    found, faults = execute.attempt(names, once, folder)
    for fault, why in faults.items():
      self.failed[f"{controls.LABELS[key]}, seed {seed}, {fault}"] = why
    return found


def _applies(name: str, key: str, features: FeatureSource) -> bool:
  """Whether an evaluator says something about a control."""
  evaluator = registry.registered()[name]
  if evaluator.network and not isinstance(features, Run):
    return False
  if evaluator.trains and key != "untrained":
    return False  # it would only repeat what CL's gives
  two_towers = methods.of(features.config).captions
  return not evaluator.pairs or not two_towers or controls.CONTROLS[key].both_towers
