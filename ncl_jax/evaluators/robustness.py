"""What is left of a probe's accuracy: corruptions, wrong labels, few, other sets."""

import dataclasses
import functools
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax.data import corruptions
from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError
from ncl_jax.evaluators import logistic_regression, other_sets, supervised
from ncl_jax.evaluators.registry import LARGEST_CLASS, Row, evaluator
from ncl_jax.evaluators.run import LAYERS, FeatureSource
from ncl_jax.runtime import jsonl

LABEL_NOISE = (0.2, 0.4, 0.6, 0.8)
SHOTS = (1, 5, 10)
DRAWS = 5  # of the few images
FEW_REGULARIZATION = 1e-2  # few images leave none to choose it on


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """The probe's accuracy on other sets and on corrupted images."""
  row = functools.partial(Row, group="Accuracy", unit="%", better="higher")
  shifted = [
    row(
      f"ood:{spec}",
      f"linear probe, h, on {spec}",
      note="the probe fitted to our training images, on the classes of the same names.",
      where=("h", "ood", spec, "accuracy"),
    )
    for spec in config.eval.ood
  ]
  corrupted = [
    row(
      f"corrupted_{layer}",
      f"linear probe on corrupted images, {layer}",
      note="the probe fitted to clean images, mean over 13 kinds of corruption (12 for "
      "grey images) and five severities.",
      where=(layer, "corrupted"),
      chance=LARGEST_CLASS,
      column=f"corr. {layer}",
    )
    for layer in LAYERS
  ]
  return (*shifted, *corrupted)


def asked(config: ConfigDict) -> dict[str, Any]:
  """What a comparison asks for."""
  return {"ood": tuple(config.eval.ood)}


@evaluator(
  "robustness", rows=rows, images=True, asked=asked, reads=other_sets.shifted_digests
)
def evaluate(
  run: FeatureSource, *, ood: tuple[str, ...] | None = None
) -> dict[str, Any]:
  """Accuracy of the `lbfgs` probe, on `h` and on `f`, where something is wrong.

  The probe is fitted to the clean training images. It then sees the test images in each
  corruption and severity, and the images of other sets, in the classes that both have.
  Other probes are fitted to training labels of which a part was replaced by another
  class, and to a few images of each class.

  Args:
    ood: other sets, as `data.load` takes them; None for `eval.ood`.

  Returns:
    {"settings", "h": {"clean", "corrupted" (mean over all kinds and severities),
    "corruptions": kind -> accuracy at each severity, "label_noise": share -> accuracy,
    "few_shot": images a class -> {"mean", "deviation"}, "ood": set -> {"accuracy",
    "images", "classes"}}, "f": {...}}, accuracies in [0, 1].

  Raises:
    InputError: if there is one class, or another set has no class of ours.
  """
  config, source = run.config, run.source
  if source.num_classes < 2:
    raise InputError(f"robustness on {source.name} with 1 class: at least 2 are needed")
  ood = tuple(config.eval.ood) if ood is None else ood
  # Loaded first: a set that cannot be used stops it before anything is fitted.
  others = {spec: run.on(other_sets.shifted(spec, config, source)) for spec in ood}
  heads = {layer: _head(run, layer, run.extract("train").labels) for layer in LAYERS}
  small = _side(run) < corruptions.SMALL_BELOW
  result: dict[str, Any] = {
    "settings": run.describe(
      fitted_on="train",
      protocol="lbfgs",
      corruptions=list(corruptions.names(source.image_shape[-1])),
      severities=list(corruptions.SEVERITIES),
      strengths="CIFAR-10-C" if small else "ImageNet-C",
      label_noise=list(LABEL_NOISE),
      shots=list(SHOTS),
      few_shot_draws=DRAWS,
      few_shot_regularization=FEW_REGULARIZATION,
    )
  }
  corrupted = _corrupted(run, heads)
  for layer, head in heads.items():
    result[layer] = {
      "clean": _accuracy(run, layer, head),
      "corrupted": float(np.mean(list(corrupted[layer].values()))),
      "corruptions": corrupted[layer],
      "label_noise": _label_noise(run, layer),
      "few_shot": {str(shots): _few_shot(run, layer, shots) for shots in SHOTS},
      "ood": {
        spec: {
          "accuracy": _accuracy(there, layer, head),
          "images": there.source.num_examples("test"),
          "classes": len(np.unique(there.extract("test").labels)),
        }
        for spec, there in others.items()
      },
    }
  return result


def mislabelled(
  labels: np.ndarray, share: float, num_classes: int, seed: int
) -> np.ndarray:
  """Replaces the labels of a share of the rows by another class, each as likely.

  Args:
    labels: [N]; -1 stays as it is.
    share: of the labelled rows, in [0, 1].
    num_classes: K, at least 2.
  """
  random = np.random.default_rng([seed, 1])
  known = np.flatnonzero(labels >= 0)
  rows = random.permutation(known)[: round(share * len(known))]
  changed = labels.copy()
  changed[rows] += random.integers(1, num_classes, len(rows)).astype(labels.dtype)
  changed[rows] %= num_classes
  return changed


