"""Weighted nearest neighbours: the training split is the bank, the test split asks."""

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
  """Top-1 accuracy on the test split, on `h` and on `f`.

  Args:
    config: resolved settings; `eval.knn_k` neighbours at `eval.knn_temperature`.
    variables: {"params", "batch_stats"}.
    source: labelled data.
    mesh: for the forward passes.

  Returns:
    {"settings", "h": {"accuracy"}, "f": {"accuracy"}}, accuracies in [0, 1].

  Raises:
    InputError: if the data have no labels.
  """
  program.need_labels(source, "knn")
  train = program.extract(config, variables, source, "train", mesh)
  test = program.extract(config, variables, source, "test", mesh)
  k = min(config.eval.knn_k, len(train.labels))
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      bank="train",
      k=k,
      temperature=config.eval.knn_temperature,
      distance="cosine",
      images=len(test.labels),
    )
  }
  known = test.labels >= 0
  for layer in program.LAYERS:
    predicted = metrics.knn_predict(
      train.layer(layer, config.loss.map),
      train.labels,
      test.layer(layer, config.loss.map),
      source.num_classes,
      k=k,
      temperature=config.eval.knn_temperature,
    )
    hits = np.asarray(predicted) == test.labels
    result[layer] = {"accuracy": float(hits[known].mean())}
  return result
