"""How near features are to the truth: after matching, after a rotation, to a probe."""

import numpy as np
from scipy.optimize import linear_sum_assignment

from studies.latent.space import Space


def matched_correlation(
  f: np.ndarray, target: np.ndarray, weights: np.ndarray
) -> float:
  """Mean |correlation| of target columns with the dimensions matched to them.

  One to one, as to maximise the sum (the Hungarian method). A column without a
  dimension, or with a constant one, counts as 0.

  Args:
    f: [M, D] features.
    target: [M, C].
    weights: [M] probabilities of the rows.

  >>> target = np.eye(3)
  >>> round(matched_correlation(target[:, [2, 0, 1]], target, np.full(3, 1 / 3)), 6)
  1.0
  """
  a, b = (_standardized(np.asarray(x, np.float64), weights) for x in (f, target))
  correlation = np.abs((a * weights[:, None]).T @ b)
  pairs = linear_sum_assignment(-correlation)
  return float(correlation[pairs].sum() / target.shape[1])


def best_rotation(f: np.ndarray, target: np.ndarray, weights: np.ndarray) -> np.ndarray:
  """Features turned towards the target: f Q, `Q^T Q = 1`, of least squared distance.

  Args:
    f: [M, D] features.
    target: [M, C]; where D > C, Q drops what is not needed.
    weights: [M] probabilities of the rows.

  Returns:
    [M, C], or [M, D] where D < C, then of the target's columns most alike.

  Reference: Schoenemann 1966, "A generalized solution of the orthogonal Procrustes
  problem".
  """
  u, _, vt = np.linalg.svd(f.T @ (target * weights[:, None]), full_matrices=False)
  return f @ (u @ vt)


def random_rotation(width: int, seed: int) -> np.ndarray:
  """[D, D] orthogonal, uniformly drawn."""
  normal = np.random.default_rng(seed).normal(size=(width, width))
  q, r = np.linalg.qr(normal)
  return q * np.sign(np.diag(r))[None]


def probe_error(space: Space, f: np.ndarray, labels: int, seed: int) -> float:
  """Error of logistic regression on features, from a number of labelled samples.

  Args:
    space: gives the samples, their classes, and the exact error of every guess.
    f: [M, D] features.
    labels: how many pairs (x, c) are drawn.
    seed: of the draw.

  Returns:
    `1 - sum_x P(x) P(guess(x) | x)`; `space.bayes_error` at the least.
  """
  from sklearn.linear_model import LogisticRegression

  rng = np.random.default_rng(seed)
  classes = rng.choice(len(space.prior), labels, p=space.prior)
  joint = np.cumsum(space.conditional, axis=0)
  u = rng.uniform(size=labels)
  rows = (joint[:, classes] < u[None] * joint[-1, classes][None]).sum(0)
  guess = np.full(len(f), classes[0])
  if len(np.unique(classes)) > 1:
    scale = max(float(np.abs(f).max()), 1e-12)
    model = LogisticRegression(C=100.0, max_iter=1000, tol=1e-3)
    guess = model.fit(f[rows] / scale, classes).predict(f / scale)
  right = space.posterior[np.arange(len(f)), guess]
  return float(1 - space.marginal @ right)


def _standardized(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
  x = x - (weights @ x)[None]
  deviation = np.sqrt(weights @ x**2)
  return np.where(deviation > 1e-9, x / np.where(deviation > 0, deviation, 1), 0)
