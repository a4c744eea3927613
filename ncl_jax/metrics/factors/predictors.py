"""Scores from fitted predictors, and from votes of the dimension that varies least."""

import numpy as np
import scipy.special

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.metrics.factors import samples

TREES = 20
VOTES, VOTE_SAMPLES = 800, 64


def explicitness(f: np.ndarray, factors: np.ndarray, seed: int = 0) -> float:
  """Can a linear classifier read every value of every factor?

  `2 AUC - 1`, averaged over the values of a factor, then over factors. AUC is the area
  under the ROC curve of one value against all others. Multinomial logistic regression
  is fitted to one half of the samples and scored on the other. The classifier sees all
  dimensions, so rotating f changes nothing. (The paper fits each value separately. A
  joint fit can also read the middle values of an ordered dimension.)

  Returns:
    1 if all values can be read, about 0 by chance; NaN if no value can be scored.

  Raises:
    InputError: wrong shape or dtype, or fewer than 2 rows.

  Source: Ridgeway and Mozer 2018 (arXiv:1802.05312), Section 3.
  """
  from sklearn.linear_model import LogisticRegression
  from sklearn.metrics import roc_auc_score
  from sklearn.preprocessing import StandardScaler

  f, factors = samples.checked(f, factors)
  train, test = samples.halves(len(f), seed)
  x = StandardScaler().fit(f[train]).transform(f)
  scores = []
  for values in factors.T:
    known = np.unique(values[train])
    if len(known) < 2:
      continue
    model = LogisticRegression(C=10.0, max_iter=300, tol=1e-3)
    guess = model.fit(x[train], values[train]).predict_proba(x[test])
    found = [
      2 * roc_auc_score(values[test] == value, guess[:, i]) - 1
      for i, value in enumerate(known)
      if 0 < np.sum(values[test] == value) < len(test)
    ]
    scores.append(samples.mean(np.array(found)))
  return samples.mean(np.array(scores))


def importances(
  f: np.ndarray, factors: np.ndarray, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
  """How much and how well a random forest uses each dimension to predict each factor.

  Returns:
    `(importance [D, L], accuracy [L])`: mean decrease of impurity on one half of the
    samples, where columns sum to 1 (or 0 if no tree branches); accuracy on the other.

  Raises:
    InputError: wrong shape or dtype, or fewer than 2 rows.
  """
  from sklearn.ensemble import RandomForestClassifier

  f, factors = samples.checked(f, factors)
  train, test = samples.halves(len(f), seed)
  importance = np.empty((f.shape[1], factors.shape[1]))
  accuracy = np.empty(factors.shape[1])
  for k, values in enumerate(factors.T):
    # Every dimension is a candidate at every branch, so that dimensions without
    # information get no importance.
    forest = RandomForestClassifier(TREES, max_features=None, random_state=seed)
    forest.fit(f[train], values[train])
    importance[:, k] = forest.feature_importances_
    accuracy[k] = forest.score(f[test], values[test])
  return importance, accuracy


def dci(importance: np.ndarray) -> tuple[float, float]:
  """Disentanglement and completeness of an importance matrix R [D, L].

  Disentanglement of dimension d: `1 - H(R_d. / sum_k R_dk) / log L`, averaged with the
  weights `sum_k R_dk / sum R`. Completeness of factor k:
  `1 - H(R_.k / sum_d R_dk) / log D`, averaged over factors.

  Returns:
    `(disentanglement, completeness)` in 0..1; 1 for a single factor or a single
    dimension, respectively. NaN if all importances are 0.

  Raises:
    InputError: not a matrix, or a negative entry.

  Source: Eastwood and Williams 2018 (openreview By-7dz-AZ), Section 2.

  >>> dci(np.array([[1.0, 0.0], [0.0, 0.5], [0.0, 0.5]]))[0]
  1.0
  """
  checks.features("importance", importance)
  r = np.asarray(importance, np.float64)
  checks.finite("importance", r)
  if not (r >= 0).all():
    raise InputError("importance has an entry that is not 0 or above")
  weight = r.sum(1)
  if not weight.any():
    return np.nan, np.nan
  rows, columns = _concentration(r), _concentration(r.T)
  used = r.sum(0) > 0
  return float(rows @ weight / weight.sum()), samples.mean(columns[used])


def factor_vae(
  f: np.ndarray, factors: np.ndarray, seed: int = 0, votes: int = VOTES
) -> float:
  """FactorVAE score: which dimension varies least when one factor is fixed?

  For each vote a factor, one of its values and 64 samples with that value are drawn.
  The dimension with the least variance, relative to its variance over all samples,
  votes for the factor. A majority classifier from dimension to factor is fitted to
  `votes` votes. The score is its accuracy on as many other votes. Each factor value
  should have dozens of samples.

  Returns:
    In 0..1, 1 / L by chance; NaN if all dimensions are constant.

  Raises:
    InputError: wrong shape or dtype, or no votes.

  Source: Kim and Mnih 2018 (arXiv:1802.05983), Section 4.
  """
  f, factors = samples.checked(f, factors)
  checks.whole("votes", votes, 1)
  variance = f.var(0)
  # Relative to its size, because rounding gives a constant column some variance.
  varies = variance > 1e-12 * np.maximum(1e-12, np.square(f).mean(0))
  if not varies.any():
    return np.nan
  f = f[:, varies] / np.sqrt(variance[varies])
  rng = np.random.default_rng(seed)
  rows_of = [
    [np.flatnonzero(column == value) for value in range(column.max() + 1)]
    for column in factors.T
  ]
  counts = np.zeros((2, f.shape[1], factors.shape[1]))
  for i in range(2 * votes):
    k = rng.integers(factors.shape[1])
    same = rows_of[k][factors[rng.integers(len(f)), k]]
    batch = f[rng.choice(same, VOTE_SAMPLES)]
    counts[i % 2, batch.var(0).argmin(), k] += 1
  learnt, scored = counts
  hits = scored[np.arange(len(scored)), learnt.argmax(1)]
  return float(hits.sum() / votes)


def _concentration(r: np.ndarray) -> np.ndarray:
  """`1 - entropy / log M` of the rows of [.., M] divided by their sums."""
  if r.shape[1] == 1:
    return np.ones(len(r))
  total = r.sum(1, keepdims=True)
  p = r / np.where(total > 0, total, 1)
  return 1 - scipy.special.entr(p).sum(1) / np.log(r.shape[1])
