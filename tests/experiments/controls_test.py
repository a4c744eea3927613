"""Controls: each is what its name says, and any program takes it as it takes a run."""

import dataclasses
import math

import numpy as np
import pytest
import tiny
from sklearn.decomposition import PCA

from ncl_jax import config as config_lib
from ncl_jax import features, metrics
from ncl_jax.errors import InputError
from ncl_jax.evaluators import feature_stats, registry
from ncl_jax.evaluators.run import Run
from ncl_jax.experiments import (
  baseline_features,
  compare,
  comparison,
  controls,
  paper_numbers,
  rivals,
)
from ncl_jax.runtime import sharding
from ncl_jax.training import state as state_lib


@pytest.fixture(scope="module")
def source():
  return tiny.source(train=48, test=21)


def opened(source, method, seed):
  """A run of random weights, some of which the other has, too."""
  config = tiny.config(method)
  config.seed = seed
  config = config_lib.resolve(config, source)
  mesh = sharding.make_mesh()
  variables = state_lib.build(lambda: state_lib.init_variables(config, source), mesh)
  return Run(config, variables, source, mesh, None, 0)


@pytest.fixture(scope="module")
def pair(source):
  return opened(source, "cl", 1), opened(source, "ncl", 0)


@pytest.fixture(scope="module")
def found(pair):
  made = {key: control.make(*pair) for key, control in controls.CONTROLS.items()}
  return {key: features for key, features in made.items() if features}


def features_of(control, source, split="test", batch_size=16):
  return in_batches(control, source, batch_size).extract(split)


def in_batches(control, source, batch_size):
  """The features of other data, so many images at a time; codes' base too."""
  config = control.config.copy_and_resolve_references()
  config.eval.batch_size = batch_size
  changes = {"config": config, "source": source}
  if isinstance(control, baseline_features.Codes):
    changes["base"] = in_batches(control.base, source, batch_size)
  return dataclasses.replace(control, **changes)


def test_all_that_the_protocol_asks_for_are_there(found):
  assert set(found) == {
    "untrained",
    "cl_transform",
    "cl_both_signs",
    "cl_matched_rates",
    "cl_kmeans",
    "cl_varimax_95",
    "cl_varimax_99",
    "cl_pca",
    "cl_ica",
    *(f"{x}_{kind}" for x in ("pixels", "h") for kind in ("pca", "nmf", "kmeans")),
  }


def test_what_follows_cl_keeps_its_h_and_the_map_its_z(found, pair, source):
  cl, _ = pair
  own = cl.extract("test")
  for key in (key for key in found if key.startswith("cl_")):
    np.testing.assert_allclose(features_of(found[key], source).h, own.h, atol=1e-5)
  z = features_of(found["cl_transform"], source).z
  np.testing.assert_allclose(z, own.z, atol=1e-5)
  assert found["cl_transform"].config.loss.transform == "rep_relu"


def test_rivals_are_made_of_cls_f_of_the_images_that_are_asked_for(found, pair, source):
  cl, ncl = pair
  own = cl.extract("test")
  f = own.layer("f", "identity")
  both = features_of(found["cl_both_signs"], source).z
  np.testing.assert_allclose(both[:, :8] - both[:, 8:], f, atol=1e-6)
  seen = ncl.extract("train")
  on = np.abs(seen.layer("f", "rep_relu")) > 1e-5
  cut = features_of(found["cl_matched_rates"], source, "train").z > 0
  np.testing.assert_array_equal(np.sort(cut.sum(0)), np.sort(on.sum(0)))
  near = features_of(found["cl_kmeans"], source).z
  assert near.shape == (21, 8)
  active = (near > 0).sum(1)
  assert active.min() > 0 and active.max() <= max(1, round(on.sum(1).mean()))
  components = features_of(found["cl_ica"], source, "train").z
  np.testing.assert_allclose(components.mean(0), 0, atol=1e-2)
  covariance = np.cov(components.T, bias=True)
  np.testing.assert_allclose(covariance, np.eye(len(covariance)), atol=0.05)


