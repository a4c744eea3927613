"""Two towers, or two images of a thing: do they find each other, and by what?"""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import features, metrics
from ncl_jax.data import texts as texts_lib
from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError
from ncl_jax.evaluators import feature_stats, program
from ncl_jax.models import byte_tokenizer

KS = (1, 5, 10)
TOP = 8  # words and images kept of a dimension
LINES, SHOWN = 20, 4  # dimensions in the printed text, words and images of each


def evaluate(
  config: ConfigDict, variables: Any, source: Source, mesh: Mesh
) -> dict[str, Any]:
  """Retrieval both ways, classes by their names, and what activates a dimension.

  Of a run with captions the sides are "image" and "text", or "text" and "caption" where
  the images are texts; of one on pairs of images "image" and "partner", without class
  names and words. All on f, test split.

  Args:
    config: resolved settings.
    variables: {"params", "batch_stats"}.
    source: data with captions or partners.
    mesh: for the forward passes.

  Returns:
    {"settings", "recall", "chance", "zero_shot", the two sides, "both", "dimensions"}:
    recall "image_to_text@1" and so on, where images of the same caption count as each
    other's, and its chance, that of features that are all alike; zero_shot of the
    "classes" and of each further level with names, with "_largest" the share of the
    largest class, with "_mean" the mean over classes, which guessing brings to
    "_chance"; of each side what `feature_stats.statistics` gives, of both the live
    dimensions that they share. Of each dimension that is live for images its mean, and
    the words and images (positions, captions, texts) that activate it most.

  Raises:
    InputError: if the data have no pairs.
  """
  test = source.split("test")
  image = program.extract(config, variables, source, "test", mesh)
  f = image.layer("f", config.loss.transform)
  one, other = sides(config, source)
  if config.loss.name == "clip":
    g = embed_texts(config, variables, _captions(source))
    groups = np.unique(_captions(source), return_inverse=True)[1]
  elif test.partners is not None:
    partners = test.partners(np.arange(len(test)), np.random.default_rng(0))
    g = embed_images(config, variables, source, partners, mesh)
    groups = np.arange(len(f))
  else:
    raise InputError(
      f"{source.name} has no partners and loss.name is {config.loss.name}: pairs are "
      "captions with loss.name=clip, or partners"
    )
  recall: dict[str, float] = {}
  for name, x, y in ((f"{one}_to_{other}", f, g), (f"{other}_to_{one}", g, f)):
    recall |= {
      f"{name}@{k}": value for k, value in metrics.pair_recall(x, y, groups, KS).items()
    }
  nothing = np.zeros((len(f), 1), np.float32)
  chance = metrics.pair_recall(nothing, nothing, groups, KS)
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      layer="f",
      pairs=len(f),
      threshold=config.eval.threshold,
      activity=config.eval.activity,
      ties="mean over all orders",
    ),
    "recall": recall,
    "chance": {
      f"{a}_to_{b}@{k}": value
      for a, b in ((one, other), (other, one))
      for k, value in chance.items()
    },
  }
  if other != "partner":
    result["zero_shot"] = _zero_shot(config, variables, source, f)
  for name, rows in ((one, f), (other, g)):
    result[name] = feature_stats.statistics(
      rows,
      test.labels,
      source.num_classes,
      threshold=config.eval.threshold,
      activity=config.eval.activity,
      seed=config.seed,
    )
  live = (np.abs(f).max(0) > config.eval.threshold) & (
    np.abs(g).max(0) > config.eval.threshold
  )
  result["both"] = {"live_dimensions": int(live.sum())}
  words = words_of(_captions(source))
  by_word = None
  if other != "partner" and words:
    by_word = embed_texts(config, variables, words)
  result["dimensions"] = _dimensions(config, f, by_word, words, source)
  return result


def sides(config: ConfigDict, source: Source) -> tuple[str, str]:
  """What the two halves of a pair are called in the result."""
  if config.loss.name == "clip":
    return ("text", "caption") if source.texts else ("image", "text")
  return "image", "partner"


