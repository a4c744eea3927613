"""studies/better_axes: the search and the verdict follow the preregistered rule."""

import numpy as np
import pytest

from studies.better_axes import projectors, run, tables

SPREAD = np.array([-0.002, -0.001, 0, 0.001, 0.002])


def scored(ncl, rival):
  """Rows of five seeds."""
  levels = {
    "CL": 0.2 + 0 * SPREAD,
    "NCL": ncl,
    "k-means, 256": rival,
    "varimax, 95%": 0.1,
  }
  return [
    {"features": name, "seed": s, "naming": float(v), "naming_one_sign": float(v)}
    for name, level in levels.items()
    for s, v in enumerate(np.broadcast_to(level, 5))
  ]


@pytest.mark.parametrize(
  "difference, word",
  [
    (0.025 + SPREAD, "reached"),
    (0.019 + SPREAD / 10, "refuted"),
    (0.019 + SPREAD, "undecided"),
    (0.025 + 30 * SPREAD, "undecided"),
    (-0.04 + SPREAD, "refuted"),
  ],
)
def test_the_verdict(difference, word):
  sentence = tables.verdict(scored(0.4 + difference, 0.4))
  assert f"(k-means, 256): {word}." in sentence


def test_ideas_that_help_are_combined_from_the_best_on_with_long_last():
  gains = {"wide": 0.02, "long": 0.03, "deep": 0.004, "columns": 0.01, "linear": -0.1}
  asked = []

  def row(method, names):
    asked.append(names)
    total = sum(gains.get(name, 0) for name in names)
    if {"wide", "columns"} <= set(names):
      total -= 0.011  # they do not go together
    return {"naming": 0.3 + total}

  # The best idea comes first although it is the long one.
  assert run.search("ncl", row) == ("long", "wide")
  assert asked[-2:] == [("long", "wide"), ("long", "wide", "columns")]


def test_without_an_idea_that_helps_the_base_stays():
  found = run.search("ncl", lambda method, names: {"naming": 0.3 - 0.01 * len(names)})
  assert found == ()


def test_of_cl_the_best_method_applied_afterwards_counts():
  assert tables.value({"naming": 0.9, "post_hoc": {"a": 0.3, "b": 0.4}}) == 0.4


def test_ideas_change_the_base_and_rates_multiply():
  assert projectors.recipe("cl", ("rate",)).rate == pytest.approx(4e-3)
  made = projectors.recipe("ncl", ("linear", "wide"))
  assert (made.hidden, made.out, made.rate) == (0, 1024, 5e-4)
  assert made.projector.depth == 1
