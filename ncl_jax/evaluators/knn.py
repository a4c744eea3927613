"""Weighted nearest neighbours: the training split is the bank, the test split asks."""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax import metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators.registry import Row, accuracies, evaluator, few
from ncl_jax.evaluators.run import LAYERS, FeatureSource

KS = (1, 2, 5, 10, 20, 50, 100, 200)
TEMPERATURES = (0.01, 0.02, 0.05, 0.07, 0.1, 0.2, 0.5, 1.0)


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """The accuracy on h and on f."""
  note = (
    f"weighted vote of {config.eval.knn_k} training images by cosine similarity; "
    f"{few(source.num_examples('test'))}"
  )
  columns = {"h": "knn h", "f": "knn f"}
  return accuracies("knn", "nearest neighbours", note, columns)


@evaluator("knn", rows=rows)
def evaluate(run: FeatureSource) -> dict[str, Any]:
  """Top-1 accuracy on the test split, on `h` and on `f`.

  Args:
    run: with labelled data; `eval.knn_k` neighbours at `eval.knn_temperature`.

  Returns:
    {"settings", "h": {...}, "f": {...}}; accuracies in [0, 1]: "accuracy" at
    `eval.knn_k` and `eval.knn_temperature` by cosine, chosen before looking;
    "accuracy_euclidean" at that k; "grid" and "grid_euclidean" are lists of {"k",
    "temperature", "accuracy"}, Euclidean distance having no temperature.
  """
  config = run.config
  train, test = run.extract("train"), run.extract("test")
  k = min(config.eval.knn_k, len(train.labels))
  result: dict[str, Any] = {
    "settings": run.describe(
      bank="train",
      k=k,
      temperature=config.eval.knn_temperature,
      distance="cosine; euclidean where named so",
      ties="those at the last place share its vote",
    )
  }
  ks = sorted({k, *(k for k in KS if k <= len(train.labels))})
  temperatures = sorted({config.eval.knn_temperature, *TEMPERATURES})
  known = test.labels >= 0
  for layer in LAYERS:
    bank, f = run.layer(layer, "train"), run.layer(layer, "test")

    def grid(temperatures, bank=bank, f=f):
      labels = metrics.knn_predict_grid(
        bank, train.labels, f, run.source.num_classes, ks, temperatures
      )
      hits = np.asarray(labels) == test.labels[None, None]
      return hits[..., known].mean(-1)

    cosine, euclidean = grid(temperatures), grid(None)
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
