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
# What a probe is fitted to and tested on, as named there, and the number of classes.
Probe = tuple[str, str, int]

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
    InputError: if the other data have no labels, or there are no k dimensions.
  """
  config = run.config
  width = config_lib.widths(config)["f"]
  keep = keep or max(1, width // 4)
  checks.whole("keep", keep, 1, width)
  transfer = config.eval.transfer if transfer is None else transfer
  parts = {name: run.extract(name) for name in ("train", "test")}
  probes = {"probe": ("train", "test", run.source.num_classes)}
  if transfer:
    other = other_sets.transfer(transfer, config)
    if not other.num_classes:
      raise InputError(
        f"{other.name} has no labels and selection's transfer needs them"
      )
    there = run.on(other)
    parts |= {f"transfer_{name}": there.extract(name) for name in ("train", "test")}
    probes["transfer"] = ("transfer_train", "transfer_test", other.num_classes)
  f = _forms(parts, config)["random"]
  live = metrics.active_dimensions(f["train"], config.eval.threshold)
  return {
    "settings": run.describe(
      layer="projector output, rows of unit length before the selection",
      order="expected activation or variance on train, in evaluation mode",
      keep=keep,
      transfer=transfer,
      random_draws=DRAWS,
      retrieval_k=config.eval.retrieval_k,
      threshold=config.eval.threshold,
      pca="centred, fitted on train",
      probe="lbfgs, penalty chosen on a held-out fifth of train",
    ),
    "active_dimensions": int(live.sum()),
    **{
      name: score(parts, probes, config, *sets)
      for name, sets in choose(parts, config, keep).items()
    },
    "ablation": ablation(
      f, parts, run.source.num_classes, config.eval.threshold, seed=config.seed
    ),
    "curve": curve(parts, probes, config),
  }


def choose(
  parts: dict[str, Features], config: ConfigDict, keep: int
) -> dict[str, list[Sets]]:
  """The features of each row of the table; the random ones several times.

  Args:
    parts: features of each split; the orders are those of "train".
    config: its transform gives the whole features; its seed, the random rows.
  """
  forms = _forms(parts, config)
  f, signed, rectified = (forms[name] for name in ("random", "ea_signed", "ea_relu"))
  rng = np.random.default_rng([config.seed, 3])
  live = metrics.active_dimensions(f["train"], config.eval.threshold)
  pca = PCA(min(keep, *f["train"].shape), svd_solver="covariance_eigh")
  pca.fit(f["train"])

  def at_random(dimensions: np.ndarray) -> list[Sets]:
    count = min(keep, len(dimensions))
    draws = DRAWS if count else 0
    return [
      _take(f, rng.choice(dimensions, count, replace=False)) for _ in range(draws)
    ]

  return {
    "all": [f],
    "random": at_random(np.arange(f["train"].shape[1])),
    "ea_signed": [_take(signed, _order(_activation(signed))[:keep])],
    "ea_relu": [_take(rectified, _order(_activation(rectified))[:keep])],
    "random_active": at_random(np.flatnonzero(live)),
    "variance": [_take(f, _order(f["train"].var(0))[:keep])],
    "pca": [{name: pca.transform(x) for name, x in f.items()}],
  }


def curve(
  parts: dict[str, Features], probes: dict[str, Probe], config: ConfigDict
) -> list[dict[str, Any]]:
  """[{"k", "random", "ea_signed", "ea_relu"}] for k = D / 32, D / 16, .. D."""
  forms = _forms(parts, config)
  width = config_lib.widths(config)["f"]
  orders = {name: _order(_activation(x)) for name, x in forms.items()}
  orders["random"] = np.random.default_rng([config.seed, 4]).permutation(width)
  return [
    {"k": k}
    | {
      name: score(parts, probes, config, _take(x, orders[name][:k]))
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
  head, _ = logistic_regression.choose(
    f["train"], labels, num_classes=num_classes, seed=seed
  )
  known = test_labels >= 0
  whole, without = _accuracies(head, f["test"][known], test_labels[known])
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
  parts: dict[str, Features],
  probes: dict[str, Probe],
  config: ConfigDict,
  *draws: Sets,
) -> dict[str, float]:
  """One row of the table: means over draws, with `_std` where there are several.

  Args:
    parts: labels of each split.
    config: gives the number of nearest that count, and the seed of the held-out part.
  """
  if not draws:
    return {"dimensions": 0}
  labels = {name: part.labels for name, part in parts.items()}
  k = min(config.eval.retrieval_k, len(labels["test"]) - 1)
  rows = []
  for sets in draws:
    precision, _ = metrics.retrieval(sets["test"], labels["test"], k=k)
    values = {
      "dimensions": sets["test"].shape[1],
      "retrieval": float(np.nanmean(precision)),
    }
    for name, (train, test, classes) in probes.items():
      values[name] = logistic_regression.probe(
        sets[train],
        labels[train],
        sets[test],
        labels[test],
        num_classes=classes,
        seed=config.seed,
      )["accuracy"]
    rows.append(values)
  result = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
  if len(rows) > 1:
    for key in ("retrieval", *probes):
      result[f"{key}_std"] = float(np.std([row[key] for row in rows], ddof=1))
  return result


def _forms(parts: dict[str, Features], config: ConfigDict) -> dict[str, Sets]:
  """The whole features, those without a transform, and the rectified ones."""
  transforms = {
    "random": config.loss.transform,
    "ea_signed": "identity",
    "ea_relu": "relu",
  }
  return {
    form: {name: part.layer("f", transform) for name, part in parts.items()}
    for form, transform in transforms.items()
  }


def _activation(sets: Sets) -> np.ndarray:
  return np.asarray(metrics.expected_activation(sets["train"]))


def _order(values: np.ndarray) -> np.ndarray:
  """Positions of the values, the largest first, of equals the first."""
  return np.argsort(-values, kind="stable")


def _take(sets: Sets, columns: np.ndarray) -> Sets:
  return {name: x[:, columns] for name, x in sets.items()}
