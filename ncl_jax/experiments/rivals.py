"""Rivals of NCL's axes: what can be made of CL's f after training, in seconds.

Each is fitted to CL's f of the training images (rows of unit length) and gets as many
dimensions, or as many active ones, as NCL has.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.evaluators.run import Run
from ncl_jax.experiments import baseline_features, rotations

Encode = Callable[[np.ndarray], np.ndarray]
FITTED_ROWS = 50_000  # training images at most
SHARES = (0.95, 0.99)  # of the variance, that the directions of a rotation hold


@dataclasses.dataclass(frozen=True)
class Rival:
  """A rival.

  Attributes:
    fit: from CL's f of training images, NCL's run and a seed to the features.
  """

  label: str
  note: str
  fit: Callable[[np.ndarray, Run, int], Encode]


def rival(key: str, cl: Run, ncl: Run) -> baseline_features.Codes:
  """The features of a rival, of `RIVALS`, for the runs of one seed: codes of CL's f.

  Raises:
    InputError: if `cl` has a transform.
  """
  if cl.config.loss.transform != "identity":
    raise InputError(
      f"{cl.path} has the transform {cl.config.loss.transform}: rivals are made of "
      "CL's features, which have none"
    )
  f = baseline_features.some_rows(cl.layer("f", "train"), cl.config.seed, FITTED_ROWS)
  encode = RIVALS[key].fit(f, ncl, cl.config.seed)
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
  falling = np.sort(rates[rates > 0])[::-1][: len(order)]
  cut = np.full(f.shape[1], np.inf)
  for d, rate in zip(order, falling, strict=False):
    # Between the last that stays and the first that does not.
    values = np.sort(f[:, d])[::-1]
    stay = min(max(1, round(rate * len(values))), len(values))
    below = values[stay] if stay < len(values) else values[-1] - 1e-6
    cut[d] = (values[stay - 1] + below) / 2
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


def subspace(f: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
  """Mean [D] and the fewest principal directions [D, R] that hold a share of variance.

  Args:
    share: above 0 and at most 1.

  >>> subspace(np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.1]]), 0.95)[1].shape
  (2, 1)
  """
  f = np.asarray(f, np.float64)
  mean = f.mean(0)
  values, vectors = np.linalg.eigh((f - mean).T @ (f - mean))
  values = np.maximum(values[::-1], 0)
  held = np.cumsum(values)
  keep = 1 + int(np.searchsorted(held, share * held[-1] * (1 - 1e-12)))
  return mean, vectors[:, ::-1][:, : min(keep, len(values))]


def pca(f: np.ndarray, share: float) -> Encode:
  """Principal components that hold a share of the variance; see `subspace`."""
  mean, directions = subspace(f, share)
  return lambda x: (x - mean) @ directions


def varimax(f: np.ndarray, share: float) -> Encode:
  """The same, rotated to the sparsest axes, long tails upwards."""
  mean, directions = subspace(f, share)
  z = (f - mean) @ directions
  rotation = rotations.varimax(z)
  axes = directions @ rotations.orient(z @ rotation, rotation)
  return lambda x: (x - mean) @ axes


def ica(f: np.ndarray, share: float, seed: int) -> Encode:
  """Independent components in the same directions."""
  mean, directions = subspace(f, share)
  unmixing, centre = rotations.ica((f - mean) @ directions, seed)
  return lambda x: ((x - mean) @ directions - centre) @ unmixing


def _kmeans_as_active(f: np.ndarray, ncl: Run, seed: int) -> Encode:
  active = max(1, round(float(_active(ncl).sum(1).mean())))
  width = min(config_lib.widths(ncl.config)["z"], len(f))
  return kmeans(f, width, active, seed)


def _varimax(share: float) -> Rival:
  return Rival(
    f"varimax, {share:.0%}",
    f"centred, in the directions of {share:.0%} of the variance, rotated to sparse "
    "axes",
    lambda f, ncl, seed: varimax(f, share),
  )


RIVALS = {
  "cl_both_signs": Rival(
    "both signs", "f and -f, rectified", lambda f, ncl, seed: both_signs
  ),
  "cl_matched_rates": Rival(
    "NCL's activation rates",
    "of each dimension the images above a value, as many as activate one of NCL's; "
    "CL's dimension of most variance has NCL's most frequent one's",
    lambda f, ncl, seed: matched_rates(f, _active(ncl).mean(0)),
  ),
  "cl_kmeans": Rival(
    "k-means",
    "as many clusters as NCL has dimensions; of each image as many of the nearest as "
    "NCL activates, at most",
    _kmeans_as_active,
  ),
  **{f"cl_varimax_{share:.0%}".removesuffix("%"): _varimax(share) for share in SHARES},
  "cl_pca": Rival(
    f"PCA, {SHARES[0]:.0%}",
    f"centred, in the directions of {SHARES[0]:.0%} of the variance",
    lambda f, ncl, seed: pca(f, SHARES[0]),
  ),
  "cl_ica": Rival(
    f"ICA, {SHARES[0]:.0%}",
    f"independent components in the directions of {SHARES[0]:.0%} of the variance",
    lambda f, ncl, seed: ica(f, SHARES[0], seed),
  ),
}
