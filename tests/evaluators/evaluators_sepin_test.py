"""SEPIN as an evaluator: halves, batches, noise, and a second derivation."""

import numpy as np
import pytest
import tiny

from ncl_jax import metrics
from ncl_jax.errors import InputError
from ncl_jax.evaluators import sepin


def test_sepin_ranks_on_one_half_and_scores_on_the_other(run):
  result = sepin.evaluate(run)
  settings, values = result["settings"], result["f"]
  assert settings["temperature"] == run.config.loss.temperature == 0.2
  assert (settings["negatives"], settings["batches"], settings["images"]) == (21, 2, 44)
  f_a, f_b = (view.layer("f", "rep_relu") for view in run.extract_two_views("test"))
  order = np.random.default_rng([0, 1]).permutation(45)[:44]
  first, second = (
    np.asarray(metrics.sepin(f_a[rows], f_b[rows], temperature=0.2))
    for rows in (order[:22], order[22:])
  )
  best = [first[np.argmax(second)], second[np.argmax(first)]]
  assert values["sepin@1"] == pytest.approx(np.mean(best), abs=1e-6)
  assert values["sepin@1_std"] == pytest.approx(np.std(best, ddof=1), abs=1e-6)
  in_sample = np.mean([first.max(), second.max()])
  assert values["sepin@1_in_sample"] == pytest.approx(in_sample, abs=1e-6)
  assert values["sepin@all"] == pytest.approx(np.mean([first, second]), abs=1e-6)
  assert "sepin@10" not in values  # of 8 dimensions
  assert {row["temperature"] for row in values["curve"]} == set(sepin.TEMPERATURES)
  at_training = next(row for row in values["curve"] if row["temperature"] == 0.2)
  assert at_training["sepin@1"] == values["sepin@1"]
  assert values["noise_sepin@1"] < values["noise_sepin@1_in_sample"]
  shuffled = np.random.default_rng([0, 3]).permutation(f_b)
  for name, second in (("", f_b), ("_chance", shuffled)):
    pairs = [(a > 1e-5, b > 1e-5) for a, b in zip(f_a.T, second.T, strict=True)]
    agreement = [np.sum(a & b) / np.sum(a | b) for a, b in pairs if (a | b).any()]
    assert values[f"view_agreement{name}"] == pytest.approx(np.mean(agreement))


@pytest.mark.parametrize(
  "images, shape", [(4, (2, 1, 2)), (45, (2, 1, 22)), (1030, (2, 2, 257))]
)
def test_sepin_uses_each_image_once_in_batches_of_one_size(images, shape):
  batches = sepin._batches(images, 0)
  assert batches.shape == shape
  assert len(np.unique(batches)) == batches.size > images - 4


def test_sepin_finds_planted_information_and_none_in_noise():
  """Dimension d of the first 4 names a part of the images; the rest is noise."""
  rng = np.random.default_rng(0)
  code = np.eye(4)[rng.integers(0, 4, 200)]
  one, other = (
    np.hstack([code, rng.normal(scale=0.1, size=(200, 12))]).astype(np.float32)
    for _ in range(2)
  )
  batches = sepin._batches(200, 0)
  values = sepin.statistics(one, other, batches, 0.2)
  assert values["sepin@1"] > 0.05
  unrelated = sepin.statistics(one, rng.permutation(other), batches, 0.2)
  assert unrelated["sepin@1"] < 0.1 * values["sepin@1"]


def test_sepin_needs_images(run):
  with pytest.raises(InputError, match="at least 4"):
    sepin.evaluate(run.on(tiny.source(train=64, test=3)))
