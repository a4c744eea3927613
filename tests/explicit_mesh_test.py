"""Every public numeric function on a sharded batch, on Auto and on Explicit axes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

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
  "scores": lambda a, b, y: losses.scores(a, b[:K]),
  "cross_entropy": lambda a, b, y: losses.cross_entropy(a, b, y),
  "l2_normalize": lambda a, b, y: numerics.l2_normalize(a),
}
METRICS = {
  name: lambda a, b, y, name=name: getattr(metrics, name)(a)
  for name in (
    "sparsity",
    "l0",
    "live_dimensions",
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
  "consistency_at_same_activity": lambda a, b, y: metrics.consistency_at_same_activity(
    a, b, y, K, minimum=2
  ),
  "axis_gain": lambda a, b, y: metrics.axis_gain(
    metrics.sparsity, a, jax.random.key(0), draws=2
  ),
}


def draw():
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(2, N, D))
  a[3], b[8] = 0, 0
  return np.maximum(a, 0), b, np.arange(N, dtype=np.uint8) % K


def split(axis_type):
  mesh = jax.make_mesh((8,), ("data",), (axis_type,))
  rows = NamedSharding(mesh, PartitionSpec("data"))
  return [jax.device_put(x, rows) for x in draw()]


@pytest.mark.parametrize("axis_type", [AxisType.Explicit, AxisType.Auto], ids=str)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients_equal_one_device(name, axis_type, x64):
  def total(a, b, y):
    # Not a plain sum: each row has a weight of its own.
    return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(LOSSES[name](a, b, y)))

  compute = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))
  expected, given = compute(*draw()), split(axis_type)
  seen = compute(*given)
  for x, y in zip(jax.tree.leaves(seen), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)
  if axis_type is AxisType.Explicit:
    assert seen[1][0].sharding.is_equivalent_to(given[0].sharding, 2)


@pytest.mark.parametrize("name", METRICS)
def test_metrics_equal_one_device(name, x64):
  compute = jax.jit(METRICS[name])
  expected = compute(*draw())
  # Explicit axes become Auto within: both are tried where XLA itself has failed.
  for axis_type in [AxisType.Explicit] + [AxisType.Auto] * (name == "activated"):
    seen = compute(*split(axis_type))
    for x, y in zip(jax.tree.leaves(seen), jax.tree.leaves(expected), strict=True):
      np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["nt_xent", "cross_entropy"])
def test_outside_jit_and_below_a_set_mesh(name, x64):
  expected = LOSSES[name](*draw())
  given = split(AxisType.Explicit)
  seen = LOSSES[name](*given)
  np.testing.assert_allclose(seen, expected, rtol=1e-9)
  assert jax.typeof(seen).sharding.spec[0] == "data"  # a row's loss stays with the row
  with jax.set_mesh(given[0].sharding.mesh):
    np.testing.assert_allclose(jax.jit(LOSSES[name])(*given), expected, rtol=1e-9)
