"""Rows of the report: what an evaluator declares of each number that it shows there."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from ncl_jax.report import Metric
from ncl_jax.report.sweep import number

# Chance levels that follow from the classes of the test images alone.
LARGEST_CLASS = ("share of the largest class",)
SAME_CLASS = ("share of pairs of one class",)

MARGIN = 0.005  # half a point of accuracy: a loss of less counts as none


@dataclasses.dataclass(frozen=True)
class Row(Metric):
  """One row of the report's table, and where its number lies.

  Attributes:
    where: keys that lead to the number in the evaluator's result.
    chance: keys that lead to its chance level in the same result, or `LARGEST_CLASS` or
      `SAME_CLASS`; () for none.
    column: its heading in the table of controls; "" leaves it out there.
    lead: whether it stands among the first of its group.
    evaluator: the evaluator's name, which `registry.rows` fills in.
  """

  where: tuple[str, ...] = dataclasses.field(kw_only=True)
  chance: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
  column: str = dataclasses.field(default="", kw_only=True)
  lead: bool = dataclasses.field(default=False, kw_only=True)
  evaluator: str = dataclasses.field(default="", kw_only=True)


def accuracies(
  key: str,
  label: str,
  note: str,
  columns: Mapping[str, str],
  *,
  name: str = "accuracy",
  chance: tuple[str, ...] = LARGEST_CLASS,
) -> tuple[Row, ...]:
  """The rows of an accuracy on h and on f; on h a loss within `MARGIN` counts as none.

  Args:
    key: of the rows, without the layer.
    label: what a reader sees, without the layer.
    columns: layer -> heading in the table of controls.
    name: of the number in the result's layer.
  """
  return tuple(
    Row(
      f"{key}_{layer}",
      f"{label}, {layer}",
      "Accuracy",
      "%",
      "higher",
      note,
      where=(layer, name),
      chance=chance,
      column=columns.get(layer, ""),
      margin=MARGIN if layer == "h" else 0.0,
    )
    for layer in ("h", "f")
  )


def value(results: Mapping[str, Any], row: Row) -> float:
  """The number of a row.

  Args:
    results: evaluator -> its result, as far as they ran.

  Returns:
    NaN where the evaluator did not run or does not give the number.
  """
  return number(results.get(row.evaluator, {}), row.where)


def few(images: int) -> str:
  """How exact an accuracy on so many images is."""
  error = 100 * 0.5 / math.sqrt(images)
  return (
    f"{images} test images: one run's standard error is at most {error:.1f} points."
  )
