"""Cross-seed alignment: how well matched dimensions of two runs agree.

NCL's features are unique up to a permutation of dimensions, CL's only up to a rotation:
two seeds of NCL should find the same dimensions in another order.
"""

from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy.optimize import linear_sum_assignment

from ncl_jax import checks
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators.registry import Row, evaluator
from ncl_jax.evaluators.run import LAYERS, Run

SHUFFLES = 10
ROTATIONS = 3


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """The alignment, and the correlations that it is made from."""
  return (
    Row(
      "alignment",
      "cross-seed alignment",
      "Interpretability",
      "%",
      "higher",
      "correlation of the dimensions of two seeds, matched one to one on the training "
      "images and weighted by variance, on a scale from rotated axes (0) to the same "
      "axes (100).",
      where=("f", "alignment"),
      lead=True,
    ),
    *(
      Row(
        f"axes_{layer}",
        f"cross-seed correlation, {layer}",
        "Interpretability",
        "",
        "higher",
        "correlation of the active dimensions of two seeds, matched one to one on the "
        "training images, over the test images. Chance: images shuffled.",
        where=(layer, "correlation"),
        chance=(layer, "correlation_chance"),
        lead=True,
      )
      for layer in LAYERS
    ),
    Row(
      "axes_f_rotated",
      "the same with axes rotated at random, f",
      "Interpretability",
      note="what any axes reach that span as many directions: only what lies above it "
      "says that single dimensions came again.",
      where=("f", "correlation_rotated"),
      lead=True,
    ),
  )


@evaluator("axes", rows=rows, labels=False, two_runs=True)
def evaluate(run: Run, *, other: Run) -> dict[str, Any]:
  """Agreement of this run's dimensions with another's, on `h` and on `f`.

  Args:
    run: its data are those that both networks see; labels are not used.
    other: the other run, such as another seed; its own preprocessing is used.

  Returns:
    {"settings", "h": {...}, "f": {...}}; see `agreement`.

  Raises:
    InputError: if the two runs have different transforms.
  """
  config = run.config
  if other.config.loss.transform != config.loss.transform:
    raise InputError(
      f"the transforms are {config.loss.transform} here and "
      f"{other.config.loss.transform} in {other.path}: axes compares runs of one method"
    )
  runs = (run, other.on(run.source))
  result: dict[str, Any] = {
    "settings": run.describe(
      split="test",
      matched_on="train",
      other=str(other.path),
      other_step=other.step,
      other_seed=other.config.seed,
      threshold=config.eval.threshold,
      row_shuffles=SHUFFLES,
      images=len(run.extract("test").labels),
    )
  }
  for layer in LAYERS:
    result[layer] = agreement(
      *(x.layer(layer, split) for split in ("train", "test") for x in runs),
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
    pairs), active_dimensions and other_active_dimensions. NaN without any.
  """
  for name, x in zip(
    ("train_a", "train_b", "test_a", "test_b"),
    (train_a, train_b, test_a, test_b),
    strict=True,
  ):
    checks.finite(name, x)
  signed = any((x < 0).any() for x in (train_a, train_b, test_a, test_b))
  live_a, live_b = ((np.abs(x) > threshold).any(0) for x in (train_a, train_b))
  train_a, test_a = train_a[:, live_a], test_a[:, live_a]
  train_b, test_b = train_b[:, live_b], test_b[:, live_b]
  a, b, one, other = map(_standardize, (train_a, train_b, test_a, test_b))
  train, test = (_size(x.T @ y, signed) for x, y in ((a, b), (one, other)))
  shares = _variance_shares(train_a)
  rotated, level = _rotated((a, one), (train_b, test_b), shares, signed, seed)
  found = _weighted(train, test, shares, _variance_shares(train_b))
  chance, on_test_chance = _shuffled((a, one), (b, other), signed, seed)
  return {
    # 0 / 0 where the rotated axes agree as well as the same: of a single direction.
    "alignment": float((found - level) / (1 - level)) if level < 1 - 1e-6 else np.nan,
    "correlation": _matched(train, test),
    "correlation_chance": chance,
    "correlation_rotated": rotated,
    "correlation_matched_on_test": _matched(test, test),
    "correlation_matched_on_test_chance": on_test_chance,
    "matched": int(min(live_a.sum(), live_b.sum())),
    "active_dimensions": int(live_a.sum()),
    "other_active_dimensions": int(live_b.sum()),
  }


def _rotated(ours, theirs, shares, signed: bool, seed: int) -> tuple[float, float]:
  """Mean correlations after random rotations of the other run: plain and weighted."""
  plain, weighted = [], []
  width = theirs[0].shape[1]
  for i in range(ROTATIONS if width else 0):
    q = _rotation(np.random.default_rng([seed, i]), width)
    turned = [x @ q for x in theirs]
    train, test = (x.T @ _standardize(y) for x, y in zip(ours, turned, strict=True))
    plain.append(_matched(_size(train, signed), _size(test, signed)))
    # A rotated axis has no direction: its size alone counts, which is the higher level.
    sizes = np.abs(train), np.abs(test)
    weighted.append(_weighted(*sizes, shares, _variance_shares(turned[0])))
  if not plain:
    return np.nan, np.nan
  return float(np.mean(plain)), float(np.mean(weighted))


def _shuffled(ours, theirs, signed: bool, seed: int) -> tuple[float, float]:
  """Mean correlations with the other's images shuffled: matched on train, on test."""
  rng = np.random.default_rng(seed)
  on_train, on_test = [], []
  for _ in range(SHUFFLES):
    test = _size(ours[1].T @ rng.permutation(theirs[1]), signed)
    train = _size(ours[0].T @ rng.permutation(theirs[0]), signed)
    on_train.append(_matched(train, test))
    on_test.append(_matched(test, test))
  return float(np.mean(on_train)), float(np.mean(on_test))


def _size(correlation: np.ndarray, signed: bool) -> np.ndarray:
  """Without the sign, which is arbitrary where features are signed."""
  return np.abs(correlation) if signed else correlation


def _matched(train: np.ndarray, test: np.ndarray) -> float:
  """Mean of `test` over the matching that is best for `train`."""
  return float(test[linear_sum_assignment(-train)].mean()) if test.size else np.nan


def _weighted(train, test, shares_a, shares_b) -> float:
  """The same with each pair weighted by its shares of the variance."""
  if not test.size:
    return np.nan
  rows, columns = linear_sum_assignment(-train)
  weights = shares_a[rows] + shares_b[columns]
  return float(np.average(test[rows, columns], weights=weights))


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