def few(labels: np.ndarray, shots: int, seed: int) -> np.ndarray:
  """Draws so many rows of each class, or all that a class has; int64, ascending."""
  random = np.random.default_rng([seed, 2])
  rows = [
    random.permutation(np.flatnonzero(labels == k))[:shots]
    for k in np.unique(labels[labels >= 0])
  ]
  return np.sort(np.concatenate(rows))


def table(row: dict[str, Any]) -> str:
  """The result as text: a line a corruption, accuracy in per cent."""
  lines = []
  for layer in LAYERS:
    part = row[layer]

    def line(name, *values, clean=part["clean"]):
      return f"{name:24}" + "".join(f"{100 * x:7.1f}" for x in (clean, *values))

    heading = "".join(f"{s:>7}" for s in ("clean", *corruptions.SEVERITIES, "mean"))
    lines.append(f"{'accuracy on ' + layer + ', %':24}{heading}")
    for kind, values in part["corruptions"].items():
      lines.append(line(kind, *values, np.mean(values)))
    for share, value in part["label_noise"].items():
      lines.append(line(f"{100 * float(share):.0f} % wrong labels", value))
    for shots, value in part["few_shot"].items():
      found = line(f"{shots} image(s) a class", value["mean"])
      lines.append(f"{found} +- {100 * value['deviation']:.1f}")
    for spec, value in part["ood"].items():
      found = line(spec, value["accuracy"])
      lines.append(f"{found}  ({value['images']} images, {value['classes']} classes)")
    lines.append("")
  return "\n".join(lines[:-1])


def _side(run: FeatureSource) -> int:
  """Of the square that the test view shows, in stored pixels."""
  return max(1, round(run.config.augment.eval_crop * min(run.source.image_shape[:2])))


def _head(run: FeatureSource, layer: str, labels: np.ndarray) -> dict[str, Any]:
  """A probe on the training images with these labels."""
  x, classes = run.layer(layer, "train"), run.source.num_classes
  return logistic_regression.choose(
    x, labels, num_classes=classes, seed=run.config.seed
  )[0]


def _accuracy(run: FeatureSource, layer: str, head: dict[str, Any]) -> float:
  """A probe's accuracy on the test images."""
  x = run.layer(layer, "test")
  return supervised.accuracy(head, x, run.extract("test").labels)


def _label_noise(run: FeatureSource, layer: str) -> dict[str, float]:
  """Accuracy of probes on training labels of which a share is wrong."""
  found, labels = {}, run.extract("train").labels
  for share in LABEL_NOISE:
    wrong = mislabelled(labels, share, run.source.num_classes, run.config.seed)
    found[f"{share:g}"] = _accuracy(run, layer, _head(run, layer, wrong))
  return found


def _few_shot(run: FeatureSource, layer: str, shots: int) -> dict[str, float]:
  """Accuracy of probes on so many training images a class, over `DRAWS` draws."""
  x, labels = run.layer(layer, "train"), run.extract("train").labels
  test_x, test_labels = run.layer(layer, "test"), run.extract("test").labels
  classes = int(max(labels.max(), test_labels.max())) + 1
  accuracies = []
  for draw in range(DRAWS):
    rows = few(labels, shots, run.config.seed + draw)
    # As many rows whatever a class has: one compiled program.
    padded = np.resize(rows, shots * classes)
    weights = (np.arange(len(padded)) < len(rows)).astype(x.dtype)
    scale = logistic_regression.root_mean_square(x[rows])
    fitted = logistic_regression.fit(
      x[padded] / scale, labels[padded], weights, FEW_REGULARIZATION, classes
    )
    accuracies.append(supervised.accuracy(fitted.head, test_x / scale, test_labels))
  return {
    "mean": float(np.mean(accuracies)),
    "deviation": float(np.std(accuracies, ddof=1)),
  }


def _corrupted(
  run: FeatureSource, heads: dict[str, Any]
) -> dict[str, dict[str, list[float]]]:
  """Layer -> kind of corruption -> accuracy at each severity."""
  source = run.source
  test, side = source.split("test"), _side(run)
  kinds = corruptions.names(source.image_shape[-1])
  found: dict[str, dict[str, list[float]]] = {
    layer: {kind: [] for kind in kinds} for layer in heads
  }
  conditions = [(kind, s) for kind in kinds for s in corruptions.SEVERITIES]
  progress = jsonl.Progress(len(conditions), 0, len(test))
  for done, (kind, severity) in enumerate(conditions, 1):
    images = corruptions.Corrupted(test.images, kind, severity, side, run.config.seed)
    split = Split(images, test.labels)
    changed = dataclasses.replace(source, splits={"train": split, "test": split})
    seen = run.on(changed, eval_crop=1.0)  # cut before it is corrupted
    for layer, head in heads.items():
      found[layer][kind].append(_accuracy(seen, layer, head))
    progress.update(done, f"{kind} {severity}")
  progress.close()
  return found
