"""Disentanglement: does each dimension stand for one factor of the data?

All functions take features `f` [N, D] and `factors` [N, L]: the factor values of each
sample, as integers of any width from 0. `seed` sets the split into halves and all other
randomness. They run on the host, in numpy and scikit-learn. A constant dimension is
never chosen. On features without information the scores are not exactly 0, so compare
with the scores for shuffled rows of `f`.
"""

import numpy as np

from ncl_jax.metrics.factors.information import (
  BINS,
  mig,
  modularity,
  mutual_information,
  sap,
)
from ncl_jax.metrics.factors.predictors import (
  dci,
  explicitness,
  factor_vae,
  importances,
)

__all__ = [
  "BINS",
  "dci",
  "explicitness",
  "factor_vae",
  "importances",
  "mig",
  "modularity",
  "mutual_information",
  "sap",
  "scores",
]


def scores(f: np.ndarray, factors: np.ndarray, seed: int = 0) -> dict[str, float]:
  """Every score of this package; L must be at least 2.

  Returns:
    mig, sap, modularity, explicitness, dci_disentanglement, dci_completeness,
    dci_informativeness (accuracy of the forests), factor_vae.

  Raises:
    InputError: wrong shape or dtype, or fewer than 2 rows.
  """
  importance, accuracy = importances(f, factors, seed)
  disentanglement, completeness = dci(importance)
  return {
    "mig": mig(f, factors),
    "sap": sap(f, factors, seed),
    "modularity": modularity(f, factors),
    "explicitness": explicitness(f, factors, seed),
    "dci_disentanglement": disentanglement,
    "dci_completeness": completeness,
    "dci_informativeness": float(accuracy.mean()),
    "factor_vae": factor_vae(f, factors, seed),
  }