def test_features_are_computed_once_for_all_rivals(pair, source, monkeypatch):
  calls = []
  extract = features.extract

  def counting(variables, source, split, network):
    calls.append((len(source.split(split)), split))
    return extract(variables, source, split, network)

  monkeypatch.setattr(features, "extract", counting)
  cl, ncl = (dataclasses.replace(run) for run in pair)
  keys = ("cl_both_signs", "cl_pca", "h_pca")
  made = [controls.CONTROLS[key].make(cl, ncl) for key in keys]
  for split in ("train", "test", "train"):
    for coded in made:
      coded.extract(split)
  assert sorted(calls) == [(21, "test"), (48, "train")]
  made[0].on(tiny.source(train=4, test=3)).extract("test")
  assert calls[2:] == [(3, "test")]


def test_codes_are_fitted_on_training_images_and_applied_to_others(found, source):
  images = {s: source.split(s).images.reshape(-1, 64) / 255 for s in ("train", "test")}
  seen = features_of(found["pixels_pca"], source)
  np.testing.assert_allclose(seen.h, images["test"], atol=1e-6)
  pca = PCA(8, svd_solver="full").fit(images["train"])
  expected = np.abs(pca.transform(images["test"]))
  np.testing.assert_allclose(np.abs(seen.z)[:, :3], expected[:, :3], atol=1e-2)
  parts = features_of(found["pixels_nmf"], source).layer("f", "identity")
  assert parts.min() >= 0 and parts.shape == (21, 8)
  near = features_of(found["h_kmeans"], source).z
  assert near.min() == 0 and 0.2 < np.mean(near == 0) < 0.8


@pytest.mark.parametrize("batch", [1, 7, 21])
@pytest.mark.parametrize("key", ["pixels_kmeans", "h_nmf"])
def test_each_image_once_whatever_the_batch(found, source, key, batch):
  expected = features_of(found[key], source)
  seen = features_of(found[key], source, batch_size=batch)
  np.testing.assert_array_equal(seen.ids, np.arange(21))
  np.testing.assert_array_equal(seen.labels, source.split("test").labels)
  np.testing.assert_allclose(seen.z, expected.z, atol=1e-3)


def test_large_pixels_are_means_of_blocks():
  wide = tiny.source(train=4, test=3)
  images, labels = tiny.images(0, 3, size=72, channels=3)
  split = dataclasses.replace(wide.split("test"), images=images, labels=labels)
  wide = dataclasses.replace(wide, splits={"train": split, "test": split})
  config = tiny.config()
  config.augment.eval_crop = 64 / 72
  pixels = baseline_features.Pixels(config, wide, sharding.make_mesh())
  seen = pixels.extract("test")
  cut = images[:, 4:68, 4:68] / 255
  expected = cut.reshape(3, 32, 2, 32, 2, 3).mean((2, 4)).reshape(3, -1)
  np.testing.assert_allclose(seen.h, expected, atol=1e-6)


def random_rotation(d, seed):
  q, r = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))
  return q * np.sign(np.diag(r))


def test_varimax_finds_sparse_axes_again():
  rng = np.random.default_rng(0)
  sparse = rng.exponential(size=(600, 5)) * (rng.random((600, 5)) < 0.2)
  q = random_rotation(5, seed=1)
  rotation = rivals.sparse_axes(sparse @ q)
  np.testing.assert_allclose(rotation.T @ rotation, np.eye(5), atol=1e-10)
  # A permutation, with the long tails upwards.
  product = q @ rotation
  np.testing.assert_allclose(np.sort(product, 0)[-1], 1, atol=0.05)
  assert sorted(product.argmax(0)) == [0, 1, 2, 3, 4]

  def criterion(f):
    return np.sum(np.var(f**2, axis=0))

  best = criterion(sparse @ q @ rotation)
  for seed in range(2, 6):
    assert criterion(sparse @ random_rotation(5, seed)) < best


