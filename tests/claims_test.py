"""benchmarks/claims.py: a verdict follows from the results as it was preregistered."""

import copy

import numpy as np
import pytest
import scipy.stats

from benchmarks import claims
from ncl_jax.errors import InputError

SEEDS = 5
UP = np.array([0.010, 0.012, 0.011, 0.013, 0.009])  # clearly above 0
NOISE = np.array([0.02, -0.02, 0.01, -0.015, 0.01])  # mean 0.001, interval holds 0


def arms(**changes):
  """Results in which every claim is seen, but for changes: (arm, path) -> values."""
  base = {
    ("ncl", "feature_stats", "f", "sparsity"): 0.9 + UP,
    ("cl", "feature_stats", "f", "sparsity"): 0 * UP,
    ("untrained", "feature_stats", "f", "sparsity"): 0.5 + UP,
    ("ncl", "feature_stats", "f", "purity"): 0.7 + UP,
    ("cl", "feature_stats", "f", "purity"): 0.6 + 0 * UP,
    ("untrained", "feature_stats", "f", "purity"): 0.4 + UP,
    ("cl_varimax_map", "feature_stats", "f", "purity"): 0.5 + UP,
    ("ncl", "feature_stats", "f", "orthogonality"): 0.1 - UP,
    ("cl", "feature_stats", "f", "orthogonality"): 0.1 + 0 * UP,
    **{
      (arm, "sepin", "f", f"sepin@{k}"): 0.1 + up
      for arm, up in (("ncl", UP), ("cl", 0 * UP))
      for k in (1, 10)
    },
    ("ncl", "sepin", "f", "sepin@all"): 0.01 + NOISE,
    ("cl", "sepin", "f", "sepin@all"): 0.01 + 0 * UP,
    **{
      (arm, program, "h", "accuracy"): 0.8 + up
      for arm, up in (("ncl", UP), ("cl", 0 * UP))
      for program in ("linear_probe", "finetune")
    },
    ("ncl", "selection", "all", "probe"): 0.8 + 0 * UP,
    ("ncl", "selection", "ea_signed", "probe"): 0.8 + UP,
    ("ncl", "selection", "random_live", "probe"): 0.75 + UP,
    ("ncl", "selection", "ablation", "ea"): 0.5 + UP,
    ("ncl", "robustness", "f", "corrupted"): 0.6 + UP,
    ("cl", "robustness", "f", "corrupted"): 0.6 + 0 * UP,
    ("ncl", "axes", "f", "correlation"): 0.6 + UP,
    ("cl", "axes", "f", "correlation"): 0.5 + UP,
  }
  base |= changes.get("to", {})
  found: dict = {}
  for (arm, *path), values in base.items():
    rows = found.setdefault(arm, [{} for _ in range(SEEDS)])
    for row, value in zip(rows, values, strict=True):
      at = row
      for key in path[:-1]:
        at = at.setdefault(key, {})
      at[path[-1]] = float(value)
  return found


def verdicts(**changes):
  return [claim.verdict for claim in claims.claims(arms(**changes))]


def test_all_seen():
  assert verdicts() == ["seen"] * 10


@pytest.mark.parametrize(
  ("claim", "changes", "verdict"),
  [
    (0, {("ncl", "feature_stats", "f", "sparsity"): NOISE}, "undecided"),
    (0, {("untrained", "feature_stats", "f", "sparsity"): 0.95 + UP}, "undecided"),
    (1, {("ncl", "feature_stats", "f", "purity"): 0.6 - UP}, "not seen"),
    (1, {("cl_varimax_map", "feature_stats", "f", "purity"): 0.8 + UP}, "undecided"),
    (2, {("ncl", "feature_stats", "f", "orthogonality"): 0.1 + UP}, "not seen"),
    # The mean is on the right side, the interval is not.
    (2, {("ncl", "feature_stats", "f", "orthogonality"): 0.1 - NOISE}, "undecided"),
    (3, {("ncl", "sepin", "f", "sepin@10"): 0.1 + NOISE}, "undecided"),
    (3, {("ncl", "sepin", "f", "sepin@1"): 0.1 - UP}, "not seen"),
    (4, {("ncl", "sepin", "f", "sepin@all"): 0.01 + UP}, "not seen"),
    # A little worse is no worse, as long as the margin covers it.
    (5, {("ncl", "linear_probe", "h", "accuracy"): 0.8 - 0.1 * UP}, "seen"),
    (5, {("ncl", "linear_probe", "h", "accuracy"): 0.8 - UP}, "not seen"),
    (5, {("ncl", "finetune", "h", "accuracy"): 0.799 - NOISE}, "not seen"),
    (5, {("ncl", "finetune", "h", "accuracy"): 0.8 + NOISE}, "undecided"),
    (6, {("ncl", "selection", "ea_signed", "probe"): 0.8 - UP}, "not seen"),
    (6, {("ncl", "selection", "random_live", "probe"): 0.8 - 0.1 * UP}, "undecided"),
    (7, {("ncl", "selection", "ablation", "ea"): NOISE}, "undecided"),
    (8, {("ncl", "robustness", "f", "corrupted"): 0.6 - UP}, "not seen"),
    (9, {("ncl", "axes", "f", "correlation"): 0.5 + 2 * NOISE + UP}, "undecided"),
    (9, {("ncl", "axes", "f", "correlation"): 0.4 + UP}, "not seen"),
  ],
)
def test_each_claim_can_fail(claim, changes, verdict):
  expected = ["seen"] * 10
  expected[claim] = verdict
  assert verdicts(to=changes) == expected


