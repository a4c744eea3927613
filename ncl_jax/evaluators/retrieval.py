"""Image retrieval: test images among themselves, and among the training images."""

from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax import metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators.registry import SAME_CLASS, Row, accuracies, evaluator
from ncl_jax.evaluators.run import LAYERS, FeatureSource


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """The precision on h and on f."""
  return accuracies(
    "retrieval",
    "retrieval precision",
    f"share of the {config.eval.retrieval_k} nearest test images that share the "
    "query's class.",
    {"h": "P@k h", "f": "P@k f"},
    name="precision",
    chance=SAME_CLASS,
  )


@evaluator("retrieval", rows=rows)
def evaluate(run: FeatureSource) -> dict[str, Any]:
  """Mean precision and average precision among the nearest, on `h` and on `f`.

  The released code calls the first "mAP"; it is precision at 10.

  Args:
    run: with labelled data; the `eval.retrieval_k` nearest count.

  Returns:
    {"settings", "h": {...}, "f": {...}}: precision (P@k) and average_precision (mAP@k)
    of the test split against itself, each query left out, and both with `_in_train`
    where the training split is searched; in [0, 1].
  """
  config = run.config
  test, train = run.extract("test"), run.extract("train")
  k = min(config.eval.retrieval_k, len(test.labels) - 1)
  k_train = min(config.eval.retrieval_k, len(train.labels))
  result: dict[str, Any] = {
    "settings": run.describe(
      gallery="test, without the query; train where named so",
      k=k,
      k_in_train=k_train,
      distance="cosine",
      ties="mean over all orders",
    )
  }
  for layer in LAYERS:
    f, gallery = run.layer(layer, "test"), run.layer(layer, "train")
    result[layer] = {}
    for name, (precision, average) in (
      ("", metrics.retrieval(f, test.labels, k)),
      ("_in_train", metrics.retrieval(f, test.labels, k_train, gallery, train.labels)),
    ):
      result[layer] |= {
        f"precision{name}": float(np.nanmean(precision)),
        f"average_precision{name}": float(np.nanmean(average)),
      }
  return result
