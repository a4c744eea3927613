"""Scores of single dimensions: what each tells about each factor."""

import numpy as np

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.metrics.factors import samples

BINS = 20


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
  f, factors = samples.checked(f, factors)
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
  return samples.mean(gap[entropy > 0] / entropy[entropy > 0])


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
  return samples.mean(1 - others)


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
  f, factors = samples.checked(f, factors)
  checks.whole("bins", bins, 2)
  codes = _discrete(f, bins)
  train, test = samples.halves(len(f), seed)
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
  return samples.mean(np.array(gaps))


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
