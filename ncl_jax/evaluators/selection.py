"""Feature selection: what is left when only k of the projector's outputs are kept.

The paper's table (all; k at random; the k of largest expected activation EA, of signed
and of rectified outputs), the rows that make it fair, the curve over k, and whether
the dimensions that EA ranks high are those that matter. Orders come from the training
split, once, with the network in evaluation mode.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from ml_collections import ConfigDict
from sklearn.decomposition import PCA

from ncl_jax import checks, metrics
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.evaluators import logistic_regression, other_sets
from ncl_jax.evaluators.registry import LARGEST_CLASS, SAME_CLASS, Row, evaluator
from ncl_jax.evaluators.run import FeatureSource
from ncl_jax.features import Features

DRAWS = 3  # of each random row, whose mean is reported
SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)  # of the dimensions, in the curve

# Features [N, k] of "train" and "test", and of both of the data set of the transfer.
Sets = dict[str, np.ndarray]


RULES = {
  "all": "all dimensions",
  "random": "k at random",
  "random_active": "k at random of the active",
  "ea_signed": "k of largest expected activation, signed",
  "ea_relu": "k of largest expected activation, rectified",
}


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """Each rule of the paper's table, by a probe, by retrieval and on another set."""
  return tuple(
    Row(
      f"selection_{name}{end}",
      f"{rule}: {what}",
      "Feature selection",
      "%",
      "higher",
      "projector outputs of unit length before the selection; k is a quarter of "
      "them or what `ncl selection` was asked for.",
      where=(name, key),
      chance=chance,
      column="EA k" if (name, key) == ("ea_relu", "probe") else "",
    )
    for end, key, what, chance in (
      ("", "probe", "linear probe", LARGEST_CLASS),
      ("_retrieval", "retrieval", "retrieval", SAME_CLASS),
      ("_transfer", "transfer", f"probe on {config.eval.transfer}", ()),
    )
    for name, rule in RULES.items()
  )


def asked(config: ConfigDict) -> dict[str, Any]:
  """What a comparison asks for."""
  return {"transfer": config.eval.transfer}


