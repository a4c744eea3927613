"""What single dimensions say about the classes, against rotated axes and chance."""

import functools

import jax
import numpy as np

from ncl_jax import checks, metrics, numerics
from ncl_jax.evaluators.registry import Row, few
from ncl_jax.numerics import undefined_is_nan

SHUFFLES = 10
ROTATIONS = 10
BUDGET = 0.01  # share of the images in the energy-weighted purity
TRAINING_ROWS = 50_000  # that name the dimensions, at most


def rows(images: int) -> tuple[Row, ...]:
  """The rows that lead the report."""
  row = functools.partial(
    Row, group="Interpretability", unit="%", better="higher", lead=True
  )
  return (
    row(
      "naming",
      "class named by the strongest dimension",
      note="a dimension is named after the class with the most activation in training; "
      "an image gets the name of its largest f, each dimension divided by its standard "
      f"deviation. Chance: shuffled training labels; {few(images)}",
      chance=("f", "naming_chance"),
      column="naming",
    ),
    row(
      "axis_gain",
      "the same, gain over rotated axes",
      note=f"minus the mean over {ROTATIONS} random rotations of f, which keep "
      "distances and probes: what the choice of axes adds.",
      column="gain",
    ),
    row(
      "ewp",
      "energy-weighted purity",
      note="share of the most frequent class among the images with the largest value "
      f"of a dimension ({BUDGET:.0%}, at most half of the smallest class), "
      "dimensions weighted by their mean square. Chance: shuffled labels.",
      chance=("f", "ewp_chance"),
      column="EWP",
    ),
    row(
      "ewp_gain",
      "the same, gain over rotated axes",
      note=f"minus the mean over {ROTATIONS} random rotations of f.",
    ),
  )


def statistics(
  train_f: np.ndarray,
  train_labels: np.ndarray,
  f: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  *,
  seed: int,
) -> dict[str, float]:
  """Naming accuracy and energy-weighted purity of features, their gain and chance.

  Both signs of a dimension count as separate dimensions in naming, which changes
  nothing for features that are never negative. The purity's budget is `BUDGET`, or half
  of the smallest class if that is less.

  Args:
    train_f: [M, D] features that name the dimensions; of more than `TRAINING_ROWS`, so
      many at equal distances.
    train_labels: [M]; -1 where unknown.
    f: [N, D] features that are scored.
    labels: [N]; -1 where unknown.

  Returns:
    naming and ewp (energy-weighted purity); each with `_rotated`, its mean over random
    rotations of the features, and `_chance`, its mean over shuffled labels; axis_gain
    (naming - naming_rotated) and ewp_gain.

  Raises:
    InputError: if a feature is not finite.
  """
  checks.finite("train_f", train_f)
  checks.finite("f", f)
  rows = np.linspace(0, len(train_f) - 1, min(len(train_f), TRAINING_ROWS))
  rows = rows.round().astype(np.int64)
  train_f, train_labels = train_f[rows], np.asarray(train_labels)[rows]
  labels = np.asarray(labels)

  def naming(x, train_y=train_labels):
    return _naming(x, len(train_f), train_y, labels, num_classes)

  def ewp(x, y=labels):
    return _ewp(x, y, num_classes, budget=purity_budget(labels))

  key, generator = numerics.key(seed), np.random.default_rng(seed)
  result = {}
  for name, gain_name, measure, features, y in (
    ("naming", "axis_gain", naming, np.concatenate([train_f, f]), train_labels),
    ("ewp", "ewp_gain", ewp, f, labels),
  ):
    with undefined_is_nan():
      gain, rotated = metrics.axis_gain(measure, features, key, draws=ROTATIONS)
      chance = [measure(features, shuffled(y, generator)) for _ in range(SHUFFLES)]
    result[name] = float(gain + rotated)
    result[gain_name] = float(gain)
    result[f"{name}_rotated"] = float(rotated)
    result[f"{name}_chance"] = float(np.mean(jax.device_get(chance)))
  return result


def purity_budget(labels: np.ndarray) -> float:
  """`BUDGET`, or the share that is half of the smallest class, if that is less.

  >>> purity_budget(np.array([0] * 999 + [1])), purity_budget(np.arange(2).repeat(99))
  (0.0005, 0.01)
  """
  known = labels[labels >= 0]
  if not known.size:
    return BUDGET
  _, counts = np.unique(known, return_counts=True)
  return min(BUDGET, float(counts.min()) / 2 / known.size)


def shuffled(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
  """The labels in another order; rows without one stay without one."""
  labels = np.array(labels)
  known = labels >= 0
  labels[known] = generator.permutation(labels[known])
  return labels


@functools.partial(jax.jit, static_argnames=("divided", "num_classes"))
def _naming(both, divided, train_labels, labels, num_classes):
  return metrics.naming_accuracy(
    both[:divided], train_labels, both[divided:], labels, num_classes, signed=True
  )


_ewp = jax.jit(
  metrics.energy_weighted_purity, static_argnames=("num_classes", "budget")
)
