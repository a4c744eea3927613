"""Recall of pairs and zero-shot accuracy against loops, ties by every order."""

import itertools

import numpy as np
import pytest

from ncl_jax.errors import InputError
from ncl_jax.metrics import pair_recall, zero_shot


def by_loop(queries, gallery, groups, k, order):
  """Recall with equals in a given order."""
  hits = []
  for n, query in enumerate(queries):
    scores = [sum(a * b for a, b in zip(query, row, strict=True)) for row in gallery]
    ranked = sorted(range(len(gallery)), key=lambda m: (-scores[m], order[m]))
    hits.append(any(groups[m] == groups[n] for m in ranked[:k]))
  return np.mean(hits)


def test_recall_is_the_loop():
  rng = np.random.default_rng(0)
  queries = rng.normal(size=(1300, 3))  # more than a block
  gallery = queries + 0.3 * rng.normal(size=queries.shape)
  groups = np.arange(1300) // 2  # two images a caption
  few = np.r_[0:40, 1280:1300]
  found = pair_recall(queries[few], gallery[few], groups[few], (1, 5, 99))
  order = np.arange(60)
  for k in (1, 5):
    assert found[k] == pytest.approx(
      by_loop(queries[few], gallery[few], groups[few], k, order), abs=1e-12
    )
  assert found[99] == 1 and 0 < found[1] < found[5]
  whole = pair_recall(queries, gallery, groups, (3,))[3]
  s = queries @ gallery.T
  top = np.argsort(-s, axis=1)[:, :3]
  assert whole == pytest.approx(np.mean((groups[top] == groups[:, None]).any(1)))


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_equals_count_as_the_mean_over_their_orders(k):
  rng = np.random.default_rng(k)
  queries, gallery = rng.integers(0, 2, (2, 5, 3))
  queries[0] = 0
  groups = [0, 0, 1, 2, 3]
  orders = itertools.permutations(range(5))
  expected = np.mean([by_loop(queries, gallery, groups, k, order) for order in orders])
  found = pair_recall(queries, gallery, groups, (k,))[k]
  assert found == pytest.approx(expected, abs=1e-12)


def test_zero_shot_is_the_loop_and_shares_equals():
  rng = np.random.default_rng(0)
  f, classes = rng.normal(size=(50, 4)), rng.normal(size=(7, 4))
  labels = rng.integers(-1, 7, 50)
  known = labels >= 0
  expected = np.mean((f @ classes.T).argmax(1)[known] == labels[known])
  assert zero_shot(f, classes, labels) == pytest.approx(expected)
  assert zero_shot(np.zeros((4, 3)), np.eye(3), [0, 1, 2, -1]) == pytest.approx(1 / 3)
  assert np.isnan(zero_shot(f, classes, np.full(50, -1)))


def test_what_is_not_finite_is_refused():
  f = np.eye(3)
  f[1, 1] = np.nan
  with pytest.raises(InputError, match="rows of queries hold NaN or infinity"):
    pair_recall(f, np.eye(3), np.arange(3), ks=(1,))


def test_wrong_shapes():
  eye = np.eye(3)
  with pytest.raises(InputError, match=r"gallery \[2, 3\]"):
    pair_recall(eye, eye[:2], np.arange(3), (1,))
  with pytest.raises(InputError, match="k = 0"):
    pair_recall(eye, eye, np.arange(3), (0,))
  with pytest.raises(InputError, match=r"classes \[3, 2\]"):
    zero_shot(eye, eye[:, :2], np.arange(3))
  with pytest.raises(InputError, match="0 to 5: they must be in 0..2"):
    zero_shot(eye, eye, [0, 1, 5])
