"""The table of results: cells, and their plain-text and Markdown forms."""

import dataclasses
import itertools
import math
import re
from collections.abc import Iterator

from ncl_jax.report import statistics
from ncl_jax.report.comparison import Comparison, Method, Metric

ARROWS = {"higher": " ↑", "lower": " ↓", "": ""}
NONE = "–"


@dataclasses.dataclass(frozen=True)
class Cell:
  """One cell: the number, its spread over seeds, and a remark."""

  value: str
  spread: str = ""
  remark: str = ""

  def __str__(self) -> str:
    remark = f"({self.remark})" if self.remark else ""
    return " ".join(part for part in (self.value, self.spread, remark) if part)


@dataclasses.dataclass(frozen=True)
class Row:
  """One metric: its label and a cell for each column."""

  metric: Metric
  label: str
  cells: tuple[Cell, ...]


def decimals(metric: Metric, numbers: list[float], whole: bool = False) -> int:
  """Decimals that give the largest number three significant digits: 1 to 6.

  NaN is passed over; `whole` numbers have no decimals.
  """
  if whole:
    return 0
  scale = 100 if metric.unit == "%" else 1
  largest = max((abs(x) * scale for x in numbers if math.isfinite(x)), default=0)
  return min(max(2 - math.floor(math.log10(largest)), 1), 6) if largest else 2


def number(x: float, unit: str, digits: int, sign: bool = False) -> str:
  """Writes one number of a metric; percentages times 100, NaN as a dash.

  >>> number(0.9731, "%", 1), number(-0.0001, "", 2, sign=True), number(math.nan, "", 0)
  ('97.3', '0.00', '–')
  """
  if not math.isfinite(x):
    return NONE
  text = f"{x * (100 if unit == '%' else 1):{'+' if sign else ''}.{digits}f}"
  # Neither "-0.0" nor "+0.0": a difference that rounds to zero has no direction.
  return text if float(text) else text.lstrip("+-")


def _method_cell(
  comparison: Comparison, metric: Metric, method: Method, digits: int
) -> Cell:
  summary, seeds = method.summary(metric), len(method.values.get(metric.key, ()))
  spread = ""
  if summary.deviation is not None:
    spread = f"± {number(summary.deviation, metric.unit, digits)}"
  remarks = []
  if 0 < summary.count < seeds:
    remarks.append(f"{summary.count} of {seeds} seeds")
  published = comparison.expected.get(method.key, {}).get(metric.key, math.nan)
  if math.isfinite(published):
    remarks.append(f"expected {number(published, metric.unit, digits)}")
  return Cell(number(summary.mean, metric.unit, digits), spread, ", ".join(remarks))


def difference(comparison: Comparison, metric: Metric) -> statistics.Difference:
  """Paired difference of the method and the baseline in one metric."""
  missing = (math.nan,) * len(comparison.seeds)
  return statistics.paired_difference(
    comparison.method.values.get(metric.key, missing),
    comparison.baseline.values.get(metric.key, missing),
  )


def columns(comparison: Comparison) -> tuple[str, ...]:
  """Headings of the columns after the first."""
  methods = tuple(method.label for method in comparison.methods)
  pair = f"{comparison.method.label} - {comparison.baseline.label}"
  return (*methods, pair, *(("chance",) if comparison.chance else ()))


