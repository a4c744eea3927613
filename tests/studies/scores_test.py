"""studies/scores.py: a verdict follows from the scores as it was preregistered."""

import numpy as np
import pytest

from studies import scores

SPREAD = np.array([-0.002, -0.001, 0, 0.001, 0.002])
NOISE = np.array([-0.3, 0.3, -0.2, 0.2, 0.01])


def rows(ncl=0.4, cl=0.3, gain=0.1, untrained=0.2, rival=0.4, noise=SPREAD):
  """Scores of five seeds; each number may differ by seed."""
  levels = {"NCL": ncl + noise, "CL": cl + 0 * noise, "untrained": untrained}
  levels |= {"kmeans": rival, "varimax 95": 0.1, "varimax 99": 0.1}
  made = []
  for name, level in levels.items():
    for seed, value in enumerate(np.broadcast_to(level, 5)):
      row = {"features": name, "seed": seed, "naming": float(value)}
      made.append(row | {"naming_one_sign": float(value), "axis_gain": gain})
  return made


@pytest.mark.parametrize(
  "changed, expected",
  [
    ({}, "seen"),
    ({"ncl": 0.3}, "not seen"),
    ({"ncl": 0.301}, "undecided"),
    ({"gain": -0.1}, "not seen"),
    ({"untrained": 0.5}, "undecided"),
    ({"noise": NOISE}, "undecided"),
  ],
)
def test_the_primary_verdict(changed, expected):
  first, _ = scores.verdicts(rows(**changed))
  assert f": {expected}." in first


@pytest.mark.parametrize(
  "changed, expected",
  [
    ({}, "seen"),
    ({"rival": 0.415}, "seen"),
    ({"rival": 0.43}, "refuted"),
    ({"rival": 0.42}, "undecided"),
    ({"noise": NOISE}, "undecided"),
  ],
)
def test_as_good_as_the_best_rival_within_the_margin(changed, expected):
  _, second = scores.verdicts(rows(**changed))
  assert "(kmeans)" in second and f": {expected}." in second


def test_cls_better_form_counts():
  made = rows()
  for row in made:
    if row["features"] == "CL":
      row["naming_one_sign"] = 0.5
  assert ": not seen." in scores.verdicts(made)[0]


def test_the_measures_of_an_oracle_beside_its_rotation():
  rng = np.random.default_rng(0)
  labels = scores.Labels(np.arange(400) % 5, np.arange(200) % 5, 5)
  code = np.eye(20, dtype=np.float32)
  groups = [np.arange(n) % 20 for n in (400, 200)]
  q, _ = np.linalg.qr(rng.normal(size=(20, 20)))
  noise = [0.05 * rng.random((n, 20)).astype(np.float32) for n in (400, 200)]
  ncl = [scores.unit(code[g] + x) for g, x in zip(groups, noise, strict=True)]
  cl = [(x @ q).astype(np.float32) for x in ncl]
  found = scores.seed_rows(
    scores.Features(*cl),
    scores.Features(*ncl),
    scores.Features(*[np.maximum(x, 0) for x in cl]),
    labels,
    seed=0,
  )
  of = {row["features"]: row for row in found}
  assert of["NCL"]["naming"] == of["NCL"]["naming_one_sign"] == 1
  assert of["NCL"]["axis_gain"] > 0.1 + max(0, of["CL"]["axis_gain"])
  assert of["CL"]["naming"] < 0.9
  # A rotation keeps what neighbours see.
  assert of["CL"]["neighbours"] == of["NCL"]["neighbours"] == 1
  assert "| NCL | 100.0 |" in scores.table(found)
  same = scores.alignment([scores.Features(*ncl)] * 2, [0, 1])
  np.testing.assert_allclose(same, 1, atol=1e-6)
