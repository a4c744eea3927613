"""Time to accuracy, and curves of runs."""

import json

import numpy as np
import pytest

from ncl_jax.errors import InputError
from studies.nce import run

CE = [[(10, 0.2), (20, 0.5), (30, 0.8)], [(10, 0.1), (20, 0.3), (30, 0.6)]]
NCE = [[(10, 0.4), (20, 0.7), (30, 0.7)], [(10, 0.4), (20, 0.6), (30, 0.6)]]


def test_steps_to_shares_of_the_references_final_accuracy():
  cells = {"CE": CE, "NCE": NCE}
  ce, nce = run.table_of(cells, {"CE": "CE", "NCE": "CE"})
  # CE ends at 70 % on average: levels 35, 56 and 66.5 %.
  assert (ce["seeds"], ce["final"], ce["lowest"], ce["highest"]) == (
    2,
    pytest.approx(70),
    60,
    80,
  )
  assert ce["steps to 50%"] == np.mean([20, 30])
  assert ce["steps to 80%"] == 30
  assert ce["steps to 95%"] is None  # the second seed never gets there
  assert nce["steps to 50%"] == 10
  assert nce["steps to 80%"] == 20


def test_the_curve_is_what_was_tested(tmp_path):
  rows = [
    {"step": 2, "loss": 1.0},
    {"step": 3, "test_top1": 0.25},
    {"step": 6, "test_top1": None},
    {"step": 9, "test_top1": 0.5},
  ]
  file = tmp_path / "metrics.jsonl"
  file.write_text("".join(json.dumps(row) + "\n" for row in rows))
  assert run.curve(tmp_path) == [(3, 0.25), (9, 0.5)]
  file.write_text(json.dumps(rows[0]) + "\n")
  with pytest.raises(InputError, match="no test accuracy.*test_every_epochs"):
    run.curve(tmp_path)
