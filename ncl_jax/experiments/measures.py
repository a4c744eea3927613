"""The rows of the report's table: where each number lies, and its definition."""

import math
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax.data.source import Source
from ncl_jax.evaluators import meaning
from ncl_jax.experiments import pair_measures
from ncl_jax.report import Metric

# key of the table -> (program, layer, name in that program's result)
PLACES = {
  "naming": ("feature_stats", "f", "naming"),
  "axis_gain": ("feature_stats", "f", "axis_gain"),
  "ewp": ("feature_stats", "f", "ewp"),
  "ewp_gain": ("feature_stats", "f", "ewp_gain"),
  "alignment": ("axes", "f", "alignment"),
  "knn_h": ("knn", "h", "accuracy"),
  "knn_f": ("knn", "f", "accuracy"),
  "probe_h": ("linear_probe", "h", "accuracy"),
  "probe_f": ("linear_probe", "f", "accuracy"),
  "probe_sgd_h": ("linear_probe_sgd", "h", "accuracy"),
  "probe_sgd_f": ("linear_probe_sgd", "f", "accuracy"),
  "finetune_h": ("finetune", "h", "accuracy"),
  "finetune_10_h": ("finetune_10", "h", "accuracy"),
  "finetune_1_h": ("finetune_1", "h", "accuracy"),
  "retrieval_h": ("retrieval", "h", "precision"),
  "retrieval_f": ("retrieval", "f", "precision"),
  "corrupted_h": ("robustness", "h", "corrupted"),
  "corrupted_f": ("robustness", "f", "corrupted"),
  "selection_all": ("selection", "all", "probe"),
  "selection_random": ("selection", "random", "probe"),
  "selection_random_live": ("selection", "random_live", "probe"),
  "selection_ea_signed": ("selection", "ea_signed", "probe"),
  "selection_ea_relu": ("selection", "ea_relu", "probe"),
  "selection_all_retrieval": ("selection", "all", "retrieval"),
  "selection_random_retrieval": ("selection", "random", "retrieval"),
  "selection_random_live_retrieval": ("selection", "random_live", "retrieval"),
  "selection_ea_signed_retrieval": ("selection", "ea_signed", "retrieval"),
  "selection_ea_relu_retrieval": ("selection", "ea_relu", "retrieval"),
  "selection_all_transfer": ("selection", "all", "transfer"),
  "selection_random_transfer": ("selection", "random", "transfer"),
  "selection_random_live_transfer": ("selection", "random_live", "transfer"),
  "selection_ea_signed_transfer": ("selection", "ea_signed", "transfer"),
  "selection_ea_relu_transfer": ("selection", "ea_relu", "transfer"),
  "axes_h": ("axes", "h", "correlation"),
  "axes_f": ("axes", "f", "correlation"),
  "axes_f_rotated": ("axes", "f", "correlation_rotated"),
  "sparsity": ("feature_stats", "f", "sparsity"),
  "consistency_abs": ("feature_stats", "f", "consistency_abs"),
  "consistency_abs_chance": ("feature_stats", "f", "consistency_abs_chance"),
  "consistency_positive": ("feature_stats", "f", "consistency_positive"),
  "purity": ("feature_stats", "f", "purity"),
  "sepin_1": ("sepin", "f", "sepin@1"),
  "sepin_10": ("sepin", "f", "sepin@10"),
  "sepin_100": ("sepin", "f", "sepin@100"),
  "sepin_all": ("sepin", "f", "sepin@all"),
  "view_agreement": ("sepin", "f", "view_agreement"),
  "view_agreement_chance": ("sepin", "f", "view_agreement_chance"),
  "live_dimensions": ("feature_stats", "f", "live_dimensions"),
  "activity": ("feature_stats", "f", "activity"),
  "l0": ("feature_stats", "f", "l0"),
  "zero_rows": ("feature_stats", "f", "zero_rows"),
  "orthogonality": ("feature_stats", "f", "orthogonality"),
  "effective_rank": ("feature_stats", "f", "effective_rank"),
}

