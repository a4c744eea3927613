"""The rows of the report's table for two towers or pairs of images, by `launch.pairs`.

A row's key says where its number lies: "pairs:PART:FIELD" of that program's result.
"""

from ml_collections import ConfigDict

from ncl_jax.data.source import Source
from ncl_jax.evaluators import needs, pairs
from ncl_jax.report import Metric

PREFIX = "pairs:"
# Of each side: field of `feature_stats.statistics`, label, unit, better, note.
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
    "purity at matched activity",
    "%",
    "higher",
    "the same number in each arm",
  ),
  ("live_dimensions", "active dimensions", "", "higher", "that something activates"),
  ("orthogonality", "mean correlation |C - I|", "", "lower", "of active dimensions"),
)


def place(key: str) -> tuple[str, str, str]:
  """(program, part, field) of a row.

  >>> place("pairs:recall:image_to_text@1")
  ('pairs', 'recall', 'image_to_text@1')
  """
  name, part, field = key.split(":", 2)
  return name, part, field


def luck(part: str, field: str) -> tuple[str, str] | None:
  """Where the result has what chance gives of a field; None where it has not.

  >>> luck("zero_shot", "classes"), luck("image", "sparsity")
  (('zero_shot', 'classes_largest'), None)
  """
  if part == "recall":
    return "chance", field
  if part == "zero_shot":
    level = field.removesuffix("_mean")
    return part, f"{level}_{'largest' if level == field else 'chance'}"
  if field in ("consistency_abs", "purity"):
    return part, f"{field}_chance"
  return None


def metrics(config: ConfigDict, source: Source) -> tuple[Metric, ...]:
  """The rows that a comparison can have, in their order; () for single images."""
  if not needs.paired(config, source):
    return ()
  one, other = pairs.sides(config, source)
  count = source.num_examples("test")
  same = "" if other == "partner" else " Those of one caption count as each other's."
  found = f"share of {count} test pairs whose other half is among the k nearest.{same}"
  rows = [
    (
      f"recall:{a}_to_{b}@{k}",
      f"recall@{k}, {a} to {b}",
      "Pairs",
      "%",
      "higher",
      found,
    )
    for a, b in ((one, other), (other, one))
    for k in pairs.KS
  ]
  if other != "partner":
    for level in ("classes", *source.level_names):
      what = "zero-shot" if level == "classes" else f"zero-shot, {level}"
      rows += [
        (
          f"zero_shot:{level}",
          what,
          "Pairs",
          "%",
          "higher",
          "the class whose name's features are nearest; chance: the largest class.",
        ),
        (
          f"zero_shot:{level}_mean",
          f"{what}, mean over classes",
          "Pairs",
          "%",
          "higher",
          "each class counts the same; chance: one of the classes.",
        ),
      ]
  for field, label, unit, better, note in SIDE:
    for side in (one, other):
      # Each side apart: the other tower is no copy of the first.
      text = f"of the test set's {side}s: {note}."
      rows.append((f"{side}:{field}", f"{label}, {side}", "Towers", unit, better, text))
  rows.append(
    (
      "both:live_dimensions",
      "live for both",
      "Towers",
      "",
      "higher",
      f"dimensions that some {one} and some {other} activates.",
    )
  )
  return tuple(Metric(PREFIX + key, *rest) for key, *rest in rows)
