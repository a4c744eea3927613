"""What is left of a probe's accuracy: corruptions, wrong labels, few, other sets."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax.data import corruptions
from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError
from ncl_jax.evaluators import linear_probe, needs, other_sets, program, supervised
from ncl_jax.runtime import jsonl

LABEL_NOISE = (0.2, 0.4, 0.6, 0.8)
SHOTS = (1, 5, 10)
DRAWS = 5  # of the few images
FEW_REGULARIZATION = 1e-2  # few images leave none to choose it on


def evaluate(
  config: ConfigDict,
  variables: Any,
  source: Source,
  mesh: Mesh,
  *,
  ood: tuple[str, ...] | None = None,
) -> dict[str, Any]:
  """Accuracy of the `lbfgs` probe, on `h` and on `f`, where something is wrong.

  The probe is fitted to the clean training images. It then sees the test images in each
  corruption and severity, and the images of other sets, in the classes that both have.
  Other probes are fitted to training labels of which a part was replaced by another
  class, and to a few images of each class.

  Args:
    config: resolved settings.
    variables: {"params", "batch_stats"}.
    source: labelled data.
    mesh: for the forward passes.
    ood: other sets, as `data.load` takes them; None for `eval.ood`.

  Returns:
    {"settings", "h": {"clean", "corrupted" (mean over all kinds and severities),
    "corruptions": kind -> accuracy at each severity, "label_noise": share -> accuracy,
    "few_shot": images a class -> {"mean", "deviation"}, "ood": set -> {"accuracy",
    "images", "classes"}}, "f": {...}}, accuracies in [0, 1].

  Raises:
    InputError: if the data have no labels, or another set no class of ours.
  """
  needs.need_labels(source, "robustness")
  needs.need_images(source, "robustness")
  if source.num_classes < 2:
    raise InputError(f"robustness on {source.name} with 1 class: at least 2 are needed")
  ood = tuple(config.eval.ood) if ood is None else ood
  others = {spec: other_sets.shifted(spec, config, source) for spec in ood}
  train = program.extract(config, variables, source, "train", mesh)
  test = program.extract(config, variables, source, "test", mesh)
  kinds = corruptions.names(source.image_shape[-1])
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      fitted_on="train",
      protocol="lbfgs",
      corruptions=list(kinds),
      severities=list(corruptions.SEVERITIES),
      strengths=_strengths(config, source),
      label_noise=list(LABEL_NOISE),
      shots=list(SHOTS),
      few_shot_draws=DRAWS,
      few_shot_regularization=FEW_REGULARIZATION,
      images=len(test.labels),
    )
  }
  heads = {}
  for layer in program.LAYERS:
    x = train.layer(layer, config.loss.transform)
    clean_x = test.layer(layer, config.loss.transform)
    heads[layer] = _head(x, train.labels, source, config)
    result[layer] = {
      "clean": supervised.accuracy(heads[layer], clean_x, test.labels),
      "corrupted": np.nan,
      "corruptions": {kind: [] for kind in kinds},
      "label_noise": {
        f"{share:g}": supervised.accuracy(
          _head(
            x,
            mislabelled(train.labels, share, source.num_classes, config.seed),
            source,
            config,
          ),
          clean_x,
          test.labels,
        )
        for share in LABEL_NOISE
      },
      "few_shot": {
        str(shots): _few_shot(x, train.labels, clean_x, test.labels, shots, config)
        for shots in SHOTS
      },
      "ood": {},
    }
  _measure_corruptions(result, heads, config, variables, source, mesh, kinds)
  for spec, other in others.items():
    seen = program.extract(config, variables, other, "test", mesh)
    for layer, head in heads.items():
      x = seen.layer(layer, config.loss.transform)
      result[layer]["ood"][spec] = {
        "accuracy": supervised.accuracy(head, x, seen.labels),
        "images": len(seen.labels),
        "classes": len(np.unique(seen.labels)),
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
    seed: determines which and by what.

  Returns:
    [N].
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
  """The result as text: a line a corruption, accuracy in per cent.

  Args:
    row: what `evaluate` returned.

  Returns:
    Lines joined by newlines.
  """
  lines = []
  for layer in program.LAYERS:
    part = row[layer]
    heading = "".join(f"{s:>7}" for s in ("clean", *corruptions.SEVERITIES, "mean"))
    lines.append(f"{'accuracy on ' + layer + ', %':24}{heading}")
    for kind, values in part["corruptions"].items():
      numbers = [part["clean"], *values, float(np.mean(values))]
      lines.append(f"{kind:24}" + "".join(f"{100 * x:7.1f}" for x in numbers))
    for share, value in part["label_noise"].items():
      name = f"{100 * float(share):.0f} % wrong labels"
      lines.append(f"{name:24}{100 * part['clean']:7.1f}{100 * value:7.1f}")
    for shots, value in part["few_shot"].items():
      spread = f"{100 * value['mean']:7.1f} +- {100 * value['deviation']:.1f}"
      name = f"{shots} image(s) a class"
      lines.append(f"{name:24}{100 * part['clean']:7.1f}{spread}")
    for spec, value in part["ood"].items():
      accuracy = f"{100 * part['clean']:7.1f}{100 * value['accuracy']:7.1f}"
      lines.append(
        f"{spec:24}{accuracy}  ({value['images']} images, {value['classes']} classes)"
      )
    lines.append("")
  return "\n".join(lines[:-1])


def _side(config: ConfigDict, source: Source) -> int:
  """Of the square that the test view shows, in stored pixels."""
  return max(1, round(config.augment.eval_crop * min(source.image_shape[:2])))


def _strengths(config: ConfigDict, source: Source) -> str:
  small = _side(config, source) < corruptions.SMALL_BELOW
  return "CIFAR-10-C" if small else "ImageNet-C"


def _head(
  x: np.ndarray, labels: np.ndarray, source: Source, config: ConfigDict
) -> dict[str, Any]:
  return linear_probe.choose(
    x, labels, num_classes=source.num_classes, seed=config.seed
  ).head


def _few_shot(
  x: np.ndarray,
  labels: np.ndarray,
  test_x: np.ndarray,
  test_labels: np.ndarray,
  shots: int,
  config: ConfigDict,
) -> dict[str, float]:
  classes = int(max(labels.max(), test_labels.max())) + 1
  accuracies = []
  for draw in range(DRAWS):
    rows = few(labels, shots, config.seed + draw)
    # As many rows whatever a class has: one compiled program.
    padded = np.resize(rows, shots * classes)
    weights = (np.arange(len(padded)) < len(rows)).astype(x.dtype)
    scale = float(np.sqrt(np.mean(np.square(x[rows], dtype=np.float64)))) or 1.0
    head = linear_probe.fit(
      jnp.asarray(x[padded] / scale),
      jnp.asarray(labels[padded]),
      jnp.asarray(weights),
      FEW_REGULARIZATION,
      classes,
    ).head
    accuracies.append(supervised.accuracy(head, test_x / scale, test_labels))
  return {
    "mean": float(np.mean(accuracies)),
    "deviation": float(np.std(accuracies, ddof=1)),
  }


def _measure_corruptions(
  result: dict[str, Any],
  heads: dict[str, Any],
  config: ConfigDict,
  variables: Any,
  source: Source,
  mesh: Mesh,
  kinds: tuple[str, ...],
) -> None:
  """Fills in "corruptions" and "corrupted"."""
  test = source.split("test")
  side = _side(config, source)
  whole = config.copy_and_resolve_references()
  whole.augment.eval_crop = 1.0  # cut before it is corrupted
  conditions = [(kind, s) for kind in kinds for s in corruptions.SEVERITIES]
  progress = jsonl.Progress(len(conditions), 0, len(test))
  for done, (kind, severity) in enumerate(conditions, 1):
    images = corruptions.Corrupted(test.images, kind, severity, side, config.seed)
    split = Split(images, test.labels)
    changed = dataclasses.replace(source, splits={"train": split, "test": split})
    seen = program.extract(whole, variables, changed, "test", mesh)
    for layer, head in heads.items():
      x = seen.layer(layer, config.loss.transform)
      accuracy = supervised.accuracy(head, x, seen.labels)
      result[layer]["corruptions"][kind].append(accuracy)
    progress.update(done, f"{kind} {severity}")
  progress.close()
  for layer in heads:
    values = list(result[layer]["corruptions"].values())
    result[layer]["corrupted"] = float(np.mean(values))
