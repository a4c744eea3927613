"""Disentanglement: does each dimension stand for one factor of the data?

All functions take features `f` [N, D] and `factors` [N, L]: the factor values of each
sample, as integers of any width from 0. `seed` sets the split into halves and all other
randomness. They run on the host, in numpy and scikit-learn. A constant dimension is
never chosen. On features without information the scores are not exactly 0, so compare
with the scores for shuffled rows of `f`.
"""

import numpy as np

from ncl_jax import checks
from ncl_jax.errors import InputError

BINS = 20
TREES = 20
VOTES, VOTE_SAMPLES = 800, 64


def mutual_information(
  f: np.ndarray, factors: np.ndarray, bins: int = BINS
) -> np.ndarray:
  """Mutual information of each binned dimension and each factor.

  `I_dk = sum_bv p(b, v) log(p(b, v) / (p(b) p(v)))` over the bins b of dimension d,
  which divide its range into equal widths, and the values v of factor k.

  Args:
    f: [N, D] features.
    factors: [N, L] int.
    bins: per dimension, at least 2; a factor with more values is not fully resolved.

  Returns:
    [D, L] float64 in nats, biased upwards by about (bins - 1)(values - 1) / 2N.

  Raises:
    InputError: wrong shape or dtype, or number of bins.

  >>> mutual_information(np.array([[0.0], [0.0], [1.0], [1.0]]),
  ...                    np.array([[0, 1], [0, 0], [1, 1], [1, 0]])).round(3).tolist()
  [[0.693, 0.0]]
  """
  f, factors = _checked(f, factors)
  checks.whole("bins", bins, 2)
  codes = _discrete(f, bins)
  result = np.empty((f.shape[1], factors.shape[1]))
  for k, values in enumerate(factors.T):
    count = values.max() + 1
    for d, code in enumerate(codes.T):
      counts = np.bincount(code * count + values, minlength=bins * count)
      joint = counts.reshape(bins, count) / len(values)
      independent = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
      on = joint > 0
      result[d, k] = np.sum(joint[on] * np.log(joint[on] / independent[on]))
  return np.maximum(result, 0)


def mig(f: np.ndarray, factors: np.ndarray, bins: int = BINS) -> float:
  """Mutual information gap: does only one dimension encode each factor?

  `mean_k (I_1k - I_2k) / H(v_k)`, where I_1k and I_2k are the largest and second
  largest mutual information of a dimension with factor k. Constant factors are left
  out. `bins` as in `mutual_information`.

  Returns:
    In 0..1; NaN if all factors are constant.

  Raises:
    InputError: as `mutual_information`.

  Source: Chen et al. 2018 (arXiv:1802.04942), Eq. 6.

  >>> mig(np.array([[0.0, 5.0], [1.0, 5.0]]), np.array([[0], [1]]))
  1.0
  """
  information = mutual_information(f, factors, bins)
  entropy = _entropies(factors)
  gap = _gap(information)
  return _mean(gap[entropy > 0] / entropy[entropy > 0])


def modularity(f: np.ndarray, factors: np.ndarray, bins: int = BINS) -> float:
  """Does each dimension carry information about only one factor?

  `mean_d (1 - sum_(k != k*) I_dk^2 / (I_dk*^2 (L - 1)))`, where k* is the factor with
  the most information in dimension d, and L is at least 2. A factor may be spread over
  many dimensions. Dimensions with exactly no information are left out. All others have
  the same weight, even those whose information is due to chance, so compare with MIG.
  `bins` as in `mutual_information`.

  Returns:
    In 0..1; NaN if no dimension has information.

  Raises:
    InputError: as `mutual_information`, or a single factor.

  Source: Ridgeway and Mozer 2018 (arXiv:1802.05312), Section 3.

  >>> modularity(np.array([[0.0], [0.0], [1.0], [1.0]]),
  ...            np.array([[0, 1], [0, 0], [1, 1], [1, 0]]))
  1.0
  """
  if np.ndim(factors) == 2 and np.shape(factors)[1] < 2:
    raise InputError("modularity of 1 factor: it compares 2 or more")
  square = mutual_information(f, factors, bins) ** 2
  most = square.max(1)
  informed = most > 1e-20  # smaller values are rounding errors
  others = (square.sum(1) - most)[informed]
  others /= most[informed] * (square.shape[1] - 1)
  return _mean(1 - others)


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

  f, factors = _checked(f, factors)
  train, test = _halves(len(f), seed)
  x = _standardized(f, train)
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
    scores.append(_mean(np.array(found)))
  return _mean(np.array(scores))


