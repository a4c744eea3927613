"""Two towers, or two images of a thing: do they find each other, and by what?"""

import functools
import itertools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax import methods, metrics
from ncl_jax.data.source import Source
from ncl_jax.evaluators import feature_stats
from ncl_jax.evaluators.embedding import embed_images, embed_texts
from ncl_jax.evaluators.registry import Row, evaluator
from ncl_jax.evaluators.run import FeatureSource, Run

KS = (1, 5, 10)
TOP = 8  # words and images kept of a dimension
LINES, SHOWN = 20, 4  # dimensions in the printed text, words and images of each


# Of each side: key of `feature_stats.statistics`, label, unit, better, note.
SIDE = (
  ("sparsity", "sparsity", "%", "higher", "share of zeros in f"),
  (
    "consistency_abs",
    "class consistency",
    "%",
    "higher",
    "mean over active dimensions; chance: with shuffled labels",
  ),
  (
    "purity",
    "purity at a fixed activation rate",
    "%",
    "higher",
    "the same number of images for each method",
  ),
  ("active_dimensions", "active dimensions", "", "higher", "that something activates"),
  ("orthogonality", "mean correlation |C - I|", "", "lower", "of active dimensions"),
)


def rows(config: ConfigDict, source: Source) -> tuple[Row, ...]:
  """Recall both ways, classes by their names, and of each side its dimensions."""
  one, other = sides(config, source)
  row = functools.partial(Row, group="Pairs", unit="%", better="higher")
  same = "" if other == "partner" else " Those of one caption count as each other's."
  found = [
    row(
      f"pairs:recall:{a}_to_{b}@{k}",
      f"recall@{k}, {a} to {b}",
      note=f"share of {source.num_examples('test')} test pairs whose other half is "
      f"among the k nearest.{same}",
      where=("recall", f"{a}_to_{b}@{k}"),
      chance=("chance", f"{a}_to_{b}@{k}"),
      column=f"to {b} @{k}" if k == KS[-1] else "",
    )
    for a, b in ((one, other), (other, one))
    for k in KS
  ]
  for level in () if other == "partner" else ("classes", *source.level_names):
    what = "zero-shot" if level == "classes" else f"zero-shot, {level}"
    found += [
      row(
        f"pairs:zero_shot:{level}",
        what,
        note="the class whose name's features are nearest; chance: the largest class.",
        where=("zero_shot", level),
        chance=("zero_shot", f"{level}_largest"),
        column="zero-shot" if level == "classes" else "",
      ),
      row(
        f"pairs:zero_shot:{level}_mean",
        f"{what}, mean over classes",
        note="each class counts the same; chance: one of the classes.",
        where=("zero_shot", f"{level}_mean"),
        chance=("zero_shot", f"{level}_chance"),
      ),
    ]
  columns = {"sparsity": f"spars. {other}", "consistency_abs": f"cons. {other}"}
  found += [
    # Each side apart: the other tower is no copy of the first.
    Row(
      f"pairs:{side}:{key}",
      f"{label}, {side}",
      "Towers",
      unit,
      better,
      f"of the test set's {side}s: {note}.",
      where=(side, key),
      chance=(side, f"{key}_chance") if key in ("consistency_abs", "purity") else (),
      column=columns.get(key, "") if side == other else "",
    )
    for key, label, unit, better, note in SIDE
    for side in (one, other)
  ]
  both = Row(
    "pairs:both:active_dimensions",
    "active in both",
    "Towers",
    better="higher",
    note=f"dimensions that some {one} and some {other} activates.",
    where=("both", "active_dimensions"),
  )
  return (*found, both)


@evaluator("pairs", rows=rows, labels=False, pairs=True)
def evaluate(run: FeatureSource) -> dict[str, Any]:
  """Retrieval both ways, classes by their names, and what activates a dimension.

  Of a run with captions the sides are "image" and "text", or "text" and "caption" where
  the images are texts; of one on pairs of images "image" and "partner", without class
  names and words. All on f, test split.

  Returns:
    {"settings", "recall", "chance", "zero_shot", the two sides, "both", "dimensions"}:
    recall "image_to_text@1" and so on, where images of the same caption count as each
    other's, and its chance, that of features that are all alike; zero_shot of the
    "classes" and of each further level with names, with "_largest" the share of the
    largest class, with "_mean" the mean over classes, which guessing brings to
    "_chance"; of each side what `feature_stats.statistics` gives, of both the active
    dimensions that they share. Of each dimension that is active for images its mean,
    and the words and images (positions, captions, texts) that activate it most.
  """
  config, source = run.config, run.source
  test, (one, other) = source.split("test"), sides(config, source)
  f = run.layer("f", "test")
  words, by_word, zero_shot = [], None, {}
  if methods.of(config).captions:
    assert isinstance(run, Run) and test.captions is not None  # of two towers
    g = embed_texts(run, test.captions)
    groups = np.unique(test.captions, return_inverse=True)[1]
    if words := words_of(test.captions):
      by_word = embed_texts(run, words)
    zero_shot = {"zero_shot": _zero_shot(run, f)}
  else:
    assert test.partners is not None  # as `registry.lacks` has seen
    partners = test.partners(np.arange(len(test)), np.random.default_rng(0))
    g = embed_images(run, partners)
    groups = np.arange(len(f))
  settings: dict[str, Any] = {
    "threshold": config.eval.threshold,
    "activation_rate": config.eval.activation_rate,
  }
  nothing = np.zeros((len(f), 1), np.float32)
  f_live, g_live = (np.abs(x).max(0) > config.eval.threshold for x in (f, g))
  return {
    "settings": run.describe(
      layer="f", pairs=len(f), **settings, ties="mean over all orders"
    ),
    "recall": _recall(f, g, groups, (one, other)),
    "chance": _recall(nothing, nothing, groups, (one, other)),
    **zero_shot,
    **{
      side: feature_stats.statistics(
        x, test.labels, source.num_classes, **settings, seed=config.seed
      )
      for side, x in ((one, f), (other, g))
    },
    "both": {"active_dimensions": int((f_live & g_live).sum())},
    "dimensions": _dimensions(f, f_live, by_word, words, source),
  }


