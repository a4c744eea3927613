"""Every public loss, metric and search as a function of two views and labels."""

import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from ncl_jax import augment, encoder, losses, metrics, numerics

N, D, K = 16, 4, 3


def pair(a, b):
  """[N, 2, D] of two views; what is no array is passed on, to be refused."""
  if any(isinstance(x, jax.Array) for x in (a, b)):
    return jnp.stack([a, b], 1)
  arrays = all(isinstance(x, np.ndarray) for x in (a, b))
  return np.stack([a, b], 1) if arrays else a


def ones(a, axis):
  """As many as `a` has rows or dimensions, where it is a matrix."""
  return jnp.ones(a.shape[axis] if getattr(a, "ndim", 0) == 2 else (N, D)[axis])


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
  "moco_v3": lambda a, b, y: losses.moco_v3(pair(a, b), pair(a, b), temperature=0.2),
  "byol": lambda a, b, y: losses.byol(pair(a, b), pair(a, b)),
  "spectral": lambda a, b, y: losses.spectral(pair(a, b)),
  "spectral, weights": lambda a, b, y: losses.spectral(pair(a, b), ones(a, 0)),
  "barlow_twins": lambda a, b, y: losses.barlow_twins(a, b),
  "vicreg": lambda a, b, y: losses.vicreg(a, b),
  "dino": lambda a, b, y: losses.dino(pair(a, b), pair(a, b), 0 * ones(a, 1)),
  "dino_centre": lambda a, b, y: losses.dino_centre(0 * ones(a, 1), pair(a, b)),
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
# On the host, of which jax traces nothing.
HOST = {
  "pair_recall": lambda a, b, y: list(metrics.pair_recall(a, b, y, [1, 3]).values()),
  "zero_shot": lambda a, b, y: metrics.zero_shot(a, b, y),
  "mutual_information": lambda a, b, y: metrics.factors.mutual_information(
    a, np.asarray(y)[:, None], bins=3
  ),
  "nearest": lambda a, b, y: products(a, b, encoder.nearest(b, a, 3)),
  "inverted index": lambda a, b, y: products(
    a, b, encoder.InvertedIndex(as_sparse(b)).nearest(as_sparse(a), 3)
  ),
}


def products(a, b, found):
  """Those of what a search found, -1 for nothing: which of equals is left open."""
  a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
  return np.where(found < 0, -1, np.take_along_axis(a @ b.T, np.maximum(found, 0), 1))


def as_sparse(x):
  if getattr(x, "ndim", 0) != 2 or scipy.sparse.issparse(x):
    return x
  x = np.asarray(x)  # scipy has no sparse arrays of 16 bits
  short = jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize == 2
  return scipy.sparse.csr_array(x.astype(np.float32) if short else x)


# Operations on two images in [0, 1] [2, H, W, C], with a number for each.
JITTERS = ("brightness", "contrast", "saturation", "hue")
IMAGES = {
  name: lambda x, r, name=name: getattr(augment, name)(x, r) for name in JITTERS
}
IMAGES |= {
  "color_jitter": lambda x, r: augment.color_jitter(
    x, np.tile(np.arange(4), (2, 1)), dict.fromkeys(JITTERS, r)
  ),
  "grayscale": lambda x, r: augment.grayscale(x),
  "solarize": lambda x, r: augment.solarize(x),
  "normalize": lambda x, r: augment.normalize(x, (0.5,) * 3, (0.2,) * 3),
  "gaussian_blur": lambda x, r: augment.gaussian_blur(x, r, 2.0),
  "resized_crop": lambda x, r: augment.resized_crop(
    x, np.tile([0, 1, 3, 2], (2, 1)), 2
  ),
  "horizontal_flip": lambda x, r: augment.horizontal_flip(x),
}


def draw():
  """Two views, of which the first is rectified, and uint8 labels; some rows empty."""
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(2, N, D))
  a[3], b[8] = 0, 0
  return np.maximum(a, 0), b, np.arange(N, dtype=np.uint8) % K


EVERY = LOSSES | METRICS | HOST
NO_JVP = {"nt_xent, tiled"}
DTYPES = (
  ["bool", "float16", "bfloat16", "float32", "float64"]
  + [f"int{bits}" for bits in (8, 16, 32, 64)]
  + [f"uint{bits}" for bits in (8, 16, 32, 64)]
)
FLOATS = ("float16", "bfloat16", "float32")
LAYOUTS = {
  "contiguous": lambda x: x,
  "Fortran": np.asfortranarray,
  "strided": lambda x: np.repeat(x, 2, axis=0)[::2],
  "reversed": lambda x: np.ascontiguousarray(x[::-1])[::-1],
  "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
  "mapped": lambda x: on_disk(x),
  "jax": jnp.asarray,
}


def on_disk(x):
  with tempfile.TemporaryFile() as file:
    mapped = np.memmap(file, x.dtype, shape=x.shape)
  mapped[:] = x
  return mapped