def test_varimax_finds_axes_that_were_turned_in_few_of_many_directions():
  rng = np.random.default_rng(0)
  sparse = rng.exponential(size=(6000, 5)) * (rng.random((6000, 5)) < 0.2)
  frame = random_rotation(40, seed=1)[:5]
  f = sparse @ frame + rng.normal(scale=0.01, size=(6000, 40)) + 0.3
  z = rivals.varimax(f, 0.95)(f)
  assert z.shape == (6000, 5)
  match = np.corrcoef(sparse.T, z.T)[:5, 5:]
  assert match.max(1).min() > 0.95
  # Centred: a constant is no direction.
  plain = rivals.pca(f, 0.95)(f)
  np.testing.assert_allclose(plain, rivals.pca(f + 5, 0.95)(f + 5), atol=1e-6)
  expected = np.abs(PCA(5).fit_transform(f))
  np.testing.assert_allclose(np.abs(plain), expected, atol=1e-6)


def test_k_means_of_separate_clusters_names_their_classes():
  rng = np.random.default_rng(0)
  centres = random_rotation(16, seed=2)[:12]
  labels = np.arange(600) % 12
  f = (centres[labels] + rng.normal(scale=0.05, size=(600, 16))).astype(np.float32)
  encode = rivals.kmeans(f, 12, 1, seed=0)
  z = encode(f)
  np.testing.assert_array_equal((z > 0).sum(1), 1)
  assert metrics.naming_accuracy(z, labels % 4, z, labels % 4, 4) > 0.9
  distance = np.linalg.norm(f[:, None] - encode_centres(f, z)[None], axis=-1)
  np.testing.assert_array_equal(distance.argmin(1), z.argmax(1))


def encode_centres(f, z):
  """Means of the images of each cluster; far away for one without any."""
  return np.stack(
    [f[on].mean(0) if on.any() else np.full(f.shape[1], 9.0) for on in (z > 0).T]
  )


def test_the_same_activity_is_given_by_rank():
  f = np.array([[1, 9], [2, 7], [3, 5], [4, 1]], np.float32)
  z = rivals.matched_rates(f, np.array([0.25, 0.0, 0.75]))(f)
  np.testing.assert_array_equal((z > 0).sum(0), [1, 3])
  few = rivals.matched_rates(f, np.array([0.5]))(f)
  np.testing.assert_array_equal((few > 0).sum(0), [0, 2])
  every = rivals.matched_rates(f, np.array([1.0, 1.0]))(f)
  np.testing.assert_array_equal((every > 0).sum(0), [4, 4])


@pytest.mark.slow
def test_any_program_takes_any_control(found, source):
  for key in ("cl_kmeans", "pixels_nmf"):
    control = found[key]
    result = feature_stats.evaluate(control)
    f = features_of(control, source).layer("f", control.config.loss.transform)
    assert result["f"]["sparsity"] == pytest.approx(np.mean(np.abs(f) < 1e-5))
    assert result["f"]["dimensions"] == f.shape[1]


def test_the_table_has_a_line_a_method_and_a_column_a_metric(source):
  def result(accuracy):
    return {"knn": {"h": {"accuracy": accuracy}, "f": {"accuracy": 0.5}}}

  results = {"cl": [result(0.25), result(0.75)], "pixels_pca": [result(1.0)] * 2}
  text = comparison.controls_table(tiny.config(), source, results)
  lines = [line.split() for line in text.splitlines()]
  assert lines[0] == ["knn", "h", "knn", "f"]
  assert lines[1] == ["CL", "50.0", "50.0"]
  assert lines[2] == ["pixels:", "PCA", "100.0", "50.0"]
  assert "2 seed(s)" in text


