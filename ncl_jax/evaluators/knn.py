"""Weighted nearest neighbours: the training split is the bank, the test split asks."""

from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators import needs, program

KS = (1, 2, 5, 10, 20, 50, 100, 200)
TEMPERATURES = (0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0)


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
    {"settings", "h": {...}, "f": {...}}; accuracies in [0, 1]: "accuracy" at
    `eval.knn_k` and `eval.knn_temperature` by cosine, chosen before looking;
    "accuracy_euclidean" at that k; "grid" and "grid_euclidean" are lists of {"k",
    "temperature", "accuracy"}, Euclidean distance having no temperature.

  Raises:
    InputError: if the data have no labels.
  """
  needs.need_labels(source, "knn")
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
      distance="cosine; euclidean where named so",
      ties="those at the last place share its vote",
      images=len(test.labels),
    )
  }
  ks = sorted({k, *(k for k in KS if k <= len(train.labels))})
  temperatures = sorted({config.eval.knn_temperature, *TEMPERATURES})
  known = test.labels >= 0
  for layer in program.LAYERS:
    bank, f = (x.layer(layer, config.loss.transform) for x in (train, test))

    def grid(distance, temperatures, bank=bank, f=f):
      labels = metrics.knn_predict_grid(
        bank, train.labels, f, source.num_classes, ks, temperatures, distance
      )
      hits = np.asarray(labels) == test.labels[None, None]
      return hits[..., known].mean(-1)

    cosine = grid("cosine", temperatures)
    euclidean = grid("euclidean", [1.0])
    place = ks.index(k)
    result[layer] = {
      "accuracy": float(cosine[place, temperatures.index(config.eval.knn_temperature)]),
      "accuracy_euclidean": float(euclidean[place, 0]),
      "grid": [
        {"k": k, "temperature": t, "accuracy": float(cosine[i, j])}
        for i, k in enumerate(ks)
        for j, t in enumerate(temperatures)
      ],
      "grid_euclidean": [
        {"k": k, "accuracy": float(euclidean[i, 0])} for i, k in enumerate(ks)
      ],
    }
  return result