@pytest.mark.parametrize(
  "missing",
  [("ncl", "sepin", "f", "sepin@all"), ("untrained", "feature_stats", "f", "purity")],
)
def test_a_seed_that_is_missing_is_an_error(missing):
  values = np.array([0.1, 0.2, 0.3, 0.4, np.nan])
  with pytest.raises(InputError, match=f"{missing[0]}.*{missing[-1]} needs 5 seeds"):
    claims.claims(arms(to={missing: values}))
  with pytest.raises(InputError, match="needs 5 seeds"):
    claims.claims({arm: rows[:2] for arm, rows in arms().items()})


def test_intervals_are_scipys():
  found = claims.claims(arms())[2]
  low, high = scipy.stats.ttest_1samp(-UP, 0).confidence_interval(0.95)
  assert found.figures == f"{-UP.mean():+.3g} [{low:+.3g}, {high:+.3g}]"


MAPS = {
  "identity": 0.4,
  "gelu": 0.45,
  "leaky_relu": 0.44,
  "relu": 0.6,
  "rep_relu": 0.7,
  "sigmoid": 0.5,
  "softplus": 0.5,
  "exp": 0.55,
}


def map_cells(**third):
  """Three seeds with the same order, but for the third's changes."""
  return [
    {
      "settings": {"loss.map": name, "seed": seed},
      "feature_stats": {"f": {"purity": (MAPS | (third if seed == 2 else {}))[name]}},
    }
    for seed in range(3)
    for name in MAPS
  ]


@pytest.mark.parametrize(
  ("third", "expected"),
  [
    ({}, ["seen", "seen"]),
    ({"gelu": 0.52}, ["undecided", "seen"]),
    ({"exp": 0.8}, ["seen", "undecided"]),
  ],
)
def test_maps(third, expected):
  found = claims.map_claims(map_cells(**third))
  assert [claim.verdict for claim in found] == expected


def test_maps_that_diverged_take_no_part_and_missing_ones_are_an_error():
  cells = map_cells()
  cells[-1] = {"settings": cells[-1]["settings"], "failed": "not finite"}
  worse, best = claims.map_claims(cells)
  assert (worse.verdict, best.verdict) == ("seen", "seen")
  assert "exp, seed 2" in worse.figures
  for few in ([], cells[:8], cells[:-1]):
    with pytest.raises(InputError, match="8 maps x 3 seeds"):
      claims.map_claims(few)


def test_maps_not_seen():
  cells = copy.deepcopy(map_cells())
  for cell in cells:
    if cell["settings"]["loss.map"] == "gelu":
      cell["feature_stats"]["f"]["purity"] = 0.9
  assert [c.verdict for c in claims.map_claims(cells)] == ["not seen", "not seen"]


@pytest.mark.parametrize(
  ("sparsity", "behind", "verdict"),
  [
    (0.5, 0.009, "seen"),
    (0.5, 0.01, "seen"),
    (0.5, 0.011, "undecided"),
    (0.0, 0.0, "undecided"),
  ],
)
def test_temperatures(sparsity, behind, verdict):
  cells = [
    {
      "settings": {"loss.map": name, "loss.temperature": t, "seed": seed},
      "feature_stats": {"f": {"sparsity": sparse if (t, seed) == (0.5, 1) else 0.9}},
      "linear_probe": {"h": {"accuracy": 0.8 - lost if seed == 0 else 0.8}},
    }
    for name, sparse, lost in (("identity", 0.0, 0.0), ("rep_relu", sparsity, behind))
    for t in (0.2, 0.5)
    for seed in (0, 1)
  ]
  for cell in cells:
    if cell["settings"]["loss.map"] == "identity":
      cell["feature_stats"]["f"]["sparsity"] = 0.0
  assert claims.temperature_claim(cells).verdict == verdict
  for cell in cells:  # whatever the order of the grid
    cell["settings"] = dict(reversed(cell["settings"].items()))
  assert claims.temperature_claim(cells).verdict == verdict
  with pytest.raises(InputError, match="rep_relu"):
    claims.temperature_claim(cells[:-1])
