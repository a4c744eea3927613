"""Metrics of a feature matrix: interpretability, SEPIN, retrieval, neighbours."""

from ncl_jax.metrics import factors
from ncl_jax.metrics.axes import (
  axis_gain,
  consistency_at_matched_rates,
  energy_weighted_purity,
  naming_accuracy,
  purity_at,
)
from ncl_jax.metrics.consistency import (
  activated,
  class_consistency,
  label_entropy,
  purity,
)
from ncl_jax.metrics.interpretability import (
  active_dimensions,
  correlation,
  effective_rank,
  expected_activation,
  l0,
  num_zero_rows,
  orthogonality,
  sparsity,
  spectral_entropy,
  view_agreement,
)
from ncl_jax.metrics.knn import knn_predict, knn_predict_grid, knn_scores
from ncl_jax.metrics.pairs import pair_recall, zero_shot
from ncl_jax.metrics.retrieval import retrieval
from ncl_jax.metrics.sepin import sepin, sepin_at

__all__ = [
  "activated",
  "active_dimensions",
  "axis_gain",
  "class_consistency",
  "consistency_at_matched_rates",
  "correlation",
  "effective_rank",
  "energy_weighted_purity",
  "expected_activation",
  "factors",
  "knn_predict",
  "knn_predict_grid",
  "knn_scores",
  "l0",
  "label_entropy",
  "naming_accuracy",
  "num_zero_rows",
  "orthogonality",
  "pair_recall",
  "purity",
  "purity_at",
  "retrieval",
  "sepin",
  "sepin_at",
  "sparsity",
  "spectral_entropy",
  "view_agreement",
  "zero_shot",
]
