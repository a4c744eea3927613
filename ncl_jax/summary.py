"""From evaluation results to the `Comparison` that a report is made from."""

import pathlib
import sys
from typing import Any

import flax
import jax
import numpy as np
from ml_collections import ConfigDict

import ncl_jax
from ncl_jax import workdir as workdir_lib
from ncl_jax import writer
from ncl_jax.data.source import Source
from ncl_jax.evaluators import program
from ncl_jax.report import Arm, Comparison, Metric

LABELS = {"cl": "CL", "ncl": "NCL", "untrained": "untrained + map"}

# key of the table -> (program, layer, name in that program's result)
_PLACES = {
  "knn_h": ("knn", "h", "accuracy"),
  "knn_f": ("knn", "f", "accuracy"),
  "probe_h": ("linear_probe", "h", "accuracy"),
  "probe_f": ("linear_probe", "f", "accuracy"),
  "retrieval_h": ("retrieval", "h", "precision"),
  "retrieval_f": ("retrieval", "f", "precision"),
  "sparsity": ("feature_stats", "f", "sparsity"),
  "consistency_abs": ("feature_stats", "f", "consistency_abs"),
  "consistency_abs_chance": ("feature_stats", "f", "consistency_abs_chance"),
  "consistency_positive": ("feature_stats", "f", "consistency_positive"),
  "purity": ("feature_stats", "f", "purity"),
  "sepin_1": ("sepin", "f", "sepin@1"),
  "sepin_10": ("sepin", "f", "sepin@10"),
  "sepin_all": ("sepin", "f", "sepin@all"),
  "live_dimensions": ("feature_stats", "f", "live_dimensions"),
  "activity": ("feature_stats", "f", "activity"),
  "l0": ("feature_stats", "f", "l0"),
  "zero_rows": ("feature_stats", "f", "zero_rows"),
  "orthogonality": ("feature_stats", "f", "orthogonality"),
  "effective_rank": ("feature_stats", "f", "effective_rank"),
}


_NEED_LABELS = {
  key
  for key, (name, _, field) in _PLACES.items()
  if name not in ("feature_stats", "sepin")
  or field.startswith(("consistency", "purity"))
}


def _metrics(config: ConfigDict, source: Source) -> tuple[Metric, ...]:
  """The rows of the table, in their order, each with its definition."""
  n = source.num_examples("test")
  error = 100 * 0.5 / np.sqrt(n)
  k, activity = config.eval.knn_k, config.eval.activity
  few = f"{n} test images: one run's standard error is at most {error:.1f} points."
  neighbours = f"weighted vote of {k} training images by cosine similarity; {few}"
  probe = (
    "logistic regression on the frozen features, penalty chosen on a held-out fifth of "
    f"the training set; {few}"
  )
  nearest = f"share of the {config.eval.retrieval_k} nearest test images"
  zero = f"|f| < {config.eval.threshold:g}"
  rows = [
    ("knn_h", "nearest neighbours, h", "Accuracy", "%", "higher", neighbours),
    ("knn_f", "nearest neighbours, f", "Accuracy", "%", "higher", neighbours),
    ("probe_h", "linear probe, h", "Accuracy", "%", "higher", probe),
    ("probe_f", "linear probe, f", "Accuracy", "%", "higher", probe),
    (
      "retrieval_h",
      "retrieval precision, h",
      "Accuracy",
      "%",
      "higher",
      f"{nearest} that share the query's class.",
    ),
    (
      "retrieval_f",
      "retrieval precision, f",
      "Accuracy",
      "%",
      "higher",
      f"{nearest} that share the query's class.",
    ),
    (
      "sparsity",
      "sparsity",
      "Interpretability",
      "%",
      "higher",
      f"share of entries of f with {zero}.",
    ),
    (
      "consistency_abs",
      "class consistency, |f| > threshold",
      "Interpretability",
      "%",
      "higher",
      "share of the most frequent class among the images that activate a dimension, "
      "mean over live dimensions; for dense features this is chance by construction.",
    ),
    (
      "consistency_abs_chance",
      "the same with shuffled labels",
      "Interpretability",
      "%",
      "",
      "what few active images reach by luck.",
    ),
    (
      "consistency_positive",
      "class consistency, f > 0",
      "Interpretability",
      "%",
      "higher",
      "as above, activated = positive.",
    ),
    (
      "purity",
      f"purity at matched {activity:.0%} activity",
      "Interpretability",
      "%",
      "higher",
      f"share of the most frequent class among the {activity:.0%} of the images with "
      "the largest value of a dimension: the same number for every arm.",
    ),
    *(
      (
        f"sepin_{k}",
        f"SEPIN@{k}",
        "Interpretability",
        "",
        "higher",
        "information, in nats, that a dimension alone carries about an image: InfoNCE "
        f"without it minus InfoNCE, temperature {config.loss.temperature:g}; mean of "
        "the best, which the other half of the images chose. Chance: noise.",
      )
      for k in ("1", "10", "all")
      if k == "all" or int(k) <= config.model.projector_out
    ),
    (
      "live_dimensions",
      "live dimensions",
      "Health",
      "",
      "higher",
      "dimensions that some test image activates.",
    ),
    (
      "activity",
      "activity of a live dimension",
      "Health",
      "%",
      "",
      "mean share of the test images that activate it.",
    ),
    (
      "l0",
      "active dimensions of an image",
      "Health",
      "",
      "",
      "mean number.",
    ),
    (
      "zero_rows",
      "all-zero images",
      "Health",
      "",
      "lower",
      "test images of which the map leaves nothing.",
    ),
    (
      "orthogonality",
      "mean correlation |C - I|",
      "Health",
      "",
      "lower",
      "of live dimensions of f, not centred.",
    ),
    (
      "effective_rank",
      "effective rank",
      "Health",
      "",
      "",
      "exponential of the entropy of the normalised singular values of f.",
    ),
  ]
  return tuple(
    Metric(*row) for row in rows if source.num_classes or row[0] not in _NEED_LABELS
  )