@evaluator("selection", rows=rows, asked=asked, reads=other_sets.transfer_digest)
def evaluate(
  run: FeatureSource, *, keep: int = 0, transfer: str | None = None
) -> dict[str, Any]:
  """Linear probe, retrieval, and transfer, with k of D dimensions.

  Args:
    run: with labelled data; `eval.retrieval_k` nearest count.
    keep: k; 0 for a quarter of the dimensions.
    transfer: another data set, as `data.load` takes it, on whose training images
      another probe is fitted; None for `eval.transfer`, none if empty.

  Returns:
    {"settings", "curve", "ablation", "active_dimensions"} and the rows "all", "random",
    "ea_signed", "ea_relu", "random_active", "variance", "pca", each with the dimensions
    kept, and "probe" and "transfer" (accuracy), "retrieval" (precision), in [0, 1].
    For "curve" see `curve`, for "ablation" see `ablation`.

  Raises:
    InputError: if data have no labels, or there are no k dimensions.
  """
  config = run.config
  width = config_lib.widths(config)["f"]
  keep = keep or max(1, width // 4)
  checks.whole("keep", keep, 1, width)
  transfer = config.eval.transfer if transfer is None else transfer
  classes = {"": run.source.num_classes}
  parts = {name: run.extract(name) for name in ("train", "test")}
  if transfer:
    other = other_sets.transfer(transfer, config)
    if not other.num_classes:
      raise InputError(
        f"{other.name} has no labels and selection's transfer needs them"
      )
    there = run.on(other)
    for name in ("train", "test"):
      parts[f"transfer_{name}"] = there.extract(name)
    classes["transfer_"] = other.num_classes
  rows = choose(parts, config, keep)
  f = _form(parts, config.loss.transform)
  return {
    "settings": run.describe(
      split="test",
      layer="projector output, rows of unit length before the selection",
      order="expected activation or variance on train, in evaluation mode",
      keep=keep,
      transfer=transfer,
      random_draws=DRAWS,
      retrieval_k=config.eval.retrieval_k,
      threshold=config.eval.threshold,
      pca="centred, fitted on train",
      probe="lbfgs, penalty chosen on a held-out fifth of train",
      images=len(parts["test"].labels),
    ),
    "active_dimensions": int(_live(f["train"], config).sum()),
    **{name: score(parts, classes, config, *sets) for name, sets in rows.items()},
    "ablation": ablation(
      f, parts, run.source.num_classes, config.eval.threshold, seed=config.seed
    ),
    "curve": curve(parts, classes, config),
  }


def choose(
  parts: dict[str, Features], config: ConfigDict, keep: int
) -> dict[str, list[Sets]]:
  """The features of each row of the table; the random ones several times.

  Args:
    parts: features of each split; the orders are those of "train".
    config: its transform gives the whole features; its seed, the random rows.
  """
  f = _form(parts, config.loss.transform)
  signed, rectified = _form(parts, "identity"), _form(parts, "relu")
  rng = np.random.default_rng([config.seed, 3])
  live = np.flatnonzero(_live(f["train"], config))

  def at_random(dimensions: np.ndarray) -> list[Sets]:
    count = min(keep, len(dimensions))
    return [
      _take(f, rng.choice(dimensions, count, replace=False)) for _ in range(DRAWS)
    ]

  return {
    "all": [f],
    "random": at_random(np.arange(f["train"].shape[1])),
    "ea_signed": [_take(signed, _largest(_activation(signed), keep))],
    "ea_relu": [_take(rectified, _largest(_activation(rectified), keep))],
    "random_active": at_random(live) if len(live) else [],
    "variance": [_take(f, _largest(f["train"].var(0), keep))],
    "pca": [_project(f, keep)],
  }


def curve(
  parts: dict[str, Features], classes: dict[str, int], config: ConfigDict
) -> list[dict[str, Any]]:
  """[{"k", "random", "ea_signed", "ea_relu"}] for k = D / 32, D / 16, .. D."""
  forms = {
    "random": _form(parts, config.loss.transform),
    "ea_signed": _form(parts, "identity"),
    "ea_relu": _form(parts, "relu"),
  }
  width = config_lib.widths(config)["f"]
  orders = {name: _largest(_activation(x), width) for name, x in forms.items()}
  orders["random"] = np.random.default_rng([config.seed, 4]).permutation(width)
  return [
    {"k": k}
    | {
      name: score(parts, classes, config, _take(x, orders[name][:k]))
      for name, x in forms.items()
    }
    for k in sorted({max(1, round(share * width)) for share in SHARES})
  ]


def ablation(
  f: Sets,
  parts: dict[str, Features],
  num_classes: int,
  threshold: float,
  *,
  seed: int = 0,
) -> dict[str, float]:
  """Does a dimension's activation tell how much a probe loses without it?

  One probe is fitted to all of `f`; then each dimension in turn is set to 0 in the test
  features.

  Args:
    f: features of "train" and "test".
    parts: their labels.

  Returns:
    ea and frequency: Spearman's rank correlation of the expected activation, and of the
    share of the training images that activate a dimension, with the accuracy lost,
    over active dimensions; NaN where one of the two is constant. largest_loss: the most
    that the accuracy falls.
  """
  labels, test_labels = parts["train"].labels, parts["test"].labels
  known = test_labels >= 0
  strength = logistic_regression.probe(
    f["train"], labels, f["test"], test_labels, num_classes=num_classes, seed=seed
  )["regularization"]
  scale = float(np.sqrt(np.mean(np.square(f["train"], dtype=np.float64)))) or 1.0
  weights = logistic_regression.fit(
    jnp.asarray(f["train"] / scale),
    jnp.asarray(np.maximum(labels, 0)),
    jnp.asarray(labels >= 0, jnp.float32),
    strength,
    num_classes,
  ).head
  whole, without = _accuracies(
    weights, jnp.asarray(f["test"][known] / scale), test_labels[known]
  )
  lost = np.asarray(whole - without)
  on = np.abs(f["train"]) > threshold
  live = on.any(0)
  return {
    "ea": _rank_correlation(_activation(f)[live], lost[live]),
    "frequency": _rank_correlation(on.mean(0)[live], lost[live]),
    "largest_loss": float(lost.max()),
  }


@jax.jit
def _accuracies(params, x, labels):
  """Accuracy with all dimensions [], and without each one [D]."""
  logits = jnp.matmul(x, params["kernel"], precision="highest") + params["bias"][None]

  def accuracy(logits):
    return jnp.mean(jnp.argmax(logits, axis=1) == labels)

  def without(i):
    return accuracy(logits - x[:, i, None] * params["kernel"][i][None])

  return accuracy(logits), jax.lax.map(without, jnp.arange(x.shape[1]))


def _rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
  if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
    return np.nan
  return float(scipy.stats.spearmanr(a, b).statistic)


def score(
  parts: dict[str, Features], classes: dict[str, int], config: ConfigDict, *draws: Sets
) -> dict[str, float]:
  """One row of the table: means over draws, with `_std` where there are several.

  Args:
    parts: labels of each split.
    classes: number of classes, by the prefix of the splits' names.
    config: gives the number of nearest that count, and the seed of the held-out part.
  """
  rows = []
  for sets in draws:
    k = min(config.eval.retrieval_k, len(parts["test"].labels) - 1)
    precision, _ = metrics.retrieval(sets["test"], parts["test"].labels, k=k)
    values = {
      "dimensions": sets["test"].shape[1],
      "retrieval": float(np.nanmean(precision)),
    }
    for prefix, name in {"": "probe", "transfer_": "transfer"}.items():
      train, test = f"{prefix}train", f"{prefix}test"
      if train in sets:
        values[name] = logistic_regression.probe(
          sets[train],
          parts[train].labels,
          sets[test],
          parts[test].labels,
          num_classes=classes[prefix],
          seed=config.seed,
        )["accuracy"]
    rows.append(values)
  if not rows:
    return {"dimensions": 0}
  result = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
  if len(rows) > 1:
    for key in ("probe", "retrieval", "transfer"):
      if key in result:
        result[f"{key}_std"] = float(np.std([row[key] for row in rows], ddof=1))
  return result


def _form(parts: dict[str, Features], transform: str) -> Sets:
  return {name: part.layer("f", transform) for name, part in parts.items()}


def _live(f: np.ndarray, config: ConfigDict) -> np.ndarray:
  return np.asarray(metrics.active_dimensions(f, config.eval.threshold))


def _activation(sets: Sets) -> np.ndarray:
  return np.asarray(metrics.expected_activation(sets["train"]))


def _largest(values: np.ndarray, k: int) -> np.ndarray:
  """Positions of the k largest, of equals the first."""
  return np.argsort(-values, kind="stable")[:k]


def _take(sets: Sets, columns: np.ndarray) -> Sets:
  return {name: x[:, columns] for name, x in sets.items()}


def _project(sets: Sets, k: int) -> Sets:
  """Principal components, as many as the training images have, up to k."""
  pca = PCA(min(k, *sets["train"].shape), svd_solver="covariance_eigh")
  pca.fit(sets["train"])
  return {name: pca.transform(x) for name, x in sets.items()}