def sap(f: np.ndarray, factors: np.ndarray, seed: int = 0, bins: int = BINS) -> float:
  """Separated attribute predictability: does only one dimension predict a factor?

  `mean_k (S_1k - S_2k)`, where S_dk is the balanced accuracy of predicting factor k
  from thresholds on dimension d alone, and S_1k and S_2k are the two best dimensions.
  The thresholds are the edges of the bins. On one half of the samples, each bin learns
  the value with the largest share of its samples there. The other half is scored.
  Factors are categories, and constant ones are left out. `bins` as in
  `mutual_information`.

  Returns:
    0 to 1 - 1 / values, averaged over factors; NaN if all factors are constant.

  Raises:
    InputError: as `mutual_information`, or fewer than 2 rows.

  Source: Kumar et al. 2018 (arXiv:1711.00848), Section 3.
  """
  f, factors = _checked(f, factors)
  checks.whole("bins", bins, 2)
  codes = _discrete(f, bins)
  train, test = _halves(len(f), seed)
  gaps = []
  for values in factors.T:
    count = values.max() + 1
    if len(np.unique(values)) < 2:
      continue
    accuracy = np.empty(f.shape[1])
    for d, code in enumerate(codes.T):
      cell = code * count + values
      learnt, seen = (
        _per_value(np.bincount(cell[half], minlength=bins * count).reshape(bins, count))
        for half in (train, test)
      )
      present = seen.sum(0) > 0
      hits = seen[np.arange(bins), learnt.argmax(1)].sum()
      accuracy[d] = hits / present.sum()
    gaps.append(_gap(accuracy[:, None])[0])
  return _mean(np.array(gaps))


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

  f, factors = _checked(f, factors)
  train, test = _halves(len(f), seed)
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
  return float(rows @ weight / weight.sum()), _mean(columns[used])


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
  f, factors = _checked(f, factors)
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


def scores(f: np.ndarray, factors: np.ndarray, seed: int = 0) -> dict[str, float]:
  """Every score of this module; L must be at least 2.

  Returns:
    mig, sap, modularity, explicitness, dci_disentanglement, dci_completeness,
    dci_informativeness (accuracy of the forests), factor_vae.

  Raises:
    InputError: wrong shape or dtype, or fewer than 2 rows.
  """
  importance, accuracy = importances(f, factors, seed)
  disentanglement, completeness = dci(importance)
  return {
    "mig": mig(f, factors),
    "sap": sap(f, factors, seed),
    "modularity": modularity(f, factors),
    "explicitness": explicitness(f, factors, seed),
    "dci_disentanglement": disentanglement,
    "dci_completeness": completeness,
    "dci_informativeness": float(accuracy.mean()),
    "factor_vae": factor_vae(f, factors, seed),
  }


def _checked(f: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """f as float64, and factors as int64 with consecutive values from 0."""
  checks.features("f", f)
  factors = np.asarray(checks.array("factors", factors))
  if (
    factors.ndim != 2
    or not factors.shape[1]
    or len(factors) != len(f)
    or not (factors.dtype == bool or np.issubdtype(factors.dtype, np.integer))
    or factors.min() < 0
  ):
    raise InputError(
      f"factors are {factors.dtype}{list(factors.shape)}: they must be integers from "
      f"0, [{len(f)}, L], one row a row of f"
    )
  f = np.asarray(f, np.float64)
  checks.finite("f", f)
  # Values are categories. Renumber them, because tables are as long as the largest.
  values = [np.unique(column, return_inverse=True)[1] for column in factors.T]
  return f, np.stack(values, 1).astype(np.int64)


def _discrete(f: np.ndarray, bins: int) -> np.ndarray:
  """[N, D] the bin of each entry; bin 0 for a constant dimension."""
  low = f.min(0)
  width = f.max(0) - low
  unit = np.divide(
    f - low[None],
    width[None],
    out=np.zeros_like(f),
    where=np.broadcast_to(width[None] > 0, f.shape),
  )
  return np.minimum((unit * bins).astype(np.int64), bins - 1)


def _per_value(counts: np.ndarray) -> np.ndarray:
  """[bins, values] counts as shares of each value's samples."""
  return counts / np.maximum(counts.sum(0, keepdims=True), 1)


def _entropies(factors: np.ndarray) -> np.ndarray:
  shares = [np.unique(v, return_counts=True)[1] / len(v) for v in np.asarray(factors).T]
  return np.array([-np.sum(p * np.log(p)) for p in shares])


def _gap(scores: np.ndarray) -> np.ndarray:
  """[L] largest minus second largest of [D, L]; the largest if D = 1."""
  ordered = -np.sort(-scores, axis=0)
  return ordered[0] - (ordered[1] if len(ordered) > 1 else 0)


def _concentration(r: np.ndarray) -> np.ndarray:
  """`1 - entropy / log M` of the rows of [.., M] divided by their sums."""
  if r.shape[1] == 1:
    return np.ones(len(r))
  total = r.sum(1, keepdims=True)
  p = np.divide(r, total, out=np.zeros_like(r), where=total > 0)
  entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=1)
  return 1 - entropy / np.log(r.shape[1])


def _halves(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
  if n < 2:
    raise InputError(
      f"f has {n} row: one half learns and the other scores, so 2 or more"
    )
  order = np.random.default_rng(seed).permutation(n)
  return order[: n // 2], order[n // 2 :]


def _standardized(f: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """Columns of mean 0 and deviation 1 over `rows`; constant columns become 0."""
  f = f - f[rows].mean(0)[None]
  deviation = f[rows].std(0)
  return np.where(deviation > 1e-9, f / np.where(deviation > 0, deviation, 1), 0)


def _mean(x: np.ndarray) -> float:
  return float(x.mean()) if x.size else float("nan")
