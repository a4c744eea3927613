"""The page on parity: every difference that it lists has the test that it names."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "parity.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+_test\.py)::(\w+)`", PAGE)


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_the_test_exists(file, name):
  text = (ROOT / file).read_text(encoding="utf-8")
  assert re.search(rf"^ *def {name}\(", text, re.MULTILINE)


def test_every_difference_names_one():
  table = PAGE.split("## Different on purpose")[1].split("##")[0]
  rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
  assert len(rows) > 10
  assert all("_test.py::test_" in row.split(" | ")[-1] for row in rows)
