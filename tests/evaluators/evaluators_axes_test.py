"""Cross-seed alignment: axes that return, axes that are turned, and noise."""

import dataclasses
import itertools

import numpy as np
import pytest

from ncl_jax.errors import InputError
from ncl_jax.evaluators import axes


def agreement(a, b):
  half = len(a) // 2
  return axes.agreement(a[:half], b[:half], a[half:], b[half:], threshold=1e-5, seed=0)


def test_permuted_axes_agree_and_rotated_ones_do_not():
  rng = np.random.default_rng(0)
  f = np.maximum(rng.normal(size=(400, 8)), 0).astype(np.float32)
  f[:, 3] = 0
  permuted = 2 * f[:, rng.permutation(8)]
  same = agreement(f, permuted)
  assert same["correlation"] == pytest.approx(1)
  assert same["matched"] == same["active_dimensions"] == 7
  rotation, _ = np.linalg.qr(rng.normal(size=(8, 8)))
  rotated = agreement(f, f @ rotation)
  assert rotated["correlation"] < 0.8
  # On a scale between the two, whatever directions the features span.
  assert same["alignment"] == pytest.approx(1)
  assert abs(rotated["alignment"]) < 0.2
  spread = f * np.geomspace(1, 1e-3, 8)
  few = agreement(spread, spread @ rotation)
  assert abs(few["alignment"]) < 0.35
  # Rotated once or twice, axes of independent features are equally strange to these.
  level = rotated["correlation_rotated"]
  assert level == pytest.approx(rotated["correlation"], abs=0.1)


@pytest.mark.parametrize("negative", [False, True])
def test_half_of_the_axes_turned_round_are_the_same_axes(negative):
  """As in a vision transformer's h; where no entry is negative, they are others."""
  rng = np.random.default_rng(3)
  h = rng.normal(size=(400, 8)).astype(np.float32)
  if not negative:
    h = np.maximum(h, 0)
  turned = h * np.where(np.arange(8) % 2, 1, -1)
  if not negative:
    turned -= turned.min(0)
  found = agreement(h, turned)
  if negative:
    assert found["correlation"] == pytest.approx(1)
  else:
    assert found["correlation"] < 0.6


@pytest.mark.parametrize("negative", [False, True])
def test_the_rotated_level_is_that_of_rotated_features(negative):
  """By a loop over all permutations, signs counted as for the features themselves."""
  rng = np.random.default_rng(4)
  f = rng.normal(size=(600, 4)).astype(np.float32)
  f = f if negative else np.maximum(f, 0)
  levels = []
  for _ in range(200):
    q, r = np.linalg.qr(rng.normal(size=(4, 4)))
    c = np.corrcoef(f.T, (f @ (q * np.sign(np.diag(r)))).T)[:4, 4:]
    c = np.abs(c) if negative else c
    levels.append(
      max(c[range(4), list(p)].mean() for p in itertools.permutations(range(4)))
    )
  found = agreement(f, f)["correlation_rotated"]
  assert found == pytest.approx(np.mean(levels), abs=3 * np.std(levels) / 3**0.5)
  # Counted the other way the level would be another.
  assert (found > 0.65) == negative


def test_noise_agrees_at_chance():
  rng = np.random.default_rng(0)
  f = np.maximum(rng.normal(size=(400, 8)), 0).astype(np.float32)
  noise = agreement(f, np.maximum(rng.normal(size=f.shape), 0).astype(np.float32))
  assert abs(noise["correlation"]) < 0.1
  assert abs(noise["correlation"] - noise["correlation_chance"]) < 0.1
  # Matching on the images that score finds something in nothing.
  assert noise["correlation_matched_on_test"] > 0.05
  in_sample = noise["correlation_matched_on_test_chance"]
  assert noise["correlation_matched_on_test"] == pytest.approx(in_sample, abs=0.05)


def test_few_directions_agree_by_any_axes():
  """Two directions spread over 40 dimensions: some are near whatever the axes are."""
  rng = np.random.default_rng(2)
  plane = rng.normal(size=(400, 2))
  a, b = ((plane @ rng.normal(size=(2, 40))).astype(np.float32) for _ in range(2))
  found = agreement(a, b)
  assert found["correlation"] > 0.95 and found["correlation_rotated"] > 0.95


def test_matching_is_the_best_of_all_permutations():
  rng = np.random.default_rng(1)
  a = rng.exponential(size=(30, 4))
  b = np.abs(a @ rng.normal(size=(4, 5)) + rng.normal(size=(30, 5)))
  c = np.corrcoef(a[15:].T, b[15:].T)[:4, 4:]
  best = max(
    np.mean([c[i, j] for i, j in enumerate(p)])
    for p in itertools.permutations(range(5), 4)
  )
  seen = agreement(a.astype(np.float32), b.astype(np.float32))
  assert seen["correlation_matched_on_test"] == pytest.approx(best, abs=1e-5)


def test_axes_of_dead_features():
  f = np.zeros((10, 3), np.float32)
  found = agreement(f, f)
  assert np.isnan(found["correlation"]) and np.isnan(found["correlation_rotated"])


def test_a_run_has_its_own_axes(run, monkeypatch):
  result = axes.evaluate(run, other=run)
  assert result["h"]["correlation"] == pytest.approx(1)
  assert result["f"]["correlation"] > result["f"]["correlation_chance"] + 0.2
  config = run.config.copy_and_resolve_references()
  config.loss.transform = "gelu"
  with pytest.raises(InputError, match="the transforms are rep_relu here and gelu"):
    axes.evaluate(run, other=dataclasses.replace(run, config=config))