def test_rows_are_declared_once_and_grouped(source):
  config = tiny.config()
  rows = registry.rows(config, source)
  keys = [row.key for row in rows]
  assert len(keys) == len(set(keys))
  groups = [row.group for row in rows]
  assert groups == sorted(groups, key=registry.GROUPS.index)
  config.eval.ood = ("folder:sketch",)
  more = {row.key: row for row in registry.rows(config, source)}
  assert set(more) - set(keys) == {"ood:folder:sketch"}
  ood = {"folder:sketch": {"accuracy": 0.25, "images": 4}}
  result = {"robustness": {"h": {"clean": 0.5, "ood": ood}}}
  assert registry.value(result, more["ood:folder:sketch"]) == 0.25
  assert math.isnan(registry.value({}, more["knn_h"]))
  assert math.isnan(registry.value({"knn": {"h": {"accuracy": None}}}, more["knn_h"]))


def test_controls_that_are_trained_are_cl_but_for_one_setting(pair, tmp_path):
  run = pair[1]
  given = run.config.copy_and_resolve_references()
  cl = compare._method_config(given, "cl", 3)
  sparse = compare._trained_control(given, "cl_l1", 3, run)
  changed = config_lib.differences(cl, sparse)
  assert [line.split(":")[0] for line in changed] == ["loss.l1"]
  narrow = compare._trained_control(given, "cl_narrow", 3, run)
  f = run.layer("f", "train")
  assert narrow.model.projector_out == max(2, (abs(f) > 1e-5).any(0).sum())
  narrow.model.projector_out = cl.model.projector_out
  assert config_lib.differences(cl, narrow) == []
  assert set(controls.TRAINED) == {"cl_l1", "cl_narrow"}
  with pytest.raises(InputError, match="control.*'some'.*h_kmeans"):
    compare.compare(given, "unused", seeds=1, controls=("some",))
  given.data.source = f"arrays:{tiny.npz(tmp_path / 'tiny.npz')}"
  for wrong in (("knn",), ("axes",), ()):
    with pytest.raises(InputError, match="control evaluator.*retrieval"):
      compare.compare(
        given, "unused", seeds=1, evaluators=("retrieval",), control_evaluators=wrong
      )
  with pytest.raises(InputError, match="control evaluator.*'pairs'.*knn"):
    compare.compare(given, "unused", seeds=1, control_evaluators=("pairs",))


def test_the_papers_numbers_stand_beside_its_data_and_network_alone():
  config = config_lib.defaults()
  config.data.source = "tfds:cifar10"
  assert paper_numbers.expected(config)["ncl"]["probe_sgd_h"] == 0.878
  known = {row.key for row in registry.rows(tiny.config(), tiny.source())}
  for numbers in paper_numbers.EXPECTED.values():
    for method in numbers.values():
      assert {key for key in method if ":" not in key} <= known
  config.expected = {"ncl": {"knn_h": 0.5}, "mine": {"knn_h": 0.4}}
  both = paper_numbers.expected(config)
  assert both["ncl"]["knn_h"] == 0.5 and both["ncl"]["finetune_h"] == 0.926
  assert both["mine"] == {"knn_h": 0.4} and both["cl"]["probe_sgd_h"] == 0.876
  config.expected = {}
  big = config.copy_and_resolve_references()
  big.name, big.data.source = "ImageNet-100", "folder:data"
  big.eval.ood = ("folder:Sketch", "folder:elsewhere")
  out = {
    method: row["ood:folder:Sketch"]
    for method, row in paper_numbers.expected(big).items()
  }
  assert out == {"cl": 0.271, "ncl": 0.280}
  assert sum(":" in key for key in paper_numbers.expected(big)["ncl"]) == 1
  small = config.copy_and_resolve_references()
  small.model.width = 32
  part = config.copy_and_resolve_references()
  part.data.train_examples = 5000
  other = config.copy_and_resolve_references()
  other.data.source = "digits"
  assert [paper_numbers.expected(c) for c in (small, part, other)] == [{}, {}, {}]
