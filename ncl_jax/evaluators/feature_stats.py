"""How sparse, pure and correlated the single dimensions of the test features are."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import checks, metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators import meaning, program
from ncl_jax.numerics import undefined_is_nan

SHUFFLES = meaning.SHUFFLES
ACTIVE = 30  # a dimension with fewer activations is pure by luck
BUDGET = 0.1  # activity at which purity is compared beside `eval.activity`
COARSE = 1e-2  # the released code's other threshold of sparsity


def evaluate(
  config: ConfigDict, variables: Any, source: Source, mesh: Mesh
) -> dict[str, Any]:
  """The paper's feature properties, with what is needed to judge them.

  Args:
    config: resolved settings; `eval.threshold` and `eval.activity` are used.
    variables: {"params", "batch_stats"}.
    source: data; without labels the class-based figures are left out.
    mesh: for the forward passes.

  Returns:
    {"settings", "h": {...}, "f": {...}}; see `statistics`, and for "levels", where the
    source has further labels, `by_class`. With labels, f has what
    `meaning.statistics` gives too, at each level.
  """
  test = program.extract(config, variables, source, "test", mesh)
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      threshold=config.eval.threshold,
      activity=config.eval.activity,
      second_threshold=COARSE,
      second_activity=BUDGET,
      frequent=ACTIVE,
      label_shuffles=SHUFFLES,
      rotations=meaning.ROTATIONS,
      ewp_budget=meaning.purity_budget(test.labels),
      images=len(test.labels),
    )
  }
  settings: dict[str, Any] = {
    "threshold": config.eval.threshold,
    "activity": config.eval.activity,
    "seed": config.seed,
  }
  levels = source.split("test").levels
  for layer in program.LAYERS:
    f = test.layer(layer, config.loss.transform)
    result[layer] = statistics(f, test.labels, source.num_classes, **settings)
    if levels:
      result[layer]["levels"] = {
        name: by_class(f, labels[test.ids], int(labels.max()) + 1, **settings)
        for name, labels in levels.items()
      }
  if source.num_classes:
    train = program.extract(config, variables, source, "train", mesh)
    of_f = functools.partial(_meaning, config, train, test)
    result["f"] |= of_f(train.labels, test.labels, source.num_classes)
    for name, labels in levels.items():
      of_train = source.split("train").levels.get(name)
      if of_train is not None:
        classes = 1 + int(max(labels.max(), of_train.max()))
        found = of_f(of_train[train.ids], labels[test.ids], classes)
        result["f"]["levels"][name] |= found
  return result


def _meaning(config, train, test, train_labels, labels, num_classes):
  train_f, f = (x.layer("f", config.loss.transform) for x in (train, test))
  return meaning.statistics(
    train_f, train_labels, f, labels, num_classes, seed=config.seed
  )


def statistics(
  f: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  *,
  threshold: float,
  activity: float,
  seed: int,
) -> dict[str, float]:
  """All label-free statistics of a feature matrix, and the class-based ones if it can.

  Args:
    f: [N, D] features.
    labels: [N]; -1 where unknown.
    num_classes: K; 0 for none.
    threshold: |f| below it counts as zero.
    activity: share of the images that count as activating a dimension in `purity`.
    seed: of the label shuffles that give the chance levels.

  Returns:
    sparsity, sparsity_0.01 (its threshold), sparsity_live (over active dimensions),
    l0 (mean number of active dimensions of an image), activity (mean share of images
    that activate an active dimension), dimensions, live_dimensions, dead_dimensions,
    zero_rows, orthogonality (mean |C - I|), effective_rank; with labels also what
    `by_class` gives.
  """
  checks.finite("f", f)
  with undefined_is_nan():
    values = jax.device_get(_statistics(f, threshold))
  values = {name: float(value) for name, value in values.items()}
  if num_classes:
    values |= by_class(
      f, labels, num_classes, threshold=threshold, activity=activity, seed=seed
    )
  return values


def by_class(
  f: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  *,
  threshold: float,
  activity: float,
  seed: int,
) -> dict[str, float]:
  """How far the images that activate a dimension share a class, and what luck gives.

  Args:
    f: [N, D] features.
    labels: [N]; -1 where unknown.
    num_classes: K.
    threshold: as in `statistics`.
    activity: as in `statistics`.
    seed: as in `statistics`.

  Returns:
    consistency_abs and consistency_positive (mean over active dimensions), each also
    with `_frequent` (mean over dimensions with at least 30 active images, NaN if none)
    and `_weighted` (each dimension by its number of active images); label_entropy (mean
    over active dimensions, nats); purity and purity_0.1, at matched activity, also
    purity_weighted and purity_reached (mean over the dimensions that so many images
    activate: only there is a sparse feature's purity one of activated images), and with
    _0.1; each of them with `_chance`: its mean over shuffled labels.
    frequent_dimensions, reached_dimensions, reached_dimensions_0.1: how many there are,
    by |f| > threshold.
  """

  checks.finite("f", f)

  def measure(y):
    with undefined_is_nan():
      return _by_class(f, y, num_classes, threshold, activity)

  generator = np.random.default_rng(seed)
  values = jax.device_get(measure(labels))
  shuffled = jax.device_get(
    [measure(meaning.shuffled(labels, generator)) for _ in range(SHUFFLES)]
  )
  result = {}
  for name, value in values.items():
    result[name] = float(value)
    if "dimensions" not in name:
      result[f"{name}_chance"] = float(np.mean([other[name] for other in shuffled]))
  return result


@jax.jit(static_argnames="threshold")
def _statistics(f, threshold):
  live = metrics.active_dimensions(f, threshold)
  alive = jnp.sum(live)
  # Shares, as the number of all entries may be beyond an int32.
  silent = jnp.mean(jnp.abs(f) < threshold, axis=0)
  active = jnp.mean(jnp.abs(f) > threshold, axis=0)
  return {
    "sparsity": metrics.sparsity(f, threshold),
    f"sparsity_{COARSE}": metrics.sparsity(f, COARSE),
    "sparsity_live": jnp.sum(jnp.where(live, silent, 0)) / alive,  # NaN if none is
    "l0": jnp.sum(active),
    "activity": jnp.sum(active) / jnp.maximum(alive, 1),
    "dimensions": f.shape[1],
    "live_dimensions": alive,
    "dead_dimensions": f.shape[1] - alive,
    "zero_rows": metrics.num_zero_rows(f),
    "orthogonality": metrics.orthogonality(f),
    "effective_rank": metrics.effective_rank(f),
  }


@jax.jit(static_argnames=("num_classes", "threshold", "activity"))
def _by_class(f, labels, num_classes, threshold, activity):
  values = {}
  for rule in ("abs", "positive"):
    rate, active = metrics.class_consistency(f, labels, num_classes, rule, threshold)
    name, frequent = f"consistency_{rule}", active >= ACTIVE
    values[name] = jnp.nanmean(rate)
    values[f"{name}_frequent"] = jnp.nanmean(jnp.where(frequent, rate, jnp.nan))
    values[f"{name}_weighted"] = jnp.nansum(rate * active) / jnp.sum(active)
    if rule == "abs":
      values["frequent_dimensions"] = jnp.sum(frequent)
  entropy = metrics.label_entropy(f, labels, num_classes, "abs", threshold)
  values["label_entropy"] = jnp.nanmean(entropy)
  _, active = metrics.class_consistency(f, labels, num_classes, "abs", threshold)
  images = jnp.sum(labels >= 0)
  for end, budget in (("", activity), (f"_{BUDGET}", BUDGET)):
    rate = metrics.purity(f, labels, num_classes, budget)
    # One that so many images do not activate is filled up with images at random.
    reached = active >= jnp.round(budget * images, 3)  # 0.3 x 50 is 15, not more
    values[f"purity{end}"] = jnp.nanmean(rate)
    values[f"purity_reached{end}"] = jnp.nanmean(jnp.where(reached, rate, jnp.nan))
    weight = jnp.where(jnp.isnan(rate), 0, active)
    values[f"purity_weighted{end}"] = jnp.nansum(rate * weight) / jnp.sum(weight)
    values[f"reached_dimensions{end}"] = jnp.sum(reached & ~jnp.isnan(rate))
  return values
