"""The table: formats of numbers, cells computed by hand, alignment, escaping."""

import dataclasses
import re

import numpy as np
import pytest
import report_example as example

from ncl_jax import report
from ncl_jax.report import Metric, tables

PERCENT = Metric("p", "p", "g", "%")
PLAIN = Metric("x", "x", "g")


@pytest.mark.parametrize(
  ("metric", "numbers", "digits"),
  [
    (PERCENT, [0.97, 0.05], 1),
    (PERCENT, [1.0], 1),
    (PERCENT, [0.074, 0.018], 2),
    (PERCENT, [0.0], 2),
    (PLAIN, [0.31, 0.05], 3),
    (PLAIN, [7.43], 2),
    (PLAIN, [0.0034], 5),
    (PLAIN, [1e-9], 6),
    (PLAIN, [12345.6], 1),
    (PLAIN, [], 2),
    (PLAIN, [float("nan"), 7.43], 2),
  ],
)
def test_decimals_give_three_significant_digits(metric, numbers, digits):
  assert tables.decimals(metric, numbers) == digits


@pytest.mark.parametrize(
  ("x", "unit", "digits", "sign", "text"),
  [
    (0.5, "%", 1, False, "50.0"),
    (0.5, "", 2, True, "+0.50"),
    (-0.5, "", 2, True, "-0.50"),
    (0.0001, "", 2, True, "0.00"),
    (-0.0001, "", 2, False, "0.00"),
    (46, "", 0, False, "46"),
    (float("inf"), "", 0, False, "–"),
  ],
)
def test_numbers(x, unit, digits, sign, text):
  assert tables.number(x, unit, digits, sign) == text


def markdown_rows(comparison):
  """Cells of the Markdown table, split at bars that are not escaped."""
  lines = tables.markdown(comparison).splitlines()
  cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
  return [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in row] for row in cells]


def test_markdown_cells_by_hand():
  rows = markdown_rows(example.make())
  assert rows[0] == ["", "CL", "NCL", "untrained", "NCL - CL", "chance"]
  assert {len(row) for row in rows} == {6}
  body = {row[0]: row[1:] for row in rows[2:]}
  # d = .01, .02, .03: mean .02, sd .01, t(2) = 4.3027: half width .02484.
  assert body["nearest neighbours, h, % ↑"] == [
    "91.0 ± 1.0", "93.0 ± 2.0", "–", "+2.0 [-0.5, +4.5]", "25.0",
  ]  # fmt: skip
  # One NaN: the two other seeds; d = 0, .02: mean .01, half width 12.706 * .01.
  assert body["linear probe, h, % ↑"] == [
    "95.0 ± 0.0", "96.0 ± 1.4 (2 of 3 seeds)", "–", "+1.0 [-11.7, +13.7]", "–",
  ]  # fmt: skip
  assert body["sparsity, % ↑"] == [
    "0.0 ± 0.0", "80.0 ± 0.0 (expected 93.0)", "50.0 ± 0.0", "+80.0 [+80.0, +80.0]",
    "–",
  ]  # fmt: skip
  assert body["mean |C - I| ↓"][:2] == ["0.310 ± 0.010", "0.050 ± 0.000"]
  assert body["active dimensions"][:2] == ["12.0 ± 0.0", "8.3 ± 0.6"]
  assert [row[0] for row in rows if row[0].startswith("**")] == [
    "**Accuracy**", "**Interpretability**", "**Health**",
  ]  # fmt: skip


def test_one_seed_has_neither_deviation_nor_interval():
  comparison = example.with_seeds(example.make(), 1)
  body = {row[0]: row[1:] for row in markdown_rows(comparison)}
  assert body["nearest neighbours, h, % ↑"] == ["90.0", "91.0", "–", "+1.0", "25.0"]
  assert body["active dimensions"] == ["12", "8", "–", "-4", "–"]
  assert "±" not in tables.legend(comparison)
  assert "plain difference" in tables.legend(comparison)


def test_five_seeds_bring_verdicts():
  comparison = example.with_seeds(example.make(), 5)
  body = {row[0]: row[1:] for row in markdown_rows(comparison)}
  assert body["nearest neighbours, h, % ↑"][3] == "+1.0 [+1.0, +1.0] (better)"
  assert body["mean |C - I| ↓"][3].endswith("(better)")
  assert body["active dimensions"][3].endswith("(lower)")


def test_missing_everywhere_is_a_dash():
  comparison = example.make(metrics=(Metric("absent", "absent", "Health"),), chance={})
  assert markdown_rows(comparison)[-1] == ["absent", "–", "–", "–", "–"]


def test_terminal_table_is_aligned_and_complete():
  comparison = example.make()
  lines = report.table(comparison).splitlines()
  assert (
    lines[-1] == "3 seeds: fewer than 5, so intervals are shown but nothing is claimed."
  )
  head, body = lines[0], [line for line in lines[1:-2] if line.startswith("  ")]
  assert len(body) == len(comparison.metrics)
  # Right-aligned: every column ends where its heading ends.
  for title in ("CL", "NCL", "untrained", "NCL - CL", "chance"):
    end = re.search(rf"(?<=  ){re.escape(title)}(?=  |$)", head).end()
    for line in body:
      assert line[end - 1] != " "
      assert len(line) == end or line[end] == " "
  for row in markdown_rows(comparison)[2:]:
    if not row[0].startswith("**"):
      line = next(line for line in body if line.strip().startswith(row[0]))
      assert re.split(r"\s{2,}", line.strip()) == row
  assert [line for line in lines[1:-2] if line and not line.startswith("  ")] == [
    "Accuracy", "Interpretability", "Health",
  ]  # fmt: skip


def test_legend_explains_what_the_table_holds():
  full = tables.legend(example.make())
  assert "standard deviation" in full
  assert "Chance" in full
  assert "Expected" in full
  bare = tables.legend(example.make(chance={}, expected={}))
  assert "Chance" not in bare
  assert "Expected" not in bare


@pytest.mark.parametrize(
  ("raw", "escaped"),
  [
    ("a|b", r"a\|b"),
    ("*a* _b_ c_d", r"\*a\* \_b\_ c_d"),
    ("__init__", r"\_\_init\_\_"),
    ("<b>&amp;", "&lt;b>&amp;amp;"),
    ("two\nlines\tand $x$", r"two lines and \$x\$"),
    ("[a](b) `c`", r"\[a\](b) \`c\`"),
  ],
)
def test_markdown_escapes(raw, escaped):
  assert tables.escape_markdown(raw) == escaped


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda c: {"labels": c.labels[:-1]}, "labels: 19 rows for 20 images"),
    (
      lambda c: {
        "methods": (
          c.methods[0],
          dataclasses.replace(c.methods[1], features=np.zeros((3, 2))),
        )
      },
      "features of 'ncl': 3 rows for 20 images",
    ),
  ],
)
def test_inconsistent_comparisons_are_refused(change, message):
  comparison = example.make()
  with pytest.raises(ValueError, match=re.escape(message)):
    dataclasses.replace(comparison, **change(comparison))
