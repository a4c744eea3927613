"""Robustness: the same images to other eyes, wrong labels counted, classes by name."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from PIL import Image
from sklearn.linear_model import LogisticRegression

from ncl_jax import config as config_lib
from ncl_jax import data
from ncl_jax.data import corruptions
from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError
from ncl_jax.evaluators import logistic_regression, robustness
from ncl_jax.evaluators.run import Run
from ncl_jax.runtime import sharding
from ncl_jax.training import state as state_lib


@pytest.fixture(scope="module")
def source():
  return dataclasses.replace(tiny.source(train=60, test=21), class_names=("0", "1"))


@pytest.fixture(scope="module")
def config(source):
  c = tiny.config()
  c.augment.eval_crop = 0.75
  return config_lib.resolve(c, source)


@pytest.fixture(scope="module")
def variables(config, source):
  mesh = sharding.make_mesh()
  return state_lib.build(lambda: state_lib.init_variables(config, source), mesh)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
  """One set of images, all of them for the test."""
  images, labels = tiny.images(7, 19)
  labels[:4] = 2
  path = tmp_path_factory.mktemp("other") / "other.npz"
  np.savez(path, images=images, labels=labels)
  return path, images, labels


@pytest.fixture(scope="module")
def result(config, variables, source, other):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(corruptions, "SEVERITIES", (2, 5))
    patch.setattr(corruptions, "names", lambda channels: ("contrast", "shot_noise"))
    patch.setattr(robustness, "LABEL_NOISE", (0.4,))
    patch.setattr(robustness, "SHOTS", (3,))
    return robustness.evaluate(
      config, variables, source, sharding.make_mesh(), ood=(f"arrays:{other[0]}",)
    )


def square(images):
  return images[:, 1:7, 1:7]  # 0.75 of 8 pixels


def scores(config, variables, source, images, labels, **changes):
  """h and f of given images, cut already."""
  whole = config.copy_and_resolve_references()
  whole.augment.eval_crop = 1.0
  split = Split(images, labels)
  given = dataclasses.replace(source, splits={"train": split, "test": split})
  test = Run(whole, variables, given, sharding.make_mesh()).extract("test")
  return {layer: test.layer(layer, config.loss.transform) for layer in ("h", "f")}


@pytest.fixture(scope="module")
def heads(config, variables, source):
  """Of h and f: features, labels, the fitted probe and its penalty."""
  train = Run(config, variables, source, sharding.make_mesh()).extract("train")

  def fit(layer):
    x = train.layer(layer, config.loss.transform)
    fitted, found = logistic_regression.choose(
      x, train.labels, num_classes=2, seed=config.seed
    )
    return x, train.labels, jax.tree.map(np.asarray, fitted), found["regularization"]

  return {layer: fit(layer) for layer in ("h", "f")}


def test_corrupted_images_go_through_the_clean_probe(
  result, heads, config, variables, source
):
  test = source.split("test")
  assert result["settings"]["strengths"] == "CIFAR-10-C"
  assert result["settings"]["images"] == 21
  features = {}
  for kind in ("contrast", "shot_noise"):
    for place, severity in enumerate((2, 5)):
      changed = corruptions.Corrupted(test.images, kind, severity, 6, config.seed)
      images = np.concatenate([changed[np.array([i])] for i in range(21)])
      x = scores(config, variables, source, images, test.labels)
      features[kind, place] = x
  for layer in ("h", "f"):
    probe = heads[layer][2]
    seen = []
    for (kind, place), x in features.items():
      predicted = (x[layer] @ probe["kernel"] + probe["bias"]).argmax(1)
      accuracy = np.mean(predicted == test.labels)
      assert result[layer]["corruptions"][kind][place] == pytest.approx(accuracy)
      seen.append(accuracy)
    assert result[layer]["corrupted"] == pytest.approx(np.mean(seen))


def test_all_images_of_a_set_in_one_part_count_where_a_class_is_shared(
  result, heads, config, variables, source, other
):
  path, images, labels = other
  none = np.full(19, -1, np.int32)
  features = scores(config, variables, source, square(images), none)
  for layer in ("h", "f"):
    probe = heads[layer][2]
    predicted = (features[layer] @ probe["kernel"] + probe["bias"]).argmax(1)
    shared = labels < 2
    seen = result[layer]["ood"][f"arrays:{path}"]
    assert seen["accuracy"] == pytest.approx(np.mean((predicted == labels)[shared]))
    assert (seen["images"], seen["classes"]) == (15, 2)


@pytest.mark.parametrize(("batch", "devices"), [(1, 8), (7, 1), (16, 1), (21, 8)])
def test_batches_and_devices_change_no_corrupted_image(
  batch, devices, config, variables, source
):
  def h(batch, devices):
    whole = config.copy_and_resolve_references()
    whole.augment.eval_crop = 1.0
    whole.eval.batch_size = batch
    images = corruptions.Corrupted(source.split("test").images, "shot_noise", 5, 6)
    split = Split(images, source.split("test").labels)
    given = dataclasses.replace(source, splits={"train": split, "test": split})
    mesh = sharding.make_mesh(jax.devices()[:devices])
    return Run(whole, variables, given, mesh).extract("test")

  expected, seen = h(16, 8), h(batch, devices)
  np.testing.assert_array_equal(seen.ids, np.arange(21))
  np.testing.assert_allclose(seen.h, expected.h, atol=1e-5)


def test_the_chosen_probe_is_scikit_learns_on_features_as_they_are(heads):
  x, labels, ours, strength = heads["h"]
  scale = np.sqrt(np.mean(x.astype(np.float64) ** 2))
  # One column of weights w for our two, +-w/2, whose penalty is half of its own.
  theirs = LogisticRegression(C=2 / (60 * strength), tol=1e-9, max_iter=5000)
  theirs.fit(x / scale, labels)
  logits = x @ ours["kernel"] + ours["bias"]
  p = 1 / (1 + np.exp(logits[:, 0] - logits[:, 1]))
  np.testing.assert_allclose(p, theirs.predict_proba(x / scale)[:, 1], atol=1e-5)


def test_as_many_labels_are_wrong_as_was_asked_for():
  labels = np.repeat(np.arange(-1, 4), 50).astype(np.int32)
  for share in (0.0, 0.2, 0.8):
    wrong = robustness.mislabelled(labels, share, 4, seed=0)
    assert np.sum(wrong != labels) == round(share * 200)
    assert np.all(wrong[labels < 0] == -1) and wrong.max() == 3
  moved = wrong[labels == 0]
  assert np.all(np.bincount(moved[moved > 0])[1:] > 5)
  again = robustness.mislabelled(labels, share, 4, seed=0)
  np.testing.assert_array_equal(wrong, again)


def test_few_images_of_each_class():
  labels = np.array([0] * 9 + [2] * 2 + [-1] * 5 + [1] * 4)
  rows = robustness.few(labels, 3, seed=1)
  assert np.bincount(labels[rows]).tolist() == [3, 3, 2]
  assert len(set(rows)) == 8 and np.all(np.diff(rows) > 0)
  assert not np.array_equal(rows, robustness.few(labels, 3, seed=2))


def test_few_labels_and_wrong_ones_are_measured_on_clean_test_images(result):
  for layer in ("h", "f"):
    part = result[layer]
    assert 0 <= part["label_noise"]["0.4"] <= 1
    few = part["few_shot"]["3"]
    assert 0 <= few["mean"] <= 1 and few["deviation"] >= 0
  text = robustness.table(result)
  clean = 100 * result["h"]["clean"]
  assert f"{'contrast':24}{clean:7.1f}" in text and "15 images, 2 classes" in text
  assert "40 % wrong labels" in text and "3 image(s) a class" in text


def test_without_labels_there_is_nothing_to_lose(config, variables):
  with pytest.raises(InputError, match="no labels"):
    robustness.evaluate(
      config, variables, tiny.source(labelled=False), sharding.make_mesh()
    )


def folder_of(path, counts):
  for name, count in counts.items():
    (path / name).mkdir(parents=True)
    for i in range(count):
      pixels = np.full((8, 8, 3), 10 * i, np.uint8)
      Image.fromarray(pixels).save(path / name / f"{i}.png")
  return data.load(f"folder:{path}", image_size=8)


def test_classes_are_matched_by_name(tmp_path):
  counts = {"Polar Bear": 5, "bee": 6, "ant": 7}
  other = folder_of(tmp_path / "a", counts)
  assert other.divided
  ours = ("ant", "cat", "polar_bear")
  split = data.matched(other, ours).split("test")
  assert np.bincount(split.labels).tolist() == [7, 0, 5]
  rows = np.random.default_rng(0).permutation(12)
  seen = split.images[rows]
  assert seen.shape == (12, 8, 8, 3)
  bears = np.sort(seen[split.labels[rows] == 2][:, 0, 0, 0]).tolist()
  assert bears == [0, 10, 20, 30, 40]
  with pytest.raises(InputError, match="no image of folder.*ours: dog"):
    data.matched(other, ("dog",))


def test_of_a_set_in_two_parts_the_test_part_counts(tmp_path):
  for part, n in (("train", 4), ("val", 3)):
    folder_of(tmp_path / part, {"ant": n, "bee": n})
  other = data.load(f"folder:{tmp_path}", image_size=8)
  assert not other.divided
  matched = data.matched(other, ("bee",))
  assert len(matched.split("test")) == 3 and matched.class_names == ("bee",)
  plain = Source("plain", other.splits, other.class_names)
  assert len(data.matched(plain, ("bee", "ant")).split("test")) == 6
