"""The choice of dimensions and images against loops over the definition."""

import collections

import numpy as np
import pytest

from ncl_jax import metrics
from ncl_jax.report.figures import selection


def loop_top_images(f, labels, threshold, rows, columns):
  """The selection, one dimension and one image at a time."""
  n, d = f.shape
  norms = [sum(float(x) ** 2 for x in row) ** 0.5 or 1.0 for row in f]
  live = [i for i in range(d) if any(abs(f[j, i]) > threshold for j in range(n))]
  mean = {i: sum(float(f[j, i]) / norms[j] for j in range(n)) / n for i in live}
  chosen = sorted(live, key=lambda i: (-round(mean[i], 6), i))[:rows]
  images, majority, share = [], [], []
  for i in chosen:
    ranked = sorted(range(n), key=lambda j: (-f[j, i], j))[:columns]
    shown = [j if f[j, i] > threshold else -1 for j in ranked]
    images.append(shown)
    known = [int(labels[j]) for j in shown if j >= 0 and labels[j] >= 0]
    counts = collections.Counter(known)
    best = min(counts, key=lambda k: (-counts[k], k)) if counts else -1
    majority.append(best)
    share.append(counts[best] / len(known) if known else float("nan"))
  return chosen, images, majority, share


def random_features(seed, n=30, d=9, negative=False):
  rng = np.random.default_rng(seed)
  f = rng.normal(size=(n, d))
  if not negative:
    f = np.maximum(f - 1, 0)  # sparse: rows and dimensions with few positive entries
  f[:, 2] = 0
  f /= np.maximum(np.linalg.norm(f, axis=1, keepdims=True), 1e-12)
  return f.astype(np.float32), rng.integers(-1, 3, n)


@pytest.mark.parametrize("threshold", [1e-5, 0.5])
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (3, 5), (50, 50)])
def test_top_images_are_those_of_the_loop(rows, columns, negative, threshold):
  f, labels = random_features(rows, negative=negative)
  ours = selection.top_images(f, labels, threshold, rows, columns)
  chosen, images, majority, share = loop_top_images(f, labels, threshold, rows, columns)
  assert ours.dimensions.tolist() == chosen
  assert ours.images.tolist() == images
  assert ours.majority.tolist() == majority
  np.testing.assert_allclose(ours.share, share)


def test_ties_go_to_the_lower_index():
  f = np.full((4, 3), 3**-0.5, np.float32)
  top = selection.top_images(f, np.array([1, 0, 1, 0]), 1e-5, rows=2, columns=4)
  assert top.dimensions.tolist() == [0, 1]
  assert top.images.tolist() == [[0, 1, 2, 3]] * 2
  assert top.majority.tolist() == [0, 0]
  assert top.share.tolist() == [0.5, 0.5]


def test_unlabelled_images_have_no_majority():
  f, labels = random_features(0)
  top = selection.top_images(f, np.full_like(labels, -1), 1e-5)
  assert (top.majority == -1).all()
  assert np.isnan(top.share).all()


@pytest.mark.parametrize("labels", [np.zeros(4, int), np.full(4, -1)])
def test_without_a_live_dimension_nothing_is_chosen(labels):
  f = np.full((4, 3), 1e-6, np.float32)  # below the threshold
  top = selection.top_images(f, labels, 1e-5)
  order, dominant = selection.correlation_order(f, labels, np.eye(3), 1e-5)
  assert selection.active_dimensions(f, 1e-5).size == 0
  assert top.dimensions.size == top.share.size == order.size == dominant.size == 0


def test_active_dimensions_count_negative_values():
  f = np.array([[0.0, -0.5, 1e-6], [0.0, 0.0, 0.0]], np.float32)
  assert selection.active_dimensions(f, 1e-5).tolist() == [1]


@pytest.mark.parametrize("negative", [False, True])
def test_correlation_order_goes_by_dominant_class(negative):
  f, labels = random_features(5, negative=negative)
  c = np.asarray(metrics.correlation(f))
  order, dominant = selection.correlation_order(f, labels, c, 1e-5)
  assert sorted(order) == [i for i in range(9) if i != 2]
  assert (np.diff(dominant) >= 0).all()
  for i, k in zip(order, dominant, strict=True):
    sums = {j: [] for j in range(3)}
    for value, label in zip(f[:, i], labels, strict=True):
      if label >= 0:
        sums[label].append(value)
    assert k == np.argmax([np.mean(sums[j]) for j in range(3)])
  strength = [f[labels == k, i].mean() for i, k in zip(order, dominant, strict=True)]
  for k in range(3):
    assert (np.diff(np.array(strength)[dominant == k]) <= 0).all()


def test_correlation_order_keeps_the_most_active():
  f, labels = random_features(6, negative=True)
  order, dominant = selection.correlation_order(f, labels, np.eye(9), 1e-5, most=4)
  activity = {i: sum(abs(x) for x in f[:, i]) for i in range(9)}
  assert set(order) == set(sorted(activity, key=lambda i: -activity[i])[:4])
  assert dominant.size == 4


def test_without_labels_similar_dimensions_lie_together():
  # Three kinds of dimension, shuffled: copies of three orthogonal columns, signs mixed.
  rng = np.random.default_rng(0)
  basis, _ = np.linalg.qr(rng.normal(size=(40, 3)))
  kind = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0])
  f = (basis[:, kind] * rng.choice([-1, 1], 10)[None]).astype(np.float32)
  c = np.asarray(metrics.correlation(f))
  order, dominant = selection.correlation_order(f, np.full(40, -1), c, 1e-5)
  assert sorted(order) == list(range(10))
  assert (np.diff(kind[order]) != 0).sum() == 2
  assert (dominant == -1).all()


@pytest.mark.parametrize("d", [1, 2])
def test_one_or_two_dimensions_need_no_tree(d):
  f = np.ones((4, d), np.float32)
  order, _ = selection.correlation_order(f, np.full(4, -1), np.ones((d, d)), 1e-5)
  assert sorted(order) == list(range(d))
