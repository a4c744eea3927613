"""Every public loss and metric as a function of two views and labels."""

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax import losses, metrics, numerics

N, D, K = 16, 4, 3


def pair(a, b):
  return jnp.stack([a, b], 1)


# Functions of two views [N, D] and labels [N].
LOSSES = {
  "nt_xent": lambda a, b, y: losses.nt_xent(pair(a, b), temperature=0.2),
  "nt_xent, tiled": lambda a, b, y: losses.nt_xent(
    pair(a, b), temperature=0.2, block_size=6
  ),
  "supervised_nt_xent": lambda a, b, y: losses.supervised_nt_xent(
    pair(a, b), y, temperature=0.2
  ),
  "sup_con": lambda a, b, y: losses.sup_con(pair(a, b), y, temperature=0.2),
  "sup_con, blocks": lambda a, b, y: losses.sup_con(
    pair(a, b), y, temperature=0.2, block_size=6
  ),
  "clip": lambda a, b, y: losses.clip(a, b, temperature=0.2),
  "clip, blocks": lambda a, b, y: losses.clip(a, b, temperature=0.2, block_size=6),
  "moco_v3": lambda a, b, y: losses.moco_v3(pair(a, b), pair(b, a), temperature=0.2),
  "byol": lambda a, b, y: losses.byol(pair(a, b), pair(b, a)),
  "spectral": lambda a, b, y: losses.spectral(pair(a, b)),
  "spectral, weights": lambda a, b, y: losses.spectral(pair(a, b), jnp.ones(N)),
  "barlow_twins": lambda a, b, y: losses.barlow_twins(a, b),
  "vicreg": lambda a, b, y: losses.vicreg(a, b),
  "dino": lambda a, b, y: losses.dino(pair(a, b), pair(b, a), jnp.zeros(D)),
  "dino_centre": lambda a, b, y: losses.dino_centre(jnp.zeros(D), pair(a, b)),
  "scores": lambda a, b, y: losses.scores(a, b),
  "cross_entropy": lambda a, b, y: losses.cross_entropy(a, b, y),
  "l2_normalize": lambda a, b, y: numerics.l2_normalize(a),
}
METRICS = {
  name: lambda a, b, y, name=name: getattr(metrics, name)(a)
  for name in (
    "sparsity",
    "l0",
    "active_dimensions",
    "num_zero_rows",
    "correlation",
    "orthogonality",
    "spectral_entropy",
    "effective_rank",
    "expected_activation",
    "activated",
  )
}
METRICS |= {
  "view_agreement": lambda a, b, y: metrics.view_agreement(a, b),
  "class_consistency": lambda a, b, y: metrics.class_consistency(a, y, K),
  "label_entropy": lambda a, b, y: metrics.label_entropy(a, y, K),
  "purity": lambda a, b, y: metrics.purity(a, y, K, 0.3),
  "knn_predict": lambda a, b, y: metrics.knn_predict(b, y, a, K, 3),
  "knn_scores": lambda a, b, y: metrics.knn_scores(b, y, a, K, 3),
  "knn_predict_grid": lambda a, b, y: metrics.knn_predict_grid(b, y, a, K, [3], [0.1]),
  "retrieval": lambda a, b, y: metrics.retrieval(a, y, 3),
  "retrieval, gallery": lambda a, b, y: metrics.retrieval(a, y, 3, b, y),
  "sepin": lambda a, b, y: metrics.sepin(a, b, temperature=0.2),
  "sepin_at": lambda a, b, y: metrics.sepin_at(a[:, 0], 2),
  "naming_accuracy": lambda a, b, y: metrics.naming_accuracy(b, y, a, y, K),
  "energy_weighted_purity": lambda a, b, y: metrics.energy_weighted_purity(
    a, y, K, budget=0.3
  ),
  "purity_at": lambda a, b, y: metrics.purity_at(a, y, K, jnp.array([1, 4])),
  "consistency_at_matched_rates": lambda a, b, y: metrics.consistency_at_matched_rates(
    a, b, y, K, minimum=2
  ),
  "axis_gain": lambda a, b, y: metrics.axis_gain(
    metrics.sparsity, a, jax.random.key(0), draws=2
  ),
}


def draw():
  """Two views, of which the first is rectified, and uint8 labels; some rows empty."""
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(2, N, D))
  a[3], b[8] = 0, 0
  return np.maximum(a, 0), b, np.arange(N, dtype=np.uint8) % K