def embed_texts(
  config: ConfigDict, variables: Any, texts: Sequence[str] | np.ndarray
) -> np.ndarray:
  """Features f of texts by the text tower, in evaluation mode.

  Args:
    config: resolved settings, `loss.name` "clip".
    variables: {"params", "batch_stats"}.
    texts: N of them, at least one.

  Returns:
    [N, D] float32.

  Raises:
    FloatingPointError: if a feature is NaN or infinite.
  """
  tokens = byte_tokenizer.encode(texts, config.text.length)
  size, parts = config.eval.batch_size, []
  for start in range(0, len(tokens), size):
    rows = tokens[start : start + size]
    padded = np.pad(rows, ((0, size - len(rows)), (0, 0)))
    z = _embed_texts(config_lib.model(config), variables, padded)
    f = features.embed(z, config.loss.transform)
    parts.append(np.asarray(f)[: len(rows)])
  found = np.concatenate(parts)
  if bad := np.count_nonzero(~np.isfinite(found).all(1)):
    raise FloatingPointError(
      f"the features f of {bad} of {len(found)} texts hold NaN or infinity: nothing is "
      "measured. Use an earlier checkpoint, or train again with a lower learning rate"
    )
  return found


def embed_images(
  config: ConfigDict, variables: Any, source: Source, images: np.ndarray, mesh: Mesh
) -> np.ndarray:
  """Features f of other images than the source's, such as partners.

  Args:
    config: resolved settings.
    variables: {"params", "batch_stats"}.
    source: whose network it is.
    images: uint8 [N, H, W, C].
    mesh: for the forward passes.

  Returns:
    [N, D] float32.
  """
  split = Split(images, np.full(len(images), -1, np.int32))
  swapped = dataclasses.replace(source, splits=source.splits | {"test": split})
  seen = program.extract(config, variables, swapped, "test", mesh)
  return seen.layer("f", config.loss.transform)


def words_of(captions: Iterable[str]) -> list[str]:
  """The distinct words of texts, in small letters, in their order.

  >>> words_of(["Red apple", "an apple, green"])
  ['an', 'apple', 'green', 'red']
  """
  return sorted(
    {word for text in captions for word in re.findall(r"\w+", text.lower())}
  )


@jax.jit(static_argnums=0)
def _embed_texts(model, variables, tokens):
  with jax.default_matmul_precision("float32"):
    return model.apply(variables, tokens, method="embed_text")[2]


def _zero_shot(config, variables, source, f):
  """Accuracy at each level whose classes have names."""
  test = source.split("test")
  found = {}
  levels = {"": (test.labels, source.class_names)} | {
    name: (test.levels[name], names) for name, names in source.level_names.items()
  }
  for name, (labels, names) in levels.items():
    # Names that are numbers are labels without names.
    if not (labels >= 0).any() or all(name.isdecimal() for name in names):
      continue
    classes = embed_texts(config, variables, names)
    key = name or "classes"
    known = labels[labels >= 0]
    found[key] = metrics.zero_shot(f, classes, labels)
    found[f"{key}_largest"] = float(np.bincount(known).max() / len(known))
    found[f"{key}_mean"] = float(
      np.mean(
        [
          metrics.zero_shot(f, classes, np.where(labels == k, k, -1))
          for k in np.unique(known)
        ]
      )
    )
    found[f"{key}_chance"] = 1 / len(names)
  return found


def _dimensions(config, f, by_word, words, source):
  """Of each active dimension, the most active first: its words and images."""
  rows = []
  captions = _captions(source)
  texts = texts_lib.from_pictures(source.split("test").images) if source.texts else ()
  mean = f.mean(0)
  live = np.flatnonzero(np.abs(f).max(0) > config.eval.threshold)
  for d in live[np.argsort(-mean[live], kind="stable")]:
    images = _largest(f[:, d])
    row = {"dimension": int(d), "mean": float(mean[d]), "images": images.tolist()}
    if len(captions):
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


def _captions(source: Source) -> np.ndarray:
  captions = source.split("test").captions
  return np.array([], str) if captions is None else captions


def text(row: dict[str, Any]) -> str:
  """A result as lines to read.

  Args:
    row: from `evaluate`.
  """
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
        f"{values['live_dimensions']:.0f} of {values['dimensions']:.0f}, class "
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
