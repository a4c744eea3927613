"""Losses and metrics from their definitions, in numpy."""

import numpy as np
from numeric_functions import K


def unit(x):
  length = np.linalg.norm(x, axis=1, keepdims=True)
  return np.divide(x, length, out=np.zeros_like(x), where=length > 0)


def log_sum(s):
  top = s.max(1)
  return top + np.log(np.exp(s - top[:, None]).sum(1))


def info_nce(a, b, label_of=None):
  """The row's positives: its other view, or with labels all of its class."""
  z = np.stack([a, b], 1).reshape(-1, a.shape[1])
  s = unit(z) @ unit(z).T / 0.2
  label_of = np.arange(len(a)) if label_of is None else label_of
  same = np.repeat(label_of, 2)[:, None] == np.repeat(label_of, 2)[None]
  np.fill_diagonal(same, False)
  np.fill_diagonal(s, -np.inf)
  positives = np.where(same, s, 0).sum(1) / same.sum(1)
  return (log_sum(s) - positives).reshape(-1, 2)


def both_ways(a, b):
  s = unit(a) @ unit(b).T / 0.2
  return (log_sum(s) + log_sum(s.T)) / 2 - np.diag(s)


def of_pairs(a, b):
  s = a @ b.T
  away = s[~np.eye(len(s), dtype=bool)]
  return np.mean(away**2) - 2 * np.mean(np.diag(s))


def cross_correlation(a, b):
  a, b = ((x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5) for x in (a, b))
  off = a.T @ b / len(a)
  own = np.diag(off)
  return np.sum((1 - own) ** 2) + 0.0051 * (np.sum(off**2) - np.sum(own**2))


def spread(x):
  c = np.cov(x.T)
  hinge = np.maximum(1 - np.sqrt(np.diag(c) + 1e-4), 0)
  return 25 * hinge.mean() + (np.sum(c**2) - np.sum(np.diag(c) ** 2)) / x.shape[1]


def inside_the_logarithm(a, b, y):
  z = unit(np.stack([a, b], 1).reshape(-1, a.shape[1]))
  s, of = z @ z.T / 0.2, np.repeat(y, 2)
  np.fill_diagonal(s, -np.inf)
  positives = np.where(of[:, None] == of[None], s, -np.inf)
  return (log_sum(s) - log_sum(positives)).reshape(-1, 2)


def to_keys(q, k):
  s = unit(q) @ unit(k).T / 0.2
  return 2 * 0.2 * (log_sum(s) - np.diag(s))


def apart(p, t):
  return 2 - 2 * np.sum(unit(p) * unit(t), 1)


def log_softmax(s):
  return s - log_sum(s)[:, None]


def of_prototypes(s, t):
  return -np.sum(np.exp(log_softmax(t / 0.04)) * log_softmax(s / 0.1), 1)


def of_true_class(a, w, y):
  s = a @ w.T
  return log_sum(s) - s[np.arange(len(s)), y]


def columns_alike(a):
  a = a[:, (a != 0).any(0)]
  c = np.abs(unit(a.T) @ unit(a.T).T - np.eye(a.shape[1]))
  return c.mean() if c.size else np.nan


def commonest_share(a, y):
  on = [y[np.abs(x) > 1e-5] for x in a.T]
  return np.array([np.bincount(x).max() / len(x) if len(x) else np.nan for x in on])


def shares_of_the_nearest(s):
  """Of the 3 nearest in each row, those equal to the third by fractions."""
  cut = np.sort(s, 1)[:, -3:-2]
  above, tied = s > cut, s == cut
  left = 3 - above.sum(1, keepdims=True)
  return above + tied * left / tied.sum(1, keepdims=True)


def of_class(weights, y):
  """[rows, K] sums of the weights [rows, N] of each class."""
  return weights @ np.eye(K)[y]


def votes(a, b, y):
  s = unit(a) @ unit(b).T
  return of_class(shares_of_the_nearest(s) * np.exp(s / 0.07), y)


def precision(a, b, y):
  s = unit(a) @ unit(b).T
  if a is b:
    np.fill_diagonal(s, -np.inf)
  return of_class(shares_of_the_nearest(s), y)[np.arange(len(a)), y] / 3


def pure(a, y):
  """Of the 5 largest, which are 0.3 of 16, those equal to the fifth by fractions."""
  cut = np.sort(a, 0)[-5]
  above, tied = a > cut, a == cut
  weight = above + tied * (5 - above.sum(0)) / tied.sum(0)
  return of_class(weight.T, y).max(1) / 5


def spectrum_entropy(a):
  p = np.linalg.svd(a, compute_uv=False)
  p = p[p > 0] / p.sum()
  return -np.sum(p * np.log(p))


# From the definitions, in float64. `c` is the first view as a constant: what gradients
# are not taken of.
BY_HAND = {
  "nt_xent": lambda a, b, y, c: info_nce(a, b),
  "nt_xent, tiled": lambda a, b, y, c: info_nce(a, b),
  "sup_con": lambda a, b, y, c: info_nce(a, b, y),
  "sup_con, blocks": lambda a, b, y, c: info_nce(a, b, y),
  "supervised_nt_xent": lambda a, b, y, c: inside_the_logarithm(a, b, y),
  "clip": lambda a, b, y, c: both_ways(a, b),
  "clip, blocks": lambda a, b, y, c: both_ways(a, b),
  "moco_v3": lambda a, b, y, c: to_keys(a, b) + to_keys(b, c),
  "byol": lambda a, b, y, c: apart(a, b) + apart(b, c),
  "spectral": lambda a, b, y, c: of_pairs(a, b),
  "barlow_twins": lambda a, b, y, c: cross_correlation(a, b),
  "vicreg": lambda a, b, y, c: 25 * np.mean((a - b) ** 2) + spread(a) + spread(b),
  "dino": lambda a, b, y, c: (of_prototypes(a, b) + of_prototypes(b, c)) / 2,
  "dino_centre": lambda a, b, y, c: 0.1 * (a.mean(0) + b.mean(0)) / 2,
  "scores": lambda a, b, y, c: a @ b.T,
  "cross_entropy": lambda a, b, y, c: of_true_class(a, b, y),
  "l2_normalize": lambda a, b, y, c: unit(a),
  "sparsity": lambda a, b, y, c: np.mean(np.abs(a) < 1e-5),
  "l0": lambda a, b, y, c: (np.abs(a) > 1e-5).sum(1),
  "active_dimensions": lambda a, b, y, c: (np.abs(a) > 1e-5).any(0),
  "num_zero_rows": lambda a, b, y, c: (a == 0).all(1).sum(),
  "correlation": lambda a, b, y, c: unit(a.T) @ unit(a.T).T,
  "orthogonality": lambda a, b, y, c: columns_alike(a),
  "expected_activation": lambda a, b, y, c: unit(a).mean(0),
  "class_consistency": lambda a, b, y, c: commonest_share(a, y),
  "purity": lambda a, b, y, c: pure(a, y),
  "knn_scores": lambda a, b, y, c: votes(a, b, y),
  "knn_predict": lambda a, b, y, c: votes(a, b, y).argmax(1),
  "retrieval": lambda a, b, y, c: precision(a, a, y),
  "retrieval, gallery": lambda a, b, y, c: precision(a, b, y),
}
