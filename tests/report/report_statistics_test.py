"""Means and paired intervals against scipy, the standard library and closed forms."""

import math
import statistics as reference

import numpy as np
import pytest
import scipy.stats

from ncl_jax.report import statistics
from ncl_jax.report.statistics import Difference

NAN = float("nan")


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_interval_is_that_of_the_paired_t_test(n):
  rng = np.random.default_rng(n)
  a, b = rng.normal(0.5, 0.1, n), rng.normal(0.4, 0.1, n)
  ours = statistics.paired_difference(a, b)
  interval = scipy.stats.ttest_rel(a, b).confidence_interval(0.95)
  np.testing.assert_allclose(ours.interval, tuple(interval), rtol=1e-12)
  assert ours.mean == pytest.approx(np.mean(a) - np.mean(b), rel=1e-12)
  assert ours.pairs == n


def test_interval_of_two_pairs_in_closed_form():
  # One degree of freedom is the Cauchy distribution: its quantile is a tangent.
  quantile = math.tan(math.pi * (0.975 - 0.5))
  low, high = statistics.paired_difference([0.3, 0.7], [0.1, 0.1]).interval
  # d = .2, .6: mean .4; sd / sqrt(2) = |d1 - d2| / 2 = .2.
  assert (low, high) == pytest.approx((0.4 - 0.2 * quantile, 0.4 + 0.2 * quantile))


def test_interval_of_three_pairs_in_closed_form():
  # Two degrees of freedom: t = a sqrt(2 / (1 - a^2)), a the level.
  quantile = 0.95 * math.sqrt(2 / (1 - 0.95**2))
  low, high = statistics.paired_difference([1.0, 2.0, 3.0], [0.0] * 3).interval
  half = quantile / math.sqrt(3)  # sd = 1
  assert (low, high) == pytest.approx((2 - half, 2 + half))


def test_pairs_with_nan_are_left_out_of_both_methods():
  whole = statistics.paired_difference([1.0, 5.0], [0.5, 2.0])
  holes = statistics.paired_difference([1.0, NAN, 5.0, 9.0], [0.5, 7.0, 2.0, NAN])
  assert holes == whole


@pytest.mark.parametrize(
  ("a", "b", "mean", "interval", "pairs"),
  [
    ([0.5], [0.25], 0.25, None, 1),
    ([NAN, 0.5], [0.0, 0.25], 0.25, None, 1),
    ([0.5, 0.5], [0.25, 0.25], 0.25, (0.25, 0.25), 2),
  ],
)
def test_differences_at_the_edges(a, b, mean, interval, pairs):
  assert statistics.paired_difference(a, b) == Difference(mean, interval, pairs)


def test_difference_without_a_pair():
  ours = statistics.paired_difference([NAN], [1.0])
  assert math.isnan(ours.mean)
  assert ours.interval is None
  assert ours.pairs == 0


def test_summary_is_that_of_the_standard_library():
  values = [0.1, 0.4, 0.35, 0.9]
  ours = statistics.summarize([*values, NAN, math.inf])
  assert ours.mean == pytest.approx(reference.mean(values), rel=1e-12)
  assert ours.deviation == pytest.approx(reference.stdev(values), rel=1e-12)
  assert ours.count == 4


@pytest.mark.parametrize("values", [[], [NAN]])
def test_summary_without_a_value(values):
  ours = statistics.summarize(values)
  assert math.isnan(ours.mean)
  assert (ours.deviation, ours.count) == (None, 0)


def test_one_seed_has_no_deviation():
  assert statistics.summarize([0.5]) == statistics.Summary(0.5, None, 1)


@pytest.mark.parametrize(
  ("seeds", "says"),
  [
    (1, "nothing is claimed"),
    (2, "2 seeds: fewer than 5"),
    (4, "4 seeds: fewer than 5"),
    (5, "a difference is claimed where"),
    (9, "9 seeds: a difference is claimed where"),
  ],
)
def test_claim_depends_on_the_number_of_seeds(seeds, says):
  sentence = statistics.claim(seeds)
  assert says in sentence
  assert ("nothing is claimed" in sentence) == (seeds < 5)


@pytest.mark.parametrize(
  ("interval", "pairs", "better", "says"),
  [
    (None, 1, "higher", ""),
    ((0.1, 0.2), 4, "higher", ""),  # too few pairs, whatever the interval
    ((0.1, 0.2), 5, "higher", "better"),
    ((0.1, 0.2), 5, "lower", "worse"),
    ((-0.2, -0.1), 5, "higher", "worse"),
    ((-0.2, -0.1), 5, "lower", "better"),
    ((0.1, 0.2), 5, "", "higher"),
    ((-0.2, -0.1), 5, "", "lower"),
    ((-0.1, 0.2), 5, "higher", "undecided"),
    ((0.0, 0.2), 5, "higher", "undecided"),
    ((0.0, 0.0), 5, "", "equal"),
  ],
)
def test_verdict(interval, pairs, better, says):
  assert statistics.verdict(Difference(0.0, interval, pairs), better) == says


def test_results_that_differ_by_the_order_of_a_float32_sum_are_equal():
  rng = np.random.default_rng(0)
  one, other = [], []
  for values in rng.uniform(size=(5, 1000)).astype(np.float32):
    means = [np.add.accumulate(rng.permutation(values))[-1] / 1000 for _ in range(9)]
    one.append(float(max(means)))
    other.append(float(min(means)))
  d = np.subtract(one, other)
  assert (d > 0).all(), "no rounding: nothing was compared"
  found = statistics.paired_difference(one, other)
  assert found == Difference(0.0, (0.0, 0.0), 5)
  assert statistics.verdict(found, "higher") == "equal"


def test_one_image_of_a_million_is_a_difference():
  found = statistics.paired_difference([0.5 + 1e-6] * 5, [0.5] * 5)
  assert statistics.verdict(found, "higher") == "better"


@pytest.mark.parametrize(
  ("interval", "better", "says"),
  [
    ((-0.004, 0.002), "higher", "not worse"),
    ((-0.006, 0.002), "higher", "undecided"),
    ((-0.006, 0.004), "lower", "not worse"),
    ((-0.004, 0.006), "lower", "undecided"),
    ((-0.004, -0.001), "higher", "worse"),
    ((0.001, 0.002), "higher", "better"),
    ((-0.004, 0.002), "", "undecided"),
  ],
)
def test_not_worse_is_a_loss_within_the_margin(interval, better, says):
  seen = statistics.verdict(Difference(0.0, interval, 5), better, margin=0.005)
  assert seen == says
