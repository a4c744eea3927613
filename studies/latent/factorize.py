"""The best that features of a width can do: eigenvalues, and non-negative factors."""

import numpy as np


def residual(matrix: np.ndarray, factor: np.ndarray) -> float:
  """`||A - F F^T||^2 / ||A||^2`.

  Args:
    matrix: [M, M] A, symmetric.
    factor: [M, D] F.
  """
  return float(np.sum((matrix - factor @ factor.T) ** 2) / np.sum(matrix**2))


def best_residual(matrix: np.ndarray, width: int) -> float:
  """The least residual of any F [M, width]: the squares of the eigenvalues left out.

  Args:
    matrix: [M, M], symmetric.
    width: D.

  Returns:
    `sum of the squared eigenvalues but the width largest positive / ||A||^2`.

  >>> best_residual(np.diag([3.0, 2.0, 1.0]), 2)
  0.07142857142857142
  """
  values = np.linalg.eigvalsh(matrix)[::-1]
  kept = np.maximum(values[:width], 0)
  return float((np.sum(values**2) - np.sum(kept**2)) / np.sum(values**2))


def symmetric_nmf(
  matrix: np.ndarray,
  width: int,
  *,
  restarts: int = 20,
  steps: int = 3000,
  seed: int = 0,
) -> np.ndarray:
  """Non-negative F of least `||A - F F^T||^2`, the best of many starts.

  The damped multiplicative update `F <- F (1/2 + 1/2 (A F) / (F F^T F))`, which keeps
  signs, never raises the objective, and needs no step size.

  Args:
    matrix: [M, M] A, symmetric, entries at least 0.
    width: D.
    restarts: random starts.
    steps: updates of each.
    seed: of the starts.

  Returns:
    [M, D]; a local optimum, as the problem is not convex.

  Reference: Ding, He and Simon 2005, "On the equivalence of nonnegative matrix
  factorization and spectral clustering", Section 4.

  >>> a = np.array([[1.0, 0.0], [0.0, 1.0]])
  >>> residual(a, symmetric_nmf(a, 2)) < 1e-6
  True
  """
  rng = np.random.default_rng(seed)
  shape = (restarts, len(matrix), width)
  f = rng.uniform(0, 2 * np.sqrt(matrix.mean() / width), shape)
  for _ in range(steps):
    gram = f.swapaxes(1, 2) @ f
    f *= 0.5 + 0.5 * (matrix[None] @ f) / np.maximum(f @ gram, 1e-12)
  return min(f, key=lambda factor: residual(matrix, factor))
