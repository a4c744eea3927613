"""From evaluation results to what a report shows: `Comparison`, table of controls."""

import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import flax
import jax
import numpy as np
from ml_collections import ConfigDict

import ncl_jax
from ncl_jax import methods as methods_lib
from ncl_jax.data.source import Source
from ncl_jax.evaluators import registry
from ncl_jax.evaluators.registry import Row
from ncl_jax.evaluators.run import open_run
from ncl_jax.experiments import paper_numbers, training_notes
from ncl_jax.experiments.controls import LABELS
from ncl_jax.report import Comparison, Method
from ncl_jax.report.explorer import thumbnails
from ncl_jax.report.sweep import number
from ncl_jax.runtime import jsonl
from ncl_jax.training import workdir as workdir_lib

# The words that the page cannot do without.
GLOSSARY = (
  (
    "CL",
    "contrastive learning: the two views of an example are to have similar features, "
    "different examples different ones",
  ),
  ("NCL", "the same with non-negative features; nothing else differs"),
  ("h", "features of the backbone, which other tasks use"),
  ("f", "output of the projector after the transform, scaled to length 1"),
  ("dimension", "one entry of f; it is active on an example where it is not 0"),
)
# In the report; all controls are in the table beneath.
METHODS = ("cl", "ncl", "untrained")


def comparison(
  config: ConfigDict,
  source: Source,
  runs: dict[str, list[pathlib.Path]],
  results: dict[str, list[dict[str, Any]]],
) -> Comparison:
  """Everything that the report shows, as plain arrays."""
  seeds = range(config.seed, config.seed + len(runs["cl"]))
  rows = tuple(
    row
    for row in registry.rows(config, source)
    if np.isfinite(
      [registry.value(r, row) for method in METHODS for r in results[method]]
    ).any()
  )
  methods, labels = [], np.zeros(0)
  for method in METHODS:
    opened = open_run(runs.get(method, runs["ncl"])[0], source=source)
    run = opened.untrained() if method == "untrained" else opened
    labels = run.extract("test").labels
    curve = jsonl.read(runs[method][0] / "metrics.jsonl") if method in runs else []
    methods.append(
      Method(
        key=method,
        label=LABELS[method],
        values={
          row.key: tuple(registry.value(result, row) for result in results[method])
          for row in rows
        },
        curve=tuple(curve),
        features=run.layer("f", "test"),
      )
    )
  split = source.split("test")
  resolved = workdir_lib.read_config(runs["ncl"][0])
  return Comparison(
    title=f"CL against NCL on {config.name or source.title}",
    facts=_facts(resolved, source),
    remarks=(
      *training_notes.shortened(resolved),
      *(
        note
        for method in methods
        for note in training_notes.of(method.label, method.curve, resolved)
      ),
      *_remarks(config, source, len(seeds)),
      *(f"{note[0].upper()}{note[1:]}." for note in source.notes),
    ),
    glossary=GLOSSARY,
    metrics=rows,
    methods=tuple(methods),
    chance=_chance(source, rows, results["ncl"], labels),
    expected=paper_numbers.expected(config),
    seeds=tuple(seeds),
    labels=labels,
    images=split.pictures(thumbnails.SIDE),
    class_names=source.class_names,
    texts=tuple(source.texts_of("test")),
    files=tuple(split.files.names()) if split.files else (),
    threshold=resolved.eval.threshold,
  )


def _shared(argument: str) -> str:
  """A word of the command without the places of this machine.

  >>> _shared("--config.data.source=folder:/home/me/photos")
  '--config.data.source=folder:.../photos'
  """
  return re.sub(r"(^|[=:,])/[^,:]*/(?=[^,/])", r"\1.../", argument)