def rows(comparison: Comparison) -> tuple[Row, ...]:
  """The cells of the table: one row a metric, in the comparison's order."""
  table, methods = [], comparison.methods
  for metric in comparison.metrics:
    means = [method.summary(metric).mean for method in methods]
    values = (x for method in methods for x in method.values.get(metric.key, ()))
    shown = [x for x in (*values, *means) if math.isfinite(x)]
    whole = not metric.unit and all(float(x).is_integer() for x in shown)
    digits = decimals(metric, means, whole)
    cells = [_method_cell(comparison, metric, method, digits) for method in methods]
    pair = difference(comparison, metric)
    interval = ""
    if pair.interval is not None:
      low, high = (number(x, metric.unit, digits, sign=True) for x in pair.interval)
      interval = f"[{low}, {high}]"
    mean = number(pair.mean, metric.unit, digits, sign=True)
    verdict = statistics.verdict(pair, metric.better, metric.margin)
    cells.append(Cell(mean, interval, verdict))
    if comparison.chance:
      chance = comparison.chance.get(metric.key, math.nan)
      cells.append(Cell(number(chance, metric.unit, digits)))
    unit = f", {metric.unit}" if metric.unit else ""
    label = f"{metric.label}{unit}{ARROWS[metric.better]}"
    table.append(Row(metric, label, tuple(cells)))
  return tuple(table)


def groups(comparison: Comparison) -> Iterator[tuple[str, Iterator[Row]]]:
  """The rows of each group, in the comparison's order."""
  return itertools.groupby(rows(comparison), lambda row: row.metric.group)


def legend(comparison: Comparison) -> str:
  """How to read the table, for the number of seeds at hand."""
  pair = columns(comparison)[len(comparison.methods)]
  parts = [
    "↑ higher is better, ↓ lower is better; h: backbone features; f: projector output"
    " after the transform, of unit length.",
    f"The column '{pair}' is a plain difference."
    if len(comparison.seeds) == 1
    else "± is the standard deviation over seeds; the column"
    f" '{pair}' holds the mean of the differences seed by seed and its 95 % t"
    " interval.",
  ]
  margins = sorted({metric.margin for metric in comparison.metrics if metric.margin})
  if margins and len(comparison.seeds) >= statistics.SEEDS_FOR_A_CLAIM:
    shown = " or ".join(f"{100 * margin:g}" for margin in margins)
    parts.append(
      "'not worse': the interval includes 0 but no loss of more than the margin,"
      f" {shown} points of accuracy."
    )
  if any(metric.unit == "%" for metric in comparison.metrics):
    parts.append("Differences of percentages are in points.")
  if comparison.chance:
    parts.append("Chance is what guessing, or shuffled labels, would give.")
  if any(comparison.expected.values()):
    parts.append("Expected: the number of the paper or of an earlier run.")
  return " ".join(parts)


def text(comparison: Comparison) -> str:
  """The table for a terminal: aligned columns, headings of groups, the claim below."""
  lines: list[tuple[str, ...]] = [("", *columns(comparison))]
  for group, body in groups(comparison):
    lines.append((group,))
    lines += [("  " + row.label, *map(str, row.cells)) for row in body]
  width = [max(map(len, of)) for of in itertools.zip_longest(*lines, fillvalue="")]
  aligned = [
    "  ".join(
      cell.rjust(width[i]) if i else cell.ljust(width[i]) for i, cell in enumerate(line)
    ).rstrip()
    for line in lines
  ]
  return "\n".join([*aligned, "", statistics.claim(len(comparison.seeds))])


def escape_markdown(string: str) -> str:
  r"""Makes any text safe inside a line or a table cell of Markdown.

  >>> escape_markdown("a|b *c* d_e <f>")
  'a\\|b \\*c\\* d_e &lt;f>'
  """
  string = " ".join(string.split()).replace("&", "&amp;").replace("<", "&lt;")
  # Underscores inside a word are plain text in every dialect; elsewhere they are not.
  return re.sub(r"([\\`*\[\]|$~]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", string)


def markdown(comparison: Comparison) -> str:
  """The table in Markdown, groups as bold rows."""
  head = columns(comparison)
  lines = [
    "| | " + " | ".join(map(escape_markdown, head)) + " |",
    "|---|" + "---:|" * len(head),
  ]
  for group, body in groups(comparison):
    lines.append(f"| **{escape_markdown(group)}** |" + " |" * len(head))
    for row in body:
      cells = (row.label, *map(str, row.cells))
      lines.append("| " + " | ".join(map(escape_markdown, cells)) + " |")
  return "\n".join(lines)
