"""How sparse, pure and correlated the single dimensions of the test features are."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from ncl_jax import checks, metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators import meaning
from ncl_jax.evaluators.registry import Row, evaluator
from ncl_jax.evaluators.run import LAYERS, FeatureSource
from ncl_jax.numerics import undefined_is_nan

SHUFFLES = meaning.SHUFFLES
ACTIVE = 30  # a dimension with fewer activations is pure by chance
BUDGET = 0.1  # the rate at which purity is compared besides `eval.activation_rate`
COARSE = 1e-2  # the released code's other threshold of sparsity


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """What the report shows of f."""
  rate = f"{config.eval.activation_rate:.0%}"
  of_classes = functools.partial(Row, group="Interpretability", unit="%")
  health = functools.partial(Row, group="Health")
  return (
    *meaning.rows(source.num_examples("test")),
    of_classes(
      "sparsity",
      "sparsity",
      better="higher",
      note=f"share of entries of f with |f| < {config.eval.threshold:g}.",
      column="sparsity",
    ),
    of_classes(
      "consistency_abs",
      "class consistency, |f| > threshold",
      better="higher",
      note="share of the most frequent class among the images that activate a "
      "dimension, mean over active dimensions; for dense features this is chance by "
      "construction.",
      column="cons.",
    ),
    of_classes(
      "consistency_abs_chance",
      "the same with shuffled labels",
      note="what few active images reach by chance.",
      column="chance",
    ),
    of_classes(
      "consistency_positive",
      "class consistency, f > 0",
      better="higher",
      note="as above, activated = positive.",
    ),
    of_classes(
      "purity",
      f"purity at an activation rate of {rate}",
      better="higher",
      note=f"share of the most frequent class among the {rate} of the images with the "
      "largest value of a dimension: the same number for every method. A dimension "
      "that fewer images activate is filled up with others and looks impure.",
      chance=("f", "purity_chance"),
      column="purity",
    ),
    health(
      "active_dimensions",
      "active dimensions",
      better="higher",
      note="dimensions that some test image activates.",
      column="active",
    ),
    health(
      "activation_rate",
      "activation rate of an active dimension",
      unit="%",
      note="mean share of the test images that activate it.",
    ),
    health("l0", "active dimensions of an image", note="mean number."),
    health(
      "zero_rows",
      "all-zero embeddings",
      better="lower",
      note="test images whose transformed embedding is all zero.",
    ),
    health(
      "orthogonality",
      "mean correlation |C - I|",
      better="lower",
      note="of active dimensions of f, not centred.",
      column="|C-I|",
    ),
    health(
      "effective_rank",
      "effective rank",
      note="exponential of the entropy of the normalised singular values of f.",
      column="rank",
    ),
  )


@evaluator("feature_stats", rows=rows, labels=False)
def evaluate(run: FeatureSource) -> dict[str, Any]:
  """The paper's feature properties, with what is needed to judge them.

  Args:
    run: `eval.threshold` and `eval.activation_rate` are used; without labels the
      class-based figures are left out.

  Returns:
    {"settings", "h": {...}, "f": {...}}; see `statistics`, and for "levels", where the
    source has further labels, `by_class`. With labels, f has what
    `meaning.statistics` gives too, at each level.
  """
  config, source = run.config, run.source
  train_levels, levels = (source.split(name).levels for name in ("train", "test"))
  test = run.extract("test")
  settings: dict[str, Any] = {
    "threshold": config.eval.threshold,
    "activation_rate": config.eval.activation_rate,
  }
  result: dict[str, Any] = {
    "settings": run.describe(
      **settings,
      second_threshold=COARSE,
      second_activation_rate=BUDGET,
      frequent=ACTIVE,
      label_shuffles=SHUFFLES,
      rotations=meaning.ROTATIONS,
      ewp_budget=meaning.purity_budget(test.labels),
    )
  }
  settings["seed"] = config.seed
  for layer in LAYERS:
    f = run.layer(layer, "test")
    result[layer] = statistics(f, test.labels, source.num_classes, **settings)
    if levels:
      result[layer]["levels"] = {
        name: by_class(f, labels[test.ids], int(labels.max()) + 1, **settings)
        for name, labels in levels.items()
      }
  if source.num_classes:
    train = run.extract("train")
    known = [(result["f"], train.labels, test.labels, source.num_classes)]
    for name in (name for name in levels if name in train_levels):
      both = train_levels[name][train.ids], levels[name][test.ids]
      classes = 1 + int(max(levels[name].max(), train_levels[name].max()))
      known.append((result["f"]["levels"][name], *both, classes))
    train_f, f = run.layer("f", "train"), run.layer("f", "test")
    for part, train_labels, labels, classes in known:
      part |= meaning.statistics(
        train_f, train_labels, f, labels, classes, seed=config.seed
      )
  return result


def statistics(
  f: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  *,
  threshold: float,
  activation_rate: float,
  seed: int,
) -> dict[str, float]:
  """All label-free statistics of a feature matrix, and the class-based ones if it can.

  Args:
    f: [N, D] features.
    labels: [N]; -1 where unknown.
    num_classes: K; 0 for none.
    activation_rate: share of the images that count as activating a dimension in
      `purity`.
    seed: of the label shuffles that give the chance levels.

  Returns:
    sparsity, sparsity_0.01 (its threshold), sparsity_active (over active dimensions),
    l0 (mean number of active dimensions of an image), activation_rate (mean share of
    images that activate an active dimension), dimensions, active_dimensions,
    dead_dimensions, zero_rows, orthogonality (mean |C - I|), effective_rank; with
    labels also what `by_class` gives.
  """
  checks.finite("f", f)
  with undefined_is_nan():
    values = jax.device_get(_statistics(f, threshold))
  values = {name: float(value) for name, value in values.items()}
  if num_classes:
    values |= by_class(
      f,
      labels,
      num_classes,
      threshold=threshold,
      activation_rate=activation_rate,
      seed=seed,
    )
  return values


def by_class(
  f: np.ndarray,
  labels: np.ndarray,
  num_classes: int,
  *,
  threshold: float,
  activation_rate: float,
  seed: int,
) -> dict[str, float]:
  """How far the images that activate a dimension share a class, and what chance gives.

  The arguments are those of `statistics`.

  Returns:
    consistency_abs and consistency_positive (mean over active dimensions), each also
    with `_frequent` (mean over dimensions with at least 30 active images, NaN if none)
    and `_weighted` (each dimension by its number of active images); label_entropy (mean
    over active dimensions, nats); purity and purity_0.1, at two activation rates, also
    purity_weighted and purity_reached (mean over the dimensions that so many images
    activate: only there is a sparse feature's purity one of activated images), and with
    _0.1; each of them with `_chance`: its mean over shuffled labels.
    frequent_dimensions, reached_dimensions, reached_dimensions_0.1: how many there are,
    by |f| > threshold.
  """
  checks.finite("f", f)

  def measure(y):
    with undefined_is_nan():
      return _by_class(f, y, num_classes, threshold, activation_rate)

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


@functools.partial(jax.jit, static_argnames="threshold")
def _statistics(f, threshold):
  live = metrics.active_dimensions(f, threshold)
  alive = jnp.sum(live)
  # Shares, as the number of all entries may be beyond an int32.
  silent = jnp.mean(jnp.abs(f) < threshold, axis=0)
  active = jnp.mean(jnp.abs(f) > threshold, axis=0)
  return {
    "sparsity": metrics.sparsity(f, threshold),
    f"sparsity_{COARSE}": metrics.sparsity(f, COARSE),
    "sparsity_active": jnp.sum(jnp.where(live, silent, 0)) / alive,  # NaN if none is
    "l0": jnp.sum(active),
    "activation_rate": jnp.sum(active) / jnp.maximum(alive, 1),
    "dimensions": f.shape[1],
    "active_dimensions": alive,
    "dead_dimensions": f.shape[1] - alive,
    "zero_rows": metrics.num_zero_rows(f),
    "orthogonality": metrics.orthogonality(f),
    "effective_rank": metrics.effective_rank(f),
  }


@functools.partial(
  jax.jit, static_argnames=("num_classes", "threshold", "activation_rate")
)
def _by_class(f, labels, num_classes, threshold, activation_rate):
  values = {}
  for rule in ("positive", "abs"):  # what follows is by "abs"
    rate, active = metrics.class_consistency(f, labels, num_classes, rule, threshold)
    name, frequent = f"consistency_{rule}", active >= ACTIVE
    values[name] = jnp.nanmean(rate)
    values[f"{name}_frequent"] = jnp.nanmean(jnp.where(frequent, rate, jnp.nan))
    values[f"{name}_weighted"] = jnp.nansum(rate * active) / jnp.sum(active)
  entropy = metrics.label_entropy(f, labels, num_classes, "abs", threshold)
  values["label_entropy"] = jnp.nanmean(entropy)
  values["frequent_dimensions"] = jnp.sum(frequent)
  images = jnp.sum(labels >= 0)
  for end, budget in (("", activation_rate), (f"_{BUDGET}", BUDGET)):
    rate = metrics.purity(f, labels, num_classes, budget)
    # One that so many images do not activate is filled up with images at random.
    reached = active >= jnp.round(budget * images, 3)  # 0.3 x 50 is 15, not more
    values[f"purity{end}"] = jnp.nanmean(rate)
    values[f"purity_reached{end}"] = jnp.nanmean(jnp.where(reached, rate, jnp.nan))
    weight = jnp.where(jnp.isnan(rate), 0, active)
    values[f"purity_weighted{end}"] = jnp.nansum(rate * weight) / jnp.sum(weight)
    values[f"reached_dimensions{end}"] = jnp.sum(reached & ~jnp.isnan(rate))
  return values