def _facts(config: ConfigDict, source: Source) -> tuple[tuple[str, str], ...]:
  """How it was made, by NCL's resolved config."""
  things = "texts" if source.texts else "images"
  towers = ""
  if methods_lib.of(config).captions:
    towers = "; all but the rows of pairs and towers look at the first tower alone"
  return (
    (
      "data",
      f"{source.title}: {source.num_examples('train')} training and "
      f"{source.num_examples('test')} test {things}, {source.classes}"
      + f"; a stratified fifth of the {things} is the test set"
      * source.divided,
    ),
    (
      "network",
      f"{config.model.backbone}, width {config.model.width}, projector "
      f"{config.model.projector_hidden}-{config.model.projector_out}",
    ),
    (
      "training",
      f"{config.train.epochs} epochs of {config.train.batch_size} {things} a "
      f"step, {config.optimizer.name}, temperature {config.loss.temperature:g}"
      f"{' at first' if config.loss.learn_temperature else ''}, "
      f"NCL's transform {config.loss.transform}",
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
  )


def _chance(
  source: Source, rows: Sequence[Row], results: list[dict[str, Any]], labels: np.ndarray
) -> dict[str, float]:
  """Chance levels by the row's key: of the classes alone, or as an evaluator found."""
  counts = np.bincount(labels[labels >= 0])
  shares = counts / max(counts.sum(), 1)
  of_classes = {}
  if source.num_classes and shares.any():
    of_classes[registry.SAME_CLASS] = float(np.sum(shares**2))
    of_classes[registry.LARGEST_CLASS] = float(shares.max())
  return {
    row.key: of_classes[row.chance]
    if row.chance in of_classes
    else float(np.mean([number(r.get(row.evaluator, {}), row.chance) for r in results]))
    for row in rows
    if row.chance
  }


def _remarks(config: ConfigDict, source: Source, seeds: int) -> tuple[str, ...]:
  """What the page does and does not show."""
  remarks = [
    "CL and NCL share initialisation, order of the images and views in each seed; the "
    "only difference is the transform on the projector's output.",
    "The control is the network before training with NCL's transform on it: an "
    "untrained rectified projection is sparse too, so sparsity alone shows little. "
    "Purity at a fixed activation rate compares all methods on equally many images.",
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
      "several seeds, cross-seed alignment need none."
    )
  return tuple(remarks)


def controls_table(
  config: ConfigDict,
  source: Source,
  results: Mapping[str, Sequence[dict[str, Any]]],
) -> str:
  """A line a method or control, a column a metric; means over seeds.

  Columns and lines without a number are left out. The results are those of
  `Measurements`.
  """
  rows = [row for row in registry.rows(config, source) if row.column]
  means = np.array(
    [
      [np.mean([registry.value(result, row) for result in seeds]) for row in rows]
      for seeds in results.values()
    ]
  )
  shown = np.flatnonzero(np.isfinite(means).any(0))
  cells = [["", *(rows[i].column for i in shown)]]
  for method, mean in zip(results, means, strict=True):
    if np.isfinite(mean).any():
      cells.append([LABELS[method], *(_cell(mean[i], rows[i].unit) for i in shown)])
  first, *others = (max(map(len, column)) for column in zip(*cells, strict=True))
  lines = [
    label.ljust(first)
    + "".join(x.rjust(max(10, n + 2)) for x, n in zip(row, others, strict=True))
    for label, *row in cells
  ]
  count = len(next(iter(results.values())))
  lines += [
    "",
    f"Means over {count} seed(s); shares in per cent, naming: class named by the "
    "strongest dimension, gain: that minus the same with axes rotated at random, EWP: "
    "energy-weighted purity, cons.: class consistency, "
    "purity: at a fixed activation rate, chance: consistency of shuffled labels.",
  ]
  if methods_lib.of(config).captions:
    lines.append(
      "Pairs and the other tower are left out of controls that change or replace the "
      "first tower alone."
    )
  if source.texts:
    lines.append("Controls made of pixels are left out: these are texts.")
  return "\n".join(lines)


def _cell(mean: float, unit: str) -> str:
  if not np.isfinite(mean):
    return "-"
  if unit == "%":
    return f"{100 * mean:.1f}"
  return f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}"
