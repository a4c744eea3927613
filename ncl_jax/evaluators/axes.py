"""Cross-seed alignment: how well matched dimensions of two runs agree.

NCL's features are unique up to a permutation of dimensions, CL's only up to a rotation:
two seeds of NCL should find the same dimensions in another order.
"""

import functools
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
  row = functools.partial(Row, group="Interpretability", lead=True)
  return (
    row(
      "alignment",
      "cross-seed alignment",
      unit="%",
      better="higher",
      note="correlation of the dimensions of two seeds, matched one to one on the "
      "training images and weighted by variance, on a scale from rotated axes (0) to "
      "the same axes (100).",
    ),
    *(
      row(
        f"axes_{layer}",
        f"cross-seed correlation, {layer}",
        better="higher",
        note="correlation of the active dimensions of two seeds, matched one to one on "
        "the training images, over the test images. Chance: images shuffled.",
        where=(layer, "correlation"),
        chance=(layer, "correlation_chance"),
      )
      for layer in LAYERS
    ),
    row(
      "axes_f_rotated",
      "the same with axes rotated at random, f",
      note="what any axes reach that span as many directions: only what lies above it "
      "says that single dimensions came again.",
      where=("f", "correlation_rotated"),
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
  settings = run.describe(
    matched_on="train",
    other=str(other.path),
    other_step=other.step,
    other_seed=other.config.seed,
    threshold=config.eval.threshold,
    row_shuffles=SHUFFLES,
  )
  return {"settings": settings} | {
    layer: agreement(
      *(x.layer(layer, split) for split in ("train", "test") for x in runs),
      threshold=config.eval.threshold,
      seed=config.seed,
    )
    for layer in LAYERS
  }


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
  given = {"train_a": train_a, "train_b": train_b, "test_a": test_a, "test_b": test_b}
  for name, x in given.items():
    checks.finite(name, x)
  signed = any((x < 0).any() for x in given.values())
  live_a, live_b = ((np.abs(x) > threshold).any(0) for x in (train_a, train_b))
  a = [x[:, live_a] for x in (train_a, test_a)]
  b = [x[:, live_b] for x in (train_b, test_b)]
  shares = _variance_shares(a[0])
  a, standard = [_standardize(x) for x in a], [_standardize(x) for x in b]

  def correlations(other) -> tuple[np.ndarray, np.ndarray]:
    """Of our dimensions with those of another, on train and on test."""
    return a[0].T @ other[0], a[1].T @ other[1]

  both = correlations(standard)
  found = _matched(*both, signed, (shares, _variance_shares(b[0])))
  # By axes at random: plain, and weighted by variance.
  rotated = []
  for i in range(ROTATIONS):
    rng = np.random.default_rng([seed, i])
    q = _rotation(rng, b[0].shape[1])
    turned = [x @ q for x in b]
    c = correlations([_standardize(x) for x in turned])
    # A rotated axis has no direction: its size alone counts, which is the higher level.
    weighted = _matched(*c, True, (shares, _variance_shares(turned[0])))
    rotated.append((_matched(*c, signed), weighted))
  plain, level = (float(np.mean(x)) for x in zip(*rotated, strict=True))
  # With the other's images shuffled: matched on train, on test.
  rng, shuffled = np.random.default_rng(seed), []
  for _ in range(SHUFFLES):
    on_test, on_train = (rng.permutation(x) for x in reversed(standard))
    train, test = correlations((on_train, on_test))
    shuffled.append((_matched(train, test, signed), _matched(test, test, signed)))
  chance, on_test_chance = (float(np.mean(x)) for x in zip(*shuffled, strict=True))
  return {
    # 0 / 0 where the rotated axes agree as well as the same: of a single direction.
    "alignment": float((found - level) / (1 - level)) if level < 1 - 1e-6 else np.nan,
    "correlation": _matched(*both, signed),
    "correlation_chance": chance,
    "correlation_rotated": plain,
    "correlation_matched_on_test": _matched(both[1], both[1], signed),
    "correlation_matched_on_test_chance": on_test_chance,
    "matched": int(min(live_a.sum(), live_b.sum())),
    "active_dimensions": int(live_a.sum()),
    "other_active_dimensions": int(live_b.sum()),
  }


def _matched(train, test, signed: bool, shares=None) -> float:
  """Mean of `test`, or of sizes if signed, over the matching that is best for `train`.

  Args:
    shares: of the variance of both runs' dimensions, the weights of a pair.
  """
  if not test.size:
    return np.nan
  if signed:
    train, test = np.abs(train), np.abs(test)
  rows, columns = linear_sum_assignment(-train)
  weights = None if shares is None else shares[0][rows] + shares[1][columns]
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
