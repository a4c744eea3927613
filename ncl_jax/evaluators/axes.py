"""Same axes again? Dimensions of two runs matched one to one, and how well they agree.

NCL's features are unique up to a permutation of dimensions, CL's only up to a rotation:
two seeds of NCL should find the same dimensions in another order.
"""

from typing import Any

import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from scipy.optimize import linear_sum_assignment

from ncl_jax import checks
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators import program

SHUFFLES = 10
ROTATIONS = 3


def evaluate(
  config: ConfigDict,
  variables: Any,
  source: Source,
  mesh: Mesh,
  *,
  other: program.Run,
) -> dict[str, Any]:
  """Agreement of this run's dimensions with another's, on `h` and on `f`.

  Args:
    config: resolved settings.
    variables: {"params", "batch_stats"}.
    source: data that both networks see; labels are not used.
    mesh: for the forward passes.
    other: the other run, such as another seed; its own preprocessing is used.

  Returns:
    {"settings", "h": {...}, "f": {...}}; see `agreement`.

  Raises:
    InputError: if the two runs have different transforms.
  """
  if other.config.loss.transform != config.loss.transform:
    raise InputError(
      f"the transforms are {config.loss.transform} here and "
      f"{other.config.loss.transform} in {other.path}: axes compares runs of one method"
    )
  runs = ((config, variables), (other.config, other.variables))
  (train, other_train), (test, other_test) = (
    [program.extract(*run, source, split, mesh) for run in runs]
    for split in ("train", "test")
  )
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      matched_on="train",
      other=str(other.path),
      other_step=other.step,
      other_seed=other.config.seed,
      threshold=config.eval.threshold,
      row_shuffles=SHUFFLES,
      images=len(test.labels),
    )
  }
  for layer in program.LAYERS:
    result[layer] = agreement(
      *(x.layer(layer, config.loss.transform) for x in (train, other_train)),
      *(x.layer(layer, config.loss.transform) for x in (test, other_test)),
      threshold=config.eval.threshold,
      seed=config.seed,
    )
  return result


def agreement(
  train_a: np.ndarray,
  train_b: np.ndarray,
  test_a: np.ndarray,
  test_b: np.ndarray,
  *,
  threshold: float,
  seed: int,
) -> dict[str, float]:
  """How well dimensions that are matched one to one correlate, and by what axes.

  The matching maximises the sum of the correlations over images (the Hungarian method);
  dimensions dead in training, which agree with nothing, are left out. A dimension of
  features that are nowhere negative has a direction. If an entry is below 0, the
  direction is arbitrary and |correlation| counts.

  Args:
    train_a: [N, D] features of one run.
    train_b: [N, E] of the other, of the same images.
    test_a: [M, D] of other images.
    test_b: [M, E].
    threshold: |f| below it counts as zero.
    seed: of the shuffles.

  Returns:
    alignment: how far the axes come again beyond what the span alone explains,
    `(c - c_rot) / (1 - c_rot)`, 1 for the same axes and 0 for axes at random; c is the
    correlation of the test images in which a pair counts by its shares of the two runs'
    variance in training, c_rot the same after the rotations below.
    correlation (of the test images, matched on the training images), correlation_chance
    (the same after shuffling one run's images: no shared structure),
    correlation_rotated (the same after random rotations of the other run's features:
    what any axes reach that span what its axes span, much if that is few directions;
    signs count if they do without the rotation), correlation_matched_on_test and its
    _chance (what matching on the very images that score adds), matched (number of
    pairs), live_dimensions and other_live_dimensions. NaN without active dimensions.
  """
  for name, x in zip(
    ("train_a", "train_b", "test_a", "test_b"),
    (train_a, train_b, test_a, test_b),
    strict=True,
  ):
    checks.finite(name, x)
  raw_a, raw_train, raw_test = train_a, train_b, test_b
  signed = any((x < 0).any() for x in (train_a, train_b, test_a, test_b))
  live_a, live_b = ((np.abs(x) > threshold).any(0) for x in (train_a, train_b))
  a, b, test_a, test_b = (
    _standardize(x[:, live])
    for x, live in (
      (train_a, live_a),
      (train_b, live_b),
      (test_a, live_a),
      (test_b, live_b),
    )
  )

  def correlation(one, other):
    c = one.T @ other
    return np.abs(c) if signed else c

  def score(train, test):
    """Of the matching that is best for `train`."""
    return float(test[linear_sum_assignment(-train)].mean()) if test.size else np.nan

  def weighted(train, test, train_b):
    """The same with each pair weighted by its shares of the variance."""
    if not test.size:
      return np.nan
    rows, columns = linear_sum_assignment(-train)
    weights = share_a[rows] + _variance_shares(train_b)[columns]
    return float(np.average(test[rows, columns], weights=weights))

  share_a = _variance_shares(raw_a[:, live_a])
  train, test = correlation(a, b), correlation(test_a, test_b)
  rotated, weighted_rotated = [], []
  for i in range(ROTATIONS if live_b.any() else 0):
    q = _rotation(np.random.default_rng([seed, i]), int(live_b.sum()))
    turned, test_turned = (x[:, live_b] @ q for x in (raw_train, raw_test))
    c, test_c = (
      one.T @ _standardize(x) for one, x in ((a, turned), (test_a, test_turned))
    )
    rotated.append(score(*((np.abs(x) if signed else x) for x in (c, test_c))))
    # A rotated axis has no direction: its size alone counts, which is the higher level.
    weighted_rotated.append(weighted(np.abs(c), np.abs(test_c), turned))
  level = np.mean(weighted_rotated) if rotated else np.nan
  found = weighted(train, test, raw_train[:, live_b])
  rng = np.random.default_rng(seed)
  chance, lucky = [], []
  for _ in range(SHUFFLES):
    shuffled = correlation(test_a, rng.permutation(test_b))
    chance.append(score(correlation(a, rng.permutation(b)), shuffled))
    lucky.append(score(shuffled, shuffled))
  return {
    # 0 / 0 where the rotated axes agree as well as the same: of a single direction.
    "alignment": float((found - level) / (1 - level)) if level < 1 - 1e-6 else np.nan,
    "correlation": score(train, test),
    "correlation_chance": float(np.mean(chance)),
    "correlation_rotated": float(np.mean(rotated)) if rotated else np.nan,
    "correlation_matched_on_test": score(test, test),
    "correlation_matched_on_test_chance": float(np.mean(lucky)),
    "matched": int(min(live_a.sum(), live_b.sum())),
    "live_dimensions": int(live_a.sum()),
    "other_live_dimensions": int(live_b.sum()),
  }


def _rotation(rng: np.random.Generator, width: int) -> np.ndarray:
  """A rotation drawn uniformly, up to a reflection, [width, width]."""
  q, r = np.linalg.qr(rng.normal(size=(width, width)))
  return q * np.sign(np.diag(r))


def _variance_shares(x: np.ndarray) -> np.ndarray:
  """Each column's share of the variance; equal ones where there is none."""
  variance = x.var(0, dtype=np.float64)
  total = variance.sum()
  return variance / total if total > 0 else np.ones(len(variance))


def _standardize(x: np.ndarray) -> np.ndarray:
  """Centred columns of unit length; a constant one becomes zero."""
  # In float64: the mean of float32 columns is not exact, and a constant one not zero.
  x = x.astype(np.float64) - x.mean(0, dtype=np.float64)
  length = np.linalg.norm(x, axis=0)
  return np.divide(x, length, out=np.zeros_like(x), where=length > 1e-12)
