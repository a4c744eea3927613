"""Statistics of single dimensions, and what they say about classes, by loops."""

import jax
import numpy as np
import pytest
import scipy.stats
import tiny

from ncl_jax import data, metrics
from ncl_jax.evaluators import feature_stats, meaning


def rates_by_hand(f, labels, on):
  """Class consistency, activations and entropy of each active dimension, by loops."""
  rows = []
  for d in np.flatnonzero(on.any(0)):
    counts = np.bincount(labels[on[:, d]])
    rows.append(
      (counts.max() / counts.sum(), counts.sum(), scipy.stats.entropy(counts))
    )
  return np.array(rows).T


@pytest.fixture(scope="module")
def planted():
  """40 images, 6 dimensions: frequent, rare, dead, dense and tiny ones."""
  rng = np.random.default_rng(0)
  f = np.maximum(rng.normal(size=(40, 6)), 0) * [1, 1, 0, 1, 1, 0.005]
  f[:, 3] = -1
  f[2:, 1] = 0
  return f.astype(np.float32), rng.integers(0, 3, 40)


def statistics(f, labels):
  return feature_stats.statistics(
    f, labels, 3, threshold=1e-5, activation_rate=0.2, seed=0
  )


def test_feature_stats_of_dimensions(planted):
  f, labels = planted
  values = statistics(f, labels)
  for rule, on in (("abs", np.abs(f) > 1e-5), ("positive", f > 0)):
    rate, active, entropy = rates_by_hand(f, labels, on)
    name = f"consistency_{rule}"
    assert values[name] == pytest.approx(rate.mean())
    assert values[f"{name}_weighted"] == pytest.approx(rate @ active / active.sum())
    often = active >= 30
    if rule == "abs":
      assert values["label_entropy"] == pytest.approx(entropy.mean())
      assert values["frequent_dimensions"] == often.sum() == 1
      assert values[f"{name}_frequent"] == pytest.approx(rate[often].mean())
    else:
      assert not often.any() and np.isnan(values[f"{name}_frequent"])
  live = f.any(0)
  assert values["dead_dimensions"] == 1 and values["active_dimensions"] == 5
  assert values["l0"] == pytest.approx(np.count_nonzero(f, axis=1).mean())
  assert values["sparsity_active"] == pytest.approx(np.mean(f[:, live] == 0))
  assert values["sparsity_0.01"] == pytest.approx(np.mean(np.abs(f) < 0.01))
  assert values["sparsity_0.01"] > values["sparsity"]
  for budget in (0.2, 0.1):
    rate = metrics.purity(f, labels, 3, budget)
    end = "" if budget == 0.2 else "_0.1"
    assert values[f"purity{end}"] == pytest.approx(float(np.nanmean(rate)))
    varied = ~np.isnan(rate)
    rate, active = np.asarray(rate)[varied], (np.abs(f) > 1e-5).sum(0)[varied]
    reached = active >= budget * 40
    assert 0 < reached.sum() < varied.sum() < live.sum()
    assert values[f"reached_dimensions{end}"] == reached.sum()
    assert values[f"purity_reached{end}"] == pytest.approx(rate[reached].mean())
    weighted = rate @ active / active.sum()
    assert values[f"purity_weighted{end}"] == pytest.approx(weighted)


def test_chance_levels_are_those_of_labels_that_mean_nothing(planted):
  """Shuffled labels: about what random labels give, and the same for all methods."""
  f, labels = planted
  values = statistics(np.eye(6, dtype=np.float32)[labels], labels)
  assert values["consistency_abs"] == values["purity_0.1"] == 1
  assert values["label_entropy"] == pytest.approx(0, abs=1e-6)
  assert 0.3 < values["consistency_abs_chance"] < 0.6
  assert values["label_entropy_chance"] > 0.9
  dense = statistics(f + 5, labels)
  assert dense["consistency_abs"] == pytest.approx(dense["consistency_abs_chance"])


