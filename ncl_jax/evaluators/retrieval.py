"""Image retrieval: test images among themselves, and among the training images."""

from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators import needs, program


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
    {"settings", "h": {...}, "f": {...}}: precision (P@k) and average_precision (mAP@k)
    of the test split against itself, each query left out, and both with `_in_train`
    where the training split is searched; in [0, 1].

  Raises:
    InputError: if the data have no labels.
  """
  needs.need_labels(source, "retrieval")
  test = program.extract(config, variables, source, "test", mesh)
  train = program.extract(config, variables, source, "train", mesh)
  k = min(config.eval.retrieval_k, len(test.labels) - 1)
  k_train = min(config.eval.retrieval_k, len(train.labels))
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      gallery="test, without the query; train where named so",
      k=k,
      k_in_train=k_train,
      distance="cosine",
      ties="mean over all orders",
      images=len(test.labels),
    )
  }
  for layer in program.LAYERS:
    f, gallery = (x.layer(layer, config.loss.transform) for x in (test, train))
    result[layer] = {}
    for name, figures in (
      ("", metrics.retrieval(f, test.labels, k)),
      ("_in_train", metrics.retrieval(f, test.labels, k_train, gallery, train.labels)),
    ):
      precision, average = figures
      result[layer] |= {
        f"precision{name}": float(np.nanmean(precision)),
        f"average_precision{name}": float(np.nanmean(average)),
      }
  return result
