"""Linear changes of axes that look for meaning: varimax and independent components."""

import warnings

import numpy as np


def varimax(f: np.ndarray, iterations: int = 100) -> np.ndarray:
  """The rotation R [D, D] that maximises `sum_j var_n((f R)_nj^2)`: sparse axes.

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
  return rotation


def orient(turned: np.ndarray, rotation: np.ndarray) -> np.ndarray:
  """The rotation with each axis pointing where the longer tail is.

  Args:
    turned: [N, D], features after the rotation.
  """
  third = np.mean((turned - turned.mean(0)) ** 3, 0)
  return rotation * np.where(third < 0, -1.0, 1.0)


def ica(z: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
  """Unmixing matrix [D, M] and mean [D] of the independent components of z.

  Args:
    z: [N, D]; directions without variance are left out, so M <= D.

  Reference: Hyvarinen and Oja 2000 (FastICA), scikit-learn's.
  """
  z = np.asarray(z, np.float64)
  size = np.linalg.svd(z - z.mean(0), compute_uv=False)
  components = int(np.sum(size > 1e-5 * size[0]))
  from sklearn.decomposition import FastICA  # two seconds that few runs need

  model = FastICA(components, whiten="unit-variance", max_iter=200, random_state=seed)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # not converged: it stays a control
    model.fit(z)
  return model.components_.T, model.mean_
