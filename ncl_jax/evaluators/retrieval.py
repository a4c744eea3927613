"""Image retrieval: the test split against itself, the query left out."""

from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators import program


def evaluate(
  config: ConfigDict, variables: Any, source: Source, mesh: Mesh
) -> dict[str, Any]:
  """Mean precision and average precision among the nearest, on `h` and on `f`.

  The released code calls the first "mAP"; it is precision at 10.

  Args:
    config: resolved settings; the `eval.retrieval_k` nearest count.
    variables: {"params", "batch_stats"}.
    source: labelled data.
    mesh: for the forward passes.

  Returns:
    {"settings", "h": {"precision", "average_precision"}, "f": {...}}, in [0, 1].

  Raises:
    InputError: if the data have no labels.
  """
  program.need_labels(source, "retrieval")
  test = program.extract(config, variables, source, "test", mesh)
  k = min(config.eval.retrieval_k, len(test.labels) - 1)
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      gallery="test, without the query",
      k=k,
      distance="cosine",
      images=len(test.labels),
    )
  }
  for layer in program.LAYERS:
    precision, average = metrics.retrieval(
      test.layer(layer, config.loss.map), test.labels, k=k
    )
    result[layer] = {
      "precision": float(np.nanmean(precision)),
      "average_precision": float(np.nanmean(average)),
    }
  return result
