"""A cache of evaluation results: a comparison that resumes repeats none."""

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging

from ncl_jax.evaluators.registry import Evaluator
from ncl_jax.evaluators.run import Run
from ncl_jax.experiments import controls
from ncl_jax.runtime import jsonl
from ncl_jax.training import fingerprints


def inputs(evaluator: Evaluator, runs: Sequence[Run]) -> dict[str, Any]:
  """What an evaluator's result depends on: weights and settings, data, and code.

  Args:
    runs: the first one's data are read.
  """
  config, source = runs[0].config, runs[0].source
  data = {"": fingerprints.data(source)} | evaluator.reads(config, source)
  return {
    "evaluator": evaluator.name,
    # A run may have been trained anew.
    "runs": [fingerprints.network(run.config, run.variables) for run in runs],
    "data": data,
    # The controls' code, too: a run may be one.
    **fingerprints.versions(evaluator.__module__, controls.__name__),
  }


class ResultCache:
  """Results in a JSON-lines file, by what they are results of.

  Args:
    path: the file; made with the first result. Deleted, everything is measured anew.

  Attributes:
    fault: why a result could not be written, "" if all were; `get` gives them anyhow.
  """

  def __init__(self, path: pathlib.Path):
    self._path, self.fault = path, ""
    self._results = {_name(row["of"]): row["result"] for row in jsonl.read(path)}

  def get(
    self, of: dict[str, Any], measure: Callable[[], dict[str, Any]]
  ) -> dict[str, Any]:
    """The result of something: the one that is written down, or a new one.

    Args:
      of: what is measured, and all that the result depends on, as JSON.

    Returns:
      The result as JSON reads it: a number that is undefined is None.
    """
    name = _name(of)
    if name not in self._results:
      result = json.loads(json.dumps(jsonl.to_json(measure()), allow_nan=False))
      self._results[name] = result
      # Asked now: at first it would start jax, before a run chooses its devices.
      if jax.process_index() == 0:
        try:
          jsonl.append(self._path, {"of": of, "result": result})
        except OSError as error:
          self.fault = str(error)
          logging.error("a result is kept in memory alone: %s", error)
    return self._results[name]


def _name(of: dict[str, Any]) -> str:
  return json.dumps(of, sort_keys=True, allow_nan=False)
