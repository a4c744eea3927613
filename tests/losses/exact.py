"""NT-Xent and its gradients from the definition, in float64 numpy."""

import numpy as np


def nt_xent(z, temperature, cotangents=None):
  """(losses [N, 2], dz, dT) for cotangents of the losses; None: of their mean."""
  n = len(z)
  z = np.asarray(z, np.float64).reshape(2 * n, -1)
  c = np.full(2 * n, 0.5 / n) if cotangents is None else np.ravel(cotangents)
  norms = np.linalg.norm(z, axis=1, keepdims=True)
  f = np.divide(z, norms, out=np.zeros_like(z), where=norms > 0)
  rows = np.arange(2 * n)
  s = f @ f.T / temperature
  others = np.where(rows[:, None] == rows, -np.inf, s)
  top = others.max(axis=1, keepdims=True)
  log_sums = top + np.log(np.exp(others - top).sum(axis=1, keepdims=True))
  losses = log_sums[:, 0] - s[rows, rows ^ 1]
  ds = np.exp(others - log_sums)
  ds[rows, rows ^ 1] -= 1
  ds *= c[:, None]
  df = (ds + ds.T) @ f / temperature
  df -= f * np.sum(f * df, axis=1, keepdims=True)
  dz = np.divide(df, norms, out=np.zeros_like(z), where=norms > 0)
  return losses.reshape(n, 2), dz.reshape(n, 2, -1), -np.sum(ds * s) / temperature
