"""The evaluations of a comparison: each method's and control's, made once and kept."""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
from absl import logging
from ml_collections import ConfigDict

from ncl_jax import methods
from ncl_jax.data.source import Source
from ncl_jax.evaluators import execute, registry
from ncl_jax.evaluators.registry import Evaluator
from ncl_jax.evaluators.run import FeatureSource, Run, open_run
from ncl_jax.experiments import controls, result_cache
from ncl_jax.runtime import jsonl
from ncl_jax.training import fingerprints


class Measurements:
  """Results of all methods and controls, and what went wrong.

  Attributes:
    results: key of a method or control -> for each seed, evaluator -> result.
    failed: what failed -> why.
    labels: key of a method or control -> what a reader sees.
  """

  def __init__(
    self,
    config: ConfigDict,
    source: Source,
    names: Sequence[str],
    file: pathlib.Path,
    labels: dict[str, str],
  ):
    """Reads what was measured before."""
    self.results: dict[str, list[dict[str, Any]]] = {}
    self.failed: dict[str, str] = {}
    self.labels = dict(labels)
    self._config, self._source = config, source
    known = registry.registered()
    self._names = [name for name in names if not known[name].two_runs]
    self._cache = result_cache.ResultCache(file)

  @property
  def unkept(self) -> str:
    """Why a result could not be written; "" if all were."""
    return self._cache.fault

  def run(self, key: str, seed: int, path: pathlib.Path) -> Run:
    """Evaluates the newest checkpoint of a run."""
    logging.info("evaluating %s, seed %d", self.labels[key], seed)
    run = open_run(path, source=self._source)
    call = functools.partial(execute.evaluate, opened=run)
    self._measure(key, seed, (run,), self._names, call, path / "eval")
    return run

  def controls(
    self,
    seed: int,
    pair: dict[str, Run],
    keys: Sequence[str],
    names: Sequence[str] | None,
  ) -> None:
    """Evaluates controls, by some of the evaluators or all (None)."""
    wanted = [name for name in self._names if names is None or name in names]
    both = (pair["cl"], pair["ncl"])
    folder = pair["ncl"].path.parent
    rows = []
    for key in keys:
      control = controls.CONTROLS[key]
      features = self._made(key, seed, pair)
      if features is None:
        continue
      self.labels[key] = control.label
      logging.info("evaluating the control %s, seed %d", control.label, seed)
      apply = _that_apply(control, features, wanted)
      call = functools.partial(_evaluate, features)
      self._measure(key, seed, both, apply, call, folder / "controls")
      results = self.results[key][-1]
      rows.append({"control": key, "note": control.note, "results": results})
    if jax.process_index() == 0:
      jsonl.write(folder / "controls.jsonl", rows)

  def alignment(self, key: str, directories: Sequence[pathlib.Path]) -> None:
    """Compares the dimensions of each seed's run with the next seed's."""
    first = run = open_run(directories[0], source=self._source)
    for i, rows in enumerate(self.results[key]):
      last = i + 1 == len(directories)
      # Two at a time, as each keeps its features.
      other = first if last else open_run(directories[i + 1], source=self._source)
      seed = run.config.seed
      call = functools.partial(execute.evaluate, opened=run, other=other)
      of = self._of(key, seed, (run, other), "axes")
      rows |= self._attempt(key, seed, "axes", of, call, run.path / "eval")
      run = other

  def _made(self, key: str, seed: int, pair: dict[str, Run]) -> FeatureSource | None:
    try:
      return controls.make(key, pair["cl"], pair["ncl"])
    # As in `execute.attempt`: one failure must not lose hours of evaluations.
    except Exception as error:
      if jax.process_count() > 1 or key == "untrained":
        raise  # the report is made with that one
      logging.exception("the control %s could not be made", key)
      self.failed[f"{controls.CONTROLS[key].label}, seed {seed}"] = str(error)
    return None

  def _of(self, key, seed, runs: Sequence[Run], name: str) -> dict[str, Any]:
    """What a result is of: weights and settings too, as a run may be trained anew."""
    evaluator = registry.registered()[name]
    digests = [fingerprints.network(run.config, run.variables) for run in runs]
    of = {"method": key, "seed": seed, "evaluator": name, "runs": digests}
    data = {"": fingerprints.data(self._source)}
    of |= {"data": data | evaluator.reads(self._config, self._source)}
    return of | fingerprints.versions()

  def _measure(self, key, seed, runs, names, call, folder) -> None:
    """Runs evaluators on a method or control, and takes note of results and faults."""
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
      options = registry.registered()[name].asked(self._config)
      of = self._of(key, seed, runs, name) | options
      asked = functools.partial(call, **options)
      rows |= self._attempt(key, seed, name, of, asked, folder)
    self.results.setdefault(key, []).append(rows)

  def _attempt(self, key, seed, name, of, call, folder):
    """{evaluator: result}, from the cache if it is known; {} if it failed."""

    def once(evaluator, **options):
      return self._cache.get(of, lambda: call(evaluator, **options))

    got, faults = execute.attempt([name], once, folder)
    for fault, why in faults.items():
      self.failed[f"{self.labels[key]}, seed {seed}, {fault}"] = why
    return got


def _that_apply(
  control: controls.Control, features: FeatureSource, names: Sequence[str]
) -> list[str]:
  """The evaluators that say something about a control."""

  def applies(declared: Evaluator) -> bool:
    if declared.network and not isinstance(features, Run):
      return False
    if declared.trains and not control.own_backbone:
      return False  # it would only repeat what CL's gives
    two_towers = methods.of(features.config).captions
    return not declared.pairs or not two_towers or control.both_towers

  return [name for name in names if applies(registry.registered()[name])]


def _evaluate(
  features: FeatureSource, evaluator: Evaluator, **options: Any
) -> dict[str, Any]:
  return evaluator(features, **options)
