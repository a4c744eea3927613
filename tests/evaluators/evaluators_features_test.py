"""The programs on cached features: what they report, against a second derivation."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
import scipy.stats
import tiny

from ncl_jax import augment, data, features, metrics
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.evaluators import (
  axes,
  execute,
  feature_stats,
  logistic_regression,
  meaning,
  selection,
  sepin,
)
from ncl_jax.evaluators.run import Run
from ncl_jax.runtime import jsonl
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import state as state_lib


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A network before training: as good as any to compare two computations."""
  source = tiny.source(train=64, test=45)
  config = config_lib.resolve(tiny.config(), source)
  mesh = sharding_lib.make_mesh()
  variables = state_lib.build(lambda: state_lib.init_variables(config, source), mesh)
  path = tmp_path_factory.mktemp("run")
  return Run(config, variables, source, mesh, path, 0)


def evaluate(run, evaluator, source=None, **options):
  source = source or run.source
  return evaluator.evaluate(run.config, run.variables, source, run.mesh, **options)


def two_views(run, mesh=None, batch_size=16, seed=0):
  network = dataclasses.replace(
    run.network(), mesh=mesh or run.mesh, batch_size=batch_size
  )
  return features.extract_two_views(
    run.variables, run.source, "test", network, seed=seed
  )


@pytest.mark.parametrize("batch_size, devices", [(7, 1), (45, 8)])
def test_two_views_do_not_depend_on_batch_or_devices(run, batch_size, devices):
  expected = two_views(run)
  mesh = sharding_lib.make_mesh(jax.devices()[:devices])
  seen = two_views(run, mesh, batch_size)
  for one, other in zip(seen, expected, strict=True):
    np.testing.assert_array_equal(one.ids, np.arange(45))
    np.testing.assert_array_equal(one.labels, run.source.split("test").labels)
    scale = np.abs(other.z).max()
    np.testing.assert_allclose(one.z, other.z, atol=1e-5 * scale)
    np.testing.assert_allclose(one.h, other.h, atol=1e-5 * np.abs(other.h).max())


@pytest.mark.parametrize("batch_size", [7, 45])
def test_two_views_do_not_depend_on_the_random_numbers_that_jax_prefers(
  run, batch_size
):
  expected = two_views(run)[0].z
  with jax.default_prng_impl("rbg"):
    seen = two_views(run, batch_size=batch_size)[0].z
  np.testing.assert_allclose(seen, expected, atol=1e-5 * np.abs(expected).max())


def test_two_views_are_the_augmentations(run):
  """An image's views by hand: its own key, the recipe, the network."""
  one, other = two_views(run, seed=3)
  image = run.source.split("test").images[20:21]
  key = jax.random.fold_in(jax.random.key(3), 20)
  make = jax.jit(augment.two_views, static_argnums=2)
  views = make(key, image, config_lib.augmentation(run.config))
  params = {k: v for k, v in run.variables["params"].items() if k != "probe"}
  variables = {"params": params, "batch_stats": run.variables["batch_stats"]}
  model = config_lib.model(run.config)
  _, _, z = jax.jit(lambda v, x: model.apply(v, x, method="embed"))(variables, views[0])
  np.testing.assert_allclose([one.z[20], other.z[20]], z, rtol=1e-4, atol=1e-5)
  assert np.abs(one.z - other.z).max() > 1e-3
  assert np.abs(one.z - two_views(run, seed=4)[0].z).max() > 1e-3


def test_sepin_ranks_on_one_half_and_scores_on_the_other(run):
  result = evaluate(run, sepin)
  settings, values = result["settings"], result["f"]
  assert settings["temperature"] == run.config.loss.temperature == 0.2
  assert (settings["negatives"], settings["batches"], settings["images"]) == (21, 2, 44)
  f_a, f_b = (view.layer("f", "rep_relu") for view in two_views(run))
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
    evaluate(run, sepin, tiny.source(train=64, test=3))


@pytest.fixture(scope="module")
def parts(run):
  return {name: run.extract(name) for name in ("train", "test")}


def test_features_do_not_depend_on_devices(run, parts):
  alone = sharding_lib.make_mesh(jax.devices()[:1])
  seen = Run(run.config, run.variables, run.source, alone).extract("test")
  np.testing.assert_array_equal(seen.ids, np.arange(45))
  for name in ("h", "hidden", "z"):
    expected = getattr(parts["test"], name)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(getattr(seen, name), expected, atol=1e-5 * scale)


def by_hand(parts, split, rectify=True):
  z = np.maximum(parts[split].z, 0) if rectify else parts[split].z
  norms = np.linalg.norm(z, axis=1, keepdims=True)
  return np.divide(z, norms, out=np.zeros_like(z), where=norms > 0)