def comparison(
  config: ConfigDict,
  source: Source,
  runs: dict[str, list[pathlib.Path]],
  results: dict[str, list[dict[str, Any]]],
  seeds: list[int],
) -> Comparison:
  """Everything that the report shows, as plain arrays."""
  rows = _metrics(config, source)

  def values(key: str, arm: str) -> tuple[float, ...]:
    name, layer, field = _PLACES[key]
    return tuple(result[name][layer][field] for result in results[arm])

  arms, labels = [], np.zeros(0)
  for arm in LABELS:
    opened = program.open_run(runs.get(arm, runs["ncl"])[0], source=source)
    untrained = arm == "untrained"
    variables = program.untrained(opened) if untrained else opened.variables
    test = program.extract(opened.config, variables, source, "test", opened.mesh)
    labels = test.labels
    curve = writer.read(runs[arm][0] / "metrics.jsonl") if arm in runs else []
    arms.append(
      Arm(
        key=arm,
        label=LABELS[arm],
        values={row.key: values(row.key, arm) for row in rows},
        curve=tuple(curve),
        features=test.layer("f", opened.config.loss.map),
      )
    )
  chance: dict[str, float] = {}
  if source.num_classes:
    largest = np.bincount(labels[labels >= 0]).max() / (labels >= 0).sum()
    prior = np.sum((np.bincount(labels[labels >= 0]) / (labels >= 0).sum()) ** 2)
    chance = {k: float(largest) for k in ("knn_h", "knn_f", "probe_h", "probe_f")}
    chance |= {k: float(prior) for k in ("retrieval_h", "retrieval_f")}
    by_luck = [r["feature_stats"]["f"]["purity_chance"] for r in results["ncl"]]
    chance["purity"] = float(np.mean(by_luck))
  for row in rows:
    if row.key.startswith("sepin_"):
      name, layer, field = _PLACES[row.key]
      noise = [r[name][layer][f"noise_{field}"] for r in results["ncl"]]
      chance[row.key] = float(np.mean(noise))
  images = np.concatenate(
    [b["image"][b["mask"]] for b in source.eval_batches("test", config.eval.batch_size)]
  )
  resolved = workdir_lib.read_config(runs["ncl"][0])
  title = config.name or source.name
  return Comparison(
    title=f"CL against NCL on {title}",
    facts=(
      (
        "data",
        f"{source.name}: {source.num_examples('train')} training and "
        f"{source.num_examples('test')} test images, {source.num_classes} classes",
      ),
      (
        "network",
        f"{resolved.model.backbone}, width {resolved.model.width}, projector "
        f"{resolved.model.projector_hidden}-{resolved.model.projector_out}",
      ),
      (
        "training",
        f"{resolved.train.epochs} epochs of {resolved.train.batch_size} images a step, "
        f"{resolved.optimizer.name}, temperature {resolved.loss.temperature:g}, "
        f"NCL's map {resolved.loss.map}",
      ),
      (
        "evaluation",
        "test images, network in evaluation mode; h = backbone features, f = projector "
        "output after the map, unit length",
      ),
      ("command", " ".join(["python -m launch.compare", *sys.argv[1:]])),
      (
        "versions",
        f"ncl_jax {ncl_jax.__version__}, jax {jax.__version__}, "
        f"flax {flax.__version__}; {jax.device_count()} {jax.default_backend()} "
        "device(s)",
      ),
    ),
    remarks=_remarks(config, source, len(seeds)),
    metrics=rows,
    arms=tuple(arms),
    chance=chance,
    expected=config.expected.to_dict(),
    seeds=tuple(seeds),
    labels=labels,
    images=images,
    class_names=source.class_names,
  )


def _remarks(config: ConfigDict, source: Source, seeds: int) -> tuple[str, ...]:
  """What the page does and does not show."""
  remarks = [
    "CL and NCL share initialisation, order of the images and views in each seed; the "
    "only difference is the map on the projector's output.",
    "The control is the network before training with NCL's map on it: an untrained "
    "rectified projection is sparse too, so sparsity alone shows little. Purity at "
    "matched activity compares all arms on the same number of images.",
  ]
  if seeds < 5:
    remarks.append(
      f"Number of seeds: {seeds}. Fewer than 5 support no claim about the method, only "
      "about these runs."
    )
  if source.name == "digits":
    remarks.append(
      "The digits are easy: raw pixels reach 98 % with nearest neighbours. This page "
      "shows what NCL does to single dimensions and that accuracy is kept; it does not "
      "show that either method learns good features, nor that NCL is the better one."
    )
  if not source.num_classes:
    remarks.append("No labels: what needs classes is left out.")
  return tuple(remarks)