# Accuracies of which a loss of half a point counts as none.
MARGIN = 0.005
NOT_WORSE = ("knn_h", "probe_h", "probe_sgd_h", "retrieval_h")
OOD = "ood:"  # and the name of a set: the probe's accuracy on its images


def value(results: dict[str, Any], key: str) -> float:
  """One metric of one run or control.

  Args:
    results: program -> its result, as far as they ran.
    key: of the table's row.

  Returns:
    The number; NaN where the program did not run or does not give it.
  """
  name, part, field = place(key)
  return number(results, name, part, field)


def place(key: str) -> tuple[str, str, str]:
  """(program, layer, name in its result) of a row of the table."""
  if key.startswith(OOD):
    return "robustness", "h", key
  if key.startswith(pair_measures.PREFIX):
    return pair_measures.place(key)
  return PLACES[key]


def number(results: dict[str, Any], name: str, part: str, field: str) -> float:
  """One number of a program's result; NaN where there is none."""
  found = results.get(name, {}).get(part, {})
  if field.startswith(OOD):
    found = found.get("ood", {}).get(field.removeprefix(OOD), {})
    field = "accuracy"
  value = found.get(field)
  return math.nan if value is None else float(value)


def metrics(config: ConfigDict, source: Source) -> tuple[Metric, ...]:
  """The rows that the table can have, in their order, each with its definition."""
  n = source.num_examples("test")
  error = 100 * 0.5 / np.sqrt(n)
  k, activity = config.eval.knn_k, config.eval.activity
  few = f"{n} test images: one run's standard error is at most {error:.1f} points."
  neighbours = f"weighted vote of {k} training images by cosine similarity; {few}"
  probe = (
    "logistic regression on the frozen features, penalty chosen on a held-out fifth of "
    f"the training set; {few}"
  )
  by_sgd = (
    "the paper's protocol: augmented images through the frozen network, recipe of the "
    f"released code; {few}"
  )
  corrupted = (
    "the probe fitted to clean images, mean over 13 kinds of corruption (12 for grey "
    "images) and five severities."
  )
  nearest = f"share of the {config.eval.retrieval_k} nearest test images"
  zero = f"|f| < {config.eval.threshold:g}"
  rows = [
    (
      "naming",
      "class named by the strongest dimension",
      "Interpretability",
      "%",
      "higher",
      "a dimension is named after the class with the most activation in training; an "
      "image gets the name of its largest f, each dimension divided by its standard "
      f"deviation. Chance: shuffled training labels; {few}",
    ),
    (
      "axis_gain",
      "the same, gain over rotated axes",
      "Interpretability",
      "%",
      "higher",
      f"minus the mean over {meaning.ROTATIONS} random rotations of f, which keep "
      "distances and probes: what the choice of axes adds.",
    ),
    (
      "ewp",
      "energy-weighted purity",
      "Interpretability",
      "%",
      "higher",
      "share of the most frequent class among the images with the largest value of a "
      f"dimension ({meaning.BUDGET:.0%}, at most half of the smallest class), "
      "dimensions weighted by their mean square. Chance: shuffled labels.",
    ),
    (
      "ewp_gain",
      "the same, gain over rotated axes",
      "Interpretability",
      "%",
      "higher",
      f"minus the mean over {meaning.ROTATIONS} random rotations of f.",
    ),
    (
      "alignment",
      "cross-seed alignment",
      "Interpretability",
      "%",
      "higher",
      "correlation of the dimensions of two seeds, matched one to one on the training "
      "images and weighted by variance, on a scale from rotated axes (0) to the same "
      "axes (100).",
    ),
    *(
      (
        f"axes_{layer}",
        f"same axes in another seed, {layer}",
        "Interpretability",
        "",
        "higher",
        "correlation of the active dimensions of two seeds, matched one to one on the "
        "training images, over the test images. Chance: images shuffled.",
      )
      for layer in ("h", "f")
    ),
    (
      "axes_f_rotated",
      "the same with axes rotated at random, f",
      "Interpretability",
      "",
      "",
      "what any axes reach that span as many directions: only what lies above it says "
      "that single dimensions came again.",
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
      "mean over active dimensions; for dense features this is chance by construction.",
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
    *(
      (
        f"sepin_{k}",
        f"SEPIN@{k}",
        "Interpretability",
        "",
        "higher",
        "information, in nats, that a dimension alone carries about an image: InfoNCE "
        f"without it minus InfoNCE, temperature {config.loss.temperature:g}; mean of "
        "the best, which the other half of the images chose. Chance: noise. The paper "
        "states no unit: compare order and ratio.",
      )
      for k in ("1", "10", "100", "all")
    ),
    (
      "view_agreement",
      "two views activate the same",
      "Interpretability",
      "%",
      "higher",
      "images that activate a dimension in both of two random views, as a share of "
      "those that do in at least one; needs no labels. 100 % by construction for "
      "features that are never 0.",
    ),
    (
      "view_agreement_chance",
      "the same with views of different images",
      "Interpretability",
      "%",
      "",
      "what as many active images reach by luck.",
    ),
    (
      "purity",
      f"purity at matched {activity:.0%} activity",
      "Interpretability",
      "%",
      "higher",
      f"share of the most frequent class among the {activity:.0%} of the images with "
      "the largest value of a dimension: the same number for every arm. A dimension "
      "that fewer images activate is filled up with others and looks impure.",
    ),
    ("knn_h", "nearest neighbours, h", "Accuracy", "%", "higher", neighbours),
    ("knn_f", "nearest neighbours, f", "Accuracy", "%", "higher", neighbours),
    ("probe_h", "linear probe, h", "Accuracy", "%", "higher", probe),
    ("probe_f", "linear probe, f", "Accuracy", "%", "higher", probe),
    ("probe_sgd_h", "linear probe by SGD, h", "Accuracy", "%", "higher", by_sgd),
    ("probe_sgd_f", "linear probe by SGD, f", "Accuracy", "%", "higher", by_sgd),
    ("finetune_h", "finetuned", "Accuracy", "%", "higher", f"all labels; {few}"),
    *(
      (
        f"finetune_{share}_h",
        f"finetuned, {share} % of the labels",
        "Accuracy",
        "%",
        "higher",
        f"drawn by class, the same for every arm of a seed; {few}",
      )
      for share in (10, 1)
    ),
    *(
      (
        f"{OOD}{spec}",
        f"linear probe, h, on {spec}",
        "Accuracy",
        "%",
        "higher",
        "the probe fitted to our training images, on the classes of the same names.",
      )
      for spec in config.eval.ood
    ),
    (
      "corrupted_h",
      "linear probe on corrupted images, h",
      "Accuracy",
      "%",
      "higher",
      corrupted,
    ),
    (
      "corrupted_f",
      "linear probe on corrupted images, f",
      "Accuracy",
      "%",
      "higher",
      corrupted,
    ),
    *(
      (
        f"selection_{name}{end}",
        f"{rule}: {what}",
        "Feature selection",
        "%",
        "higher",
        "projector outputs of unit length before the selection; k is a quarter of "
        "them or what ncl selection was asked for.",
      )
      for end, what in (
        ("", "linear probe"),
        ("_retrieval", "retrieval"),
        ("_transfer", f"probe on {config.eval.transfer}"),
      )
      for name, rule in (
        ("all", "all dimensions"),
        ("random", "k at random"),
        ("random_live", "k at random of the live"),
        ("ea_signed", "k of largest expected activation, signed"),
        ("ea_relu", "k of largest expected activation, rectified"),
      )
    ),
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
      "live_dimensions",
      "active dimensions",
      "Health",
      "",
      "higher",
      "dimensions that some test image activates.",
    ),
    (
      "activity",
      "activity of an active dimension",
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
      "test images of which the transform leaves nothing.",
    ),
    (
      "orthogonality",
      "mean correlation |C - I|",
      "Health",
      "",
      "lower",
      "of active dimensions of f, not centred.",
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
  named = (
    Metric(*row, margin=MARGIN if row[0] in NOT_WORSE else 0.0)  # on h alone
    for row in rows
  )
  # What two towers are trained for stands first.
  return (*pair_measures.metrics(config, source), *named)
