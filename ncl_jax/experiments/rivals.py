"""Rivals of NCL's axes: what can be made of CL's f after training, in seconds.

Each is fitted to CL's f of the training images (rows of unit length) and gets as many
dimensions, or as many active ones, as NCL has.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ncl_jax import config as config_lib
from ncl_jax.evaluators.run import Run
from ncl_jax.experiments import baseline_features

Encode = Callable[[np.ndarray], np.ndarray]
FITTED_ROWS = 50_000  # training images at most


# From CL's f of training images, NCL's run and a seed to the features.
Fit = Callable[[np.ndarray, Run, int], Encode]


def rival(fit: Fit, cl: Run, ncl: Run) -> baseline_features.Codes:
  """The features of a rival for the runs of one seed: codes of CL's f."""
  f = baseline_features.some_rows(cl.layer("f", "train"), cl.config.seed, FITTED_ROWS)
  encode = fit(f, ncl, cl.config.seed)
  return baseline_features.codes(cl, encode, encode(f[:1]).shape[1], "f")


def _active(ncl: Run) -> np.ndarray:
  """Where an image activates a dimension of NCL's f, [N, D] of the training images."""
  return np.abs(ncl.layer("f", "train")) > ncl.config.eval.threshold


def both_signs(f: np.ndarray) -> np.ndarray:
  """The positive parts of f [N, D], then of -f: [N, 2 D], none negative."""
  return np.maximum(np.concatenate([f, -f], axis=1), 0)


def matched_rates(f: np.ndarray, rates: np.ndarray) -> Encode:
  """Cuts each dimension where as many training images stay as one of NCL's activates.

  Args:
    f: [N, D] of training images.
    rates: [E] shares of the training images that activate NCL's dimensions.

  Returns:
    [N, D] -> [N, D], not negative: what lies above each dimension's cut. The dimension
    of largest variance gets the largest rate; those for which no rate is left are 0.
  """
  order = np.argsort(-f.var(0), kind="stable")
  cut = np.full(f.shape[1], np.inf)
  for d, rate in zip(order, np.sort(rates[rates > 0])[::-1], strict=False):
    # Between the last that stays and the first that does not.
    values = np.append(np.sort(f[:, d])[::-1], f[:, d].min() - 1e-6)
    stay = max(1, round(rate * len(f)))
    cut[d] = values[stay - 1 : stay + 1].mean()
  return lambda x: np.maximum(x - cut, 0)


def kmeans(f: np.ndarray, width: int, active: int, seed: int) -> Encode:
  """How near an image is to its nearest clusters, and 0 for all others.

  Args:
    f: [N, D] of training images.
    active: of each image so many stay at most.

  Returns:
    [N, D] -> [N, width]: how much nearer than on average a cluster is, 0 for those that
    are not among the nearest.
  """
  from sklearn.cluster import MiniBatchKMeans  # two seconds that few runs need

  model = MiniBatchKMeans(width, random_state=seed, n_init=3, batch_size=4096).fit(f)

  def encode(x):
    distance = model.transform(np.ascontiguousarray(x, f.dtype))
    near = np.maximum(distance.mean(1, keepdims=True) - distance, 0)
    last = np.partition(near, -min(active, width), axis=1)[:, [-min(active, width)]]
    return np.where(near >= last, near, 0)

  return encode


def _principal(f: np.ndarray, share: float) -> Any:
  from sklearn.decomposition import PCA

  return PCA(share, svd_solver="covariance_eigh").fit(np.asarray(f, np.float64))


def pca(f: np.ndarray, share: float) -> Encode:
  """The fewest principal components that hold a share of the variance."""
  return _principal(f, share).transform


def varimax(f: np.ndarray, share: float) -> Encode:
  """The same, rotated to the sparsest axes, long tails upwards."""
  components = _principal(f, share)
  rotation = sparse_axes(components.transform(f))
  return lambda x: components.transform(x) @ rotation


def sparse_axes(f: np.ndarray, iterations: int = 100) -> np.ndarray:
  """The rotation R [D, D] that maximises `sum_j var_n((f R)_nj^2)`: varimax.

  Each axis points where the longer tail is.

  Args:
    f: [N, D].

  Reference: Kaiser 1958, "The varimax criterion for analytic rotation".
  """
  f = np.asarray(f, np.float64)
  rotation, before = np.eye(f.shape[1]), 0.0
  for _ in range(iterations):
    turned = f @ rotation
    slope = f.T @ (turned**3 - turned * np.mean(turned**2, 0))
    u, s, v = np.linalg.svd(slope)
    rotation, now = u @ v, s.sum()
    if now < before * (1 + 1e-6):
      break
    before = now
  turned = f @ rotation
  third = np.mean((turned - turned.mean(0)) ** 3, 0)
  return rotation * np.where(third < 0, -1.0, 1.0)


def ica(f: np.ndarray, share: float, seed: int) -> Encode:
  """Independent components in the same directions, by FastICA."""
  from sklearn.decomposition import FastICA

  components = _principal(f, share)
  model = FastICA(whiten="unit-variance", max_iter=200, random_state=seed)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # not converged: it stays a control
    model.fit(components.transform(f))
  return lambda x: model.transform(components.transform(x))


def _kmeans_as_active(f: np.ndarray, ncl: Run, seed: int) -> Encode:
  active = max(1, round(float(_active(ncl).sum(1).mean())))
  width = min(config_lib.widths(ncl.config)["z"], len(f))
  return kmeans(f, width, active, seed)


def _varimax(share: float) -> tuple[str, str, Fit]:
  return (
    f"varimax, {share:.0%}",
    f"centred, in the directions of {share:.0%} of the variance, rotated to sparse "
    "axes",
    lambda f, ncl, seed: varimax(f, share),
  )


# (label, what it is of CL's f, fit).
RIVALS: dict[str, tuple[str, str, Fit]] = {
  "cl_both_signs": (
    "both signs",
    "f and -f, rectified",
    lambda f, ncl, seed: both_signs,
  ),
  "cl_matched_rates": (
    "NCL's activation rates",
    "of each dimension the images above a value, as many as activate one of NCL's; "
    "CL's dimension of most variance has NCL's most frequent one's",
    lambda f, ncl, seed: matched_rates(f, _active(ncl).mean(0)),
  ),
  "cl_kmeans": (
    "k-means",
    "as many clusters as NCL has dimensions; of each image as many of the nearest as "
    "NCL activates, at most",
    _kmeans_as_active,
  ),
  "cl_varimax_95": _varimax(0.95),
  "cl_varimax_99": _varimax(0.99),
  "cl_pca": (
    "PCA, 95%",
    "centred, in the directions of 95% of the variance",
    lambda f, ncl, seed: pca(f, 0.95),
  ),
  "cl_ica": (
    "ICA, 95%",
    "independent components in the directions of 95% of the variance",
    lambda f, ncl, seed: ica(f, 0.95, seed),
  ),
}
