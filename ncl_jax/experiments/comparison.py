"""From evaluation results to the `Comparison` that a report is made from."""

import pathlib
import re
import sys
from collections.abc import Sequence
from typing import Any

import flax
import jax
import numpy as np
from ml_collections import ConfigDict

import ncl_jax
from ncl_jax.data import texts as texts_lib
from ncl_jax.data.source import Source
from ncl_jax.evaluators import program
from ncl_jax.experiments import measures, pair_measures, paper_numbers
from ncl_jax.report import Arm, Comparison, Metric
from ncl_jax.report.explorer import thumbnails
from ncl_jax.runtime import jsonl
from ncl_jax.training import workdir as workdir_lib

# Shares of images whose class is one of the data set's own.
OWN_CLASSES = ("accuracy", "probe", "corrupted")
# Of `feature_stats`: the program found what shuffled labels give.
WITH_CHANCE = ("naming", "ewp", "purity")
LABELS = {"cl": "CL", "ncl": "NCL", "untrained": "untrained + transform"}


def comparison(
  config: ConfigDict,
  source: Source,
  runs: dict[str, list[pathlib.Path]],
  results: dict[str, list[dict[str, Any]]],
  seeds: list[int],
) -> Comparison:
  """Everything that the report shows, as plain arrays."""

  def values(key: str, arm: str) -> tuple[float, ...]:
    return tuple(measures.value(result, key) for result in results[arm])

  rows = tuple(
    row
    for row in measures.metrics(config, source)
    if np.isfinite([x for arm in LABELS for x in values(row.key, arm)]).any()
  )

  arms, labels = [], np.zeros(0)
  for arm in LABELS:
    opened = program.open_run(runs.get(arm, runs["ncl"])[0], source=source)
    untrained = arm == "untrained"
    variables = program.untrained(opened) if untrained else opened.variables
    test = program.extract(opened.config, variables, source, "test", opened.mesh)
    labels = test.labels
    curve = jsonl.read(runs[arm][0] / "metrics.jsonl") if arm in runs else []
    arms.append(
      Arm(
        key=arm,
        label=LABELS[arm],
        values={row.key: values(row.key, arm) for row in rows},
        curve=tuple(curve),
        features=test.layer("f", opened.config.loss.transform),
      )
    )
  split = source.split("test")
  resolved = workdir_lib.read_config(runs["ncl"][0])
  name = config.name or source.title
  things = "texts" if source.texts else "images"
  towers = ""
  if config.loss.name == "clip":
    towers = "; all but the rows of pairs and towers look at the first tower alone"
  return Comparison(
    title=f"CL against NCL on {name}",
    facts=(
      (
        "data",
        f"{source.title}: {source.num_examples('train')} training and "
        f"{source.num_examples('test')} test {things}, {source.num_classes} classes",
      ),
      (
        "network",
        f"{resolved.model.backbone}, width {resolved.model.width}, projector "
        f"{resolved.model.projector_hidden}-{resolved.model.projector_out}",
      ),
      (
        "training",
        f"{resolved.train.epochs} epochs of {resolved.train.batch_size} {things} a "
        f"step, {resolved.optimizer.name}, temperature {resolved.loss.temperature:g}"
        f"{' at first' if resolved.loss.learn_temperature else ''}, "
        f"NCL's transform {resolved.loss.transform}",
      ),
      (
        "evaluation",
        f"test {things}, network in evaluation mode; h = backbone features, f = "
        f"projector output after the transform, unit length{towers}",
      ),
      ("command", " ".join(["ncl compare", *map(_shared, sys.argv[1:])])),
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
    chance=_chance(source, rows, results["ncl"], labels),
    expected=paper_numbers.expected(config),
    seeds=tuple(seeds),
    labels=labels,
    images=split.pictures(thumbnails.SIDE),
    class_names=source.class_names,
    texts=tuple(texts_lib.from_pictures(split.images[np.arange(len(split))]))
    if source.texts
    else (),
    files=tuple(split.files.names()) if split.files else (),
    threshold=resolved.eval.threshold,
  )


def _shared(argument: str) -> str:
  """A word of the command without the places of this machine.

  >>> _shared("--config.data.source=folder:/home/me/photos")
  '--config.data.source=folder:.../photos'
  """
  return re.sub(r"(^|[=:,])/[^,:]*/(?=[^,/])", r"\1.../", argument)


def _chance(
  source: Source,
  rows: Sequence[Metric],
  results: list[dict[str, Any]],
  labels: np.ndarray,
) -> dict[str, float]:
  """What luck gives, by the row's key: of the classes alone, or as a program found."""
  chance: dict[str, float] = {}
  counts = np.bincount(labels[labels >= 0]) if source.num_classes else np.zeros(0)
  shares = counts / max(counts.sum(), 1)
  for row in rows:
    name, part, field = measures.place(row.key)
    lies = None
    if name == "pairs":
      lies = pair_measures.luck(part, field)
    elif name in ("sepin", "axes"):
      known = {"sepin": f"noise_{field}", "axes": f"{field}_chance"}[name]
      lies = (part, known) if field != "alignment" else None
    elif name == "feature_stats":
      lies = (part, f"{field}_chance") if field in WITH_CHANCE else None
    elif shares.any() and field in ("precision", "retrieval"):
      chance[row.key] = float(np.sum(shares**2))
    elif shares.any() and field in OWN_CLASSES:
      chance[row.key] = float(shares.max())
    if lies:
      found = [measures.number(result, name, *lies) for result in results]
      chance[row.key] = float(np.mean(found))
  return chance


def _remarks(config: ConfigDict, source: Source, seeds: int) -> tuple[str, ...]:
  """What the page does and does not show."""
  remarks = [
    "CL and NCL share initialisation, order of the images and views in each seed; the "
    "only difference is the transform on the projector's output.",
    "The control is the network before training with NCL's transform on it: an "
    "untrained rectified projection is sparse too, so sparsity alone shows little. "
    "Purity at matched activity compares all arms on the same number of images.",
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
    remarks.append(
      "No labels. Left out, as they need classes: accuracy, retrieval, class "
      "consistency, purity, the choice of dimensions. Sparsity, active dimensions, "
      "correlation, effective rank, SEPIN (from two views of an image) and, with "
      "several seeds, the agreement of axes need none."
    )
  return tuple(remarks)