@pytest.mark.parametrize("keep", [1, 3, 8])
def test_selection_chooses_by_the_training_split(run, parts, keep):
  rows = selection.choose(parts, run.config, keep)
  for name, rectify in (("ea_relu", True), ("ea_signed", False)):
    order = np.argsort(-by_hand(parts, "train", rectify).mean(0), kind="stable")
    expected = by_hand(parts, "test", rectify)[:, order[:keep]]
    np.testing.assert_allclose(rows[name][0]["test"], expected, atol=1e-6)
  f, live = by_hand(parts, "test"), by_hand(parts, "train").any(0)
  order = np.argsort(-by_hand(parts, "train").var(0), kind="stable")
  np.testing.assert_allclose(rows["variance"][0]["test"], f[:, order[:keep]], atol=1e-6)
  np.testing.assert_allclose(rows["all"][0]["test"], f, atol=1e-6)
  for name, allowed in (("random", np.ones(8, bool)), ("random_active", live)):
    assert len(rows[name]) == selection.DRAWS
    for sets in rows[name]:
      assert sets["test"].shape[1] == min(keep, allowed.sum())
      same = np.isclose(sets["test"][:, :, None], f[:, None], atol=1e-6).all(0)
      assert same[:, allowed].any(1).all()
  centred = by_hand(parts, "train") - by_hand(parts, "train").mean(0)
  _, _, axes = np.linalg.svd(centred, full_matrices=False)
  expected = (f - by_hand(parts, "train").mean(0)) @ axes[:keep].T
  significant = np.abs(expected).max(0) > 0.02  # rounding turns the others
  np.testing.assert_allclose(
    np.abs(rows["pca"][0]["test"])[:, significant],
    np.abs(expected)[:, significant],
    atol=1e-4,
  )


def test_selection_scores_with_the_probe_and_retrieval(
  run, parts, monkeypatch, tmp_path
):
  monkeypatch.setattr(selection, "SHARES", (1 / 4, 1))
  monkeypatch.setattr(selection, "DRAWS", 2)
  tiny.npz(tmp_path / "other.npz", train=64, test=45)
  other = f"arrays:{tmp_path / 'other.npz'}"
  result = evaluate(run, selection, transfer=other)
  f = {name: by_hand(parts, name) for name in parts}
  labels = {name: part.labels for name, part in parts.items()}
  probe = logistic_regression.probe(
    f["train"], labels["train"], f["test"], labels["test"], num_classes=2
  )
  precision, _ = metrics.retrieval(f["test"], labels["test"], k=10)
  whole = result["all"]
  # The same images once more: the transfer's probe is the probe.
  assert whole["probe"] == whole["transfer"] == probe["accuracy"]
  assert whole["retrieval"] == pytest.approx(float(np.mean(precision)), abs=1e-6)
  assert whole["dimensions"] == 8 and result["ea_relu"]["dimensions"] == 2
  assert result["random"]["probe_std"] >= 0 and "probe_std" not in whole
  assert [point["k"] for point in result["curve"]] == [2, 8]
  assert result["curve"][0]["ea_relu"] == result["ea_relu"]
  assert result["curve"][1]["ea_relu"]["retrieval"] == pytest.approx(whole["retrieval"])
  assert result["active_dimensions"] == f["train"].any(0).sum()
  settings = result["settings"]
  assert (settings["keep"], settings["transfer"]) == (2, other)


def test_ablation_is_the_loop_over_dimensions():
  rng = np.random.default_rng(0)
  params = {"kernel": rng.normal(size=(6, 3)), "bias": rng.normal(size=3)}
  x, labels = rng.normal(size=(50, 6)), rng.integers(0, 3, 50)

  def accuracy(x):
    return np.mean((x @ params["kernel"] + params["bias"]).argmax(1) == labels)

  whole, without = selection._accuracies(params, x, labels)
  assert whole == pytest.approx(accuracy(x))
  expected = [accuracy(x * (np.arange(6) != d)) for d in range(6)]
  np.testing.assert_allclose(without, expected, atol=1e-6)


def test_ablation_finds_that_the_frequent_dimensions_matter(parts):
  """One-hot features of two classes in unequal groups: a group lost is its share."""
  group = np.repeat([0, 1, 2, 3], [24, 18, 14, 8])
  f = {"train": np.eye(8, dtype=np.float32)[group]}
  f["test"] = f["train"][:45]
  labels = {name: parts[name].labels * 0 + np.arange(len(x)) for name, x in f.items()}
  two = {
    name: features.Features(*[f[name]] * 3, (group[: len(y)] % 2), y)
    for name, y in labels.items()
  }
  result = selection.ablation(f, two, 2, 1e-5)
  assert result["ea"] == result["frequency"] > 0
  dense = {name: x + np.float32(1) for name, x in f.items()}
  assert np.isnan(selection.ablation(dense, two, 2, 1e-5)["frequency"])


def test_selection_refuses(run):
  with pytest.raises(
    InputError, match="keep = 9: it must be an int, at least 1 and at"
  ):
    evaluate(run, selection, keep=9)
  with pytest.raises(InputError, match="no labels"):
    evaluate(run, selection, tiny.source(train=64, test=45, labelled=False))


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
  result = evaluate(run, feature_stats, source)
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
  turned = []
  for seed in range(20):
    q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(13, 13)))
    x = (f @ (q * np.sign(np.diag(r)))).astype(np.float32)
    measured = metrics.naming_accuracy(
      x[:300], labels[:300], x[300:], labels[300:], 3, signed=True
    )
    turned.append(float(measured))
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
  result = evaluate(run, axes, other=run)
  assert result["h"]["correlation"] == pytest.approx(1)
  assert result["f"]["correlation"] > result["f"]["correlation_chance"] + 0.2
  config = run.config.copy_and_resolve_references()
  config.loss.transform = "gelu"
  with pytest.raises(InputError, match="the transforms are rep_relu here and gelu"):
    evaluate(run, axes, other=dataclasses.replace(run, config=config))


@pytest.mark.parametrize("evaluator, options", [(sepin, {})])
def test_a_program_writes_a_line(run, monkeypatch, evaluator, options):
  monkeypatch.setattr(execute, "open_run", lambda *_: run)
  row = execute.run(evaluator.evaluate, run.path, **options)
  name = evaluator.__name__.rsplit(".", 1)[-1]
  assert jsonl.read(run.path / "eval" / f"{name}.jsonl") == [jsonl.to_json(row)]