def _recall(
  f: np.ndarray, g: np.ndarray, groups: np.ndarray, names: tuple[str, str]
) -> dict[str, float]:
  """Recall from f to g and back: "ONE_to_OTHER@K" -> share."""
  one, other = names
  return {
    f"{a}_to_{b}@{k}": found
    for a, b, x, y in ((one, other, f, g), (other, one, g, f))
    for k, found in metrics.pair_recall(x, y, groups, KS).items()
  }


def sides(config: ConfigDict, source: Source) -> tuple[str, str]:
  """What the two halves of a pair are called in the result."""
  if methods.of(config).captions:
    return ("text", "caption") if source.texts else ("image", "text")
  return "image", "partner"


def words_of(captions: Iterable[str]) -> list[str]:
  """The distinct words of texts, in small letters, in their order.

  >>> words_of(["Red apple", "an apple, green"])
  ['an', 'apple', 'green', 'red']
  """
  return sorted(
    {word for text in captions for word in re.findall(r"\w+", text.lower())}
  )


def _zero_shot(run: Run, f: np.ndarray) -> dict[str, float]:
  """Accuracy at each level whose classes have names."""
  test = run.source.split("test")
  found = {}
  levels = {"classes": (test.labels, run.source.class_names)} | {
    name: (test.levels[name], names) for name, names in run.source.level_names.items()
  }
  for key, (labels, names) in levels.items():
    known = labels[labels >= 0]
    # Names that are numbers are labels without names.
    if not known.size or all(name.isdecimal() for name in names):
      continue
    classes = embed_texts(run, names)
    of_each = [
      metrics.zero_shot(f, classes, np.where(labels == k, k, -1))
      for k in np.unique(known)
    ]
    found[key] = metrics.zero_shot(f, classes, labels)
    found[f"{key}_largest"] = float(np.bincount(known).max() / len(known))
    found[f"{key}_mean"] = float(np.mean(of_each))
    found[f"{key}_chance"] = 1 / len(names)
  return found


def _dimensions(f, live, by_word, words, source) -> list[dict[str, Any]]:
  """Of each active dimension, the most active first: its words and images."""
  rows = []
  captions, texts = source.split("test").captions, source.texts_of("test")
  mean = f.mean(0)
  for d in np.argsort(-mean, kind="stable"):
    if not live[d]:
      continue
    images = _largest(f[:, d])
    row = {"dimension": int(d), "mean": float(mean[d]), "images": images.tolist()}
    if captions is not None:
      row["captions"] = [str(captions[n]) for n in images]
    if texts:
      row["texts"] = [texts[n] for n in images]
    if by_word is not None:
      row["words"] = [words[n] for n in _largest(by_word[:, d])]
    rows.append(row)
  return rows


def _largest(values: np.ndarray) -> np.ndarray:
  """Positions of the largest values, those above 0 alone, largest first."""
  order = np.argsort(-values, kind="stable")[:TOP]
  return order[values[order] > 0]


def text(row: dict[str, Any]) -> str:
  """A result as lines to read."""
  lines = [f"{row['settings']['pairs']} test pairs, recall"]
  lines += [f"  {name:22} {value:6.1%}" for name, value in row["recall"].items()]
  for name, value in row.get("zero_shot", {}).items():
    lines.append(f"zero-shot {name:14} {value:6.1%}")
  for side in ("image", "text", "partner", "caption"):
    if side in row:
      values = row[side]
      purity = values.get("consistency_abs", float("nan"))
      lines.append(
        f"{side:8} sparsity {values['sparsity']:.1%}, active dimensions "
        f"{values['active_dimensions']:.0f} of {values['dimensions']:.0f}, class "
        f"consistency {purity:.1%}"
      )
  lines.append("dimensions, the most active first: words | captions of images")
  for found in row["dimensions"][:LINES]:
    words = ", ".join(found.get("words", ())[:SHOWN]) or "-"
    names = found.get("texts") or found.get("captions")
    images = names or map(str, found["images"])
    captions = " / ".join(itertools.islice(images, SHOWN))
    lines.append(f"  {found['dimension']:5}  {words} | {captions}")
  return "\n".join(lines)