def test_feature_stats_of_nothing():
  values = statistics(np.zeros((40, 6), np.float32), np.arange(40) % 3)
  assert values["dead_dimensions"] == 6 and values["zero_rows"] == 40
  for name in (
    "consistency_abs",
    "purity",
    "purity_reached",
    "purity_weighted",
    "label_entropy",
    "sparsity_active",
  ):
    assert np.isnan(values[name])


def test_feature_stats_at_several_label_levels(run, tmp_path, monkeypatch):
  monkeypatch.setattr(feature_stats, "LAYERS", ("f",))
  images, labels = {}, {}
  for name, n in (("train", 64), ("test", 45)):
    images[f"{name}_images"], labels[f"{name}_labels"] = tiny.images(0, n)
    labels[f"{name}_labels_fine"] = np.arange(n) % 6
  np.savez(tmp_path / "levels.npz", **images, **labels)
  source = data.load(f"arrays:{tmp_path / 'levels.npz'}")
  result = feature_stats.evaluate(run.on(source))
  assert set(result["f"]["levels"]) == {"fine"}
  test = run.on(source).extract("test")
  expected = feature_stats.statistics(
    test.layer("f", "rep_relu"),
    labels["test_labels_fine"],
    6,
    threshold=1e-5,
    activation_rate=0.03,
    seed=0,
  )
  train = run.on(source).extract("train")
  expected |= meaning.statistics(
    train.layer("f", "rep_relu"),
    labels["train_labels_fine"],
    test.layer("f", "rep_relu"),
    labels["test_labels_fine"],
    6,
    seed=run.config.seed,
  )
  fine = result["f"]["levels"]["fine"]
  assert {"consistency_abs", "naming", "ewp"} <= fine.keys()
  np.testing.assert_equal(fine, {name: expected[name] for name in fine})


def test_meaning_is_that_of_the_metrics_beside_rotations_and_chance():
  rng = np.random.default_rng(0)
  labels = np.arange(600) % 3
  code = np.eye(12, dtype=np.float32)[labels + 3 * (np.arange(600) % 4)]
  f = np.maximum(code + rng.normal(scale=0.2, size=code.shape), 0).astype(np.float32)
  f = np.concatenate([f, np.zeros((600, 1), np.float32)], 1)
  arguments = (f[:300], labels[:300], f[300:], labels[300:], 3)
  found = meaning.statistics(*arguments, seed=0)
  assert found["naming"] == pytest.approx(float(metrics.naming_accuracy(*arguments)))
  ewp = metrics.energy_weighted_purity(f[300:], labels[300:], 3, budget=0.01)
  assert found["ewp"] == pytest.approx(float(ewp))
  naming = jax.jit(lambda *given: metrics.naming_accuracy(*given, 3, signed=True))
  turned = []
  for seed in range(20):
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(13, 13)))
    x = (f @ (q * np.sign(np.diag(r)))).astype(np.float32)
    turned.append(float(naming(x[:300], labels[:300], x[300:], labels[300:])))
  assert found["naming_rotated"] == pytest.approx(np.mean(turned), abs=0.1)
  for name, gain in (("naming", "axis_gain"), ("ewp", "ewp_gain")):
    difference = found[name] - found[f"{name}_rotated"]
    assert found[gain] == pytest.approx(difference, abs=1e-6) and found[gain] > 0.1
  assert 0.2 < found["naming_chance"] < 0.5 and found["naming"] > 0.9
  assert found["ewp_chance"] < 0.7  # three images: luck finds two alike


def test_many_training_rows_name_as_a_part_of_them_does(monkeypatch):
  rng = np.random.default_rng(0)
  f, labels = np.maximum(rng.normal(size=(100, 4)), 0), np.arange(100) % 2
  monkeypatch.setattr(meaning, "TRAINING_ROWS", 34)
  found = meaning.statistics(f, labels, f[:9], labels[:9], 2, seed=0)
  part = meaning.statistics(f[::3], labels[::3], f[:9], labels[:9], 2, seed=0)
  assert found == part
