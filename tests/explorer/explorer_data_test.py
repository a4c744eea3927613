"""What the explorer shows, against loops from the definitions and scikit-learn."""

import explorer_example as example
import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from ncl_jax import metrics
from ncl_jax.report.explorer import Exploration, Side, data

LABELS, DENSE, SPARSE = example.codes()
LABELS = np.where(np.arange(40) % 9 == 8, -1, LABELS)


@pytest.fixture(scope="module", params=[DENSE, SPARSE], ids=["dense", "sparse"])
def f(request):
  return request.param


def test_the_numbers_are_those_of_the_metrics(f):
  table = data.dimensions(f, LABELS, 4, 1e-5)
  rate, labelled = metrics.class_consistency(f, LABELS, 4)
  entropy = metrics.label_entropy(f, LABELS, 4)
  np.testing.assert_allclose(table["consistency"], rate, atol=1e-6)
  np.testing.assert_allclose(table["entropy"], entropy, atol=1e-5)
  np.testing.assert_array_equal(table["class_counts"].sum(1), labelled)
  np.testing.assert_allclose(
    table["expected"], metrics.expected_activation(f), atol=1e-6
  )
  live = metrics.active_dimensions(f)
  np.testing.assert_array_equal(table["active"] > 0, live)


@pytest.mark.parametrize("many", [1, 30])  # 30: more dimensions than a block holds
def test_each_dimension_is_a_loop_over_its_images(f, many):
  f = np.tile(f, (1, many))
  table = data.dimensions(f, LABELS, 4, 1e-5)
  assert {len(column) for column in table.values()} == {f.shape[1]}
  for d in range(0, f.shape[1], 5):
    x = f[:, d]
    on = np.abs(x) > 1e-5
    assert table["active"][d] == on.sum()
    order = [n for n in np.argsort(-x, kind="stable") if x[n] > 1e-5][: data.TOP]
    assert [n for n in table["top"][d] if n >= 0] == order
    np.testing.assert_array_equal(table["top_values"][d][: len(order)], x[order])
    counts = {k: int((LABELS[on] == k).sum()) for k in range(4)}
    shown = dict(zip(table["classes"][d], table["class_counts"][d], strict=True))
    assert {k: n for k, n in shown.items() if k >= 0} == {
      k: n for k, n in counts.items() if n
    }
    low, high = min(x.min(), 0), max(x.max(), 0)
    assert (table["low"][d], table["high"][d]) == (low, high)
    if on.any():
      bins, _ = np.histogram(x[on], data.BINS, (low, high))
      # A value on an edge may fall to either side of it.
      assert np.abs(table["histogram"][d] - bins).sum() <= 2
    assert table["histogram"][d].sum() == on.sum()


def test_codes_keep_the_largest_values(f):
  found = data.codes(f, 1e-5)
  for n, x in enumerate(f):
    order = [d for d in np.argsort(-np.abs(x), kind="stable") if abs(x[d]) > 1e-5]
    kept = found["kept"][n]
    assert list(kept[kept >= 0]) == order[: data.KEPT]
    np.testing.assert_array_equal(
      found["kept_values"][n][kept >= 0], x[kept[kept >= 0]]
    )
    assert not found["kept_values"][n][kept < 0].any()
    assert found["l0"][n] == len(order)


def test_codes_of_many_dimensions_are_cut():
  f = np.random.default_rng(2).normal(size=(5, 100)).astype(np.float32)
  found = data.codes(f, 1e-5)
  assert found["kept"].shape == (5, data.KEPT)
  order = np.argsort(-np.abs(f), axis=1)[:, : data.KEPT]
  np.testing.assert_array_equal(found["kept"], order)
  np.testing.assert_array_equal(found["l0"], [100] * 5)


def test_neighbours_are_scikit_learns(f):
  rows = np.delete(f, example.EMPTY, axis=0)
  found = data.neighbours(rows)
  near = NearestNeighbors(n_neighbors=data.NEIGHBOURS, metric="cosine").fit(rows)
  distance, index = near.kneighbors()  # of the others alone
  np.testing.assert_allclose(found["near_values"], 1 - distance, atol=1e-5)
  agree = found["near"] == index
  assert agree.mean() > 0.95  # but for ties
  empty = data.neighbours(f * (np.arange(40) != 3)[:, None])
  assert (empty["near"][3] == -1).all()
  assert not (empty["near"] == 3).any()


def test_more_images_than_a_block_of_neighbours():
  f = np.random.default_rng(3).normal(size=(700, 6))
  f /= np.linalg.norm(f, axis=1, keepdims=True)
  found = data.neighbours(f)
  cosines = f @ f.T - 2 * np.eye(700)
  np.testing.assert_array_equal(found["near"][:, 0], cosines.argmax(axis=1))


def test_without_labels_and_without_life():
  table = data.dimensions(DENSE, np.full(40, -1), 0, 1e-5)
  assert np.isnan(table["consistency"]).all()
  assert np.isnan(table["entropy"]).all()
  assert (table["classes"] == -1).all()
  dead = data.dimensions(np.zeros((3, 2), np.float32), np.zeros(3, int), 1, 1e-5)
  assert not dead["active"].any() and not dead["histogram"].any()
  assert (dead["top"] == -1).all() and np.isnan(dead["consistency"]).all()


def test_the_strongest_rows_are_a_loop_over_them(f):
  f = np.tile(f, (1, 30))  # more dimensions than a block holds
  at, values = data.strongest(f, 5, 0.1)
  assert at.shape == values.shape == (360, 5)
  for d in range(0, 360, 7):
    best = sorted((x for x in f[:, d] if x > 0.1), reverse=True)[:5]
    kept = at[d][at[d] >= 0]
    np.testing.assert_array_equal(f[kept, d], best)
    np.testing.assert_array_equal(values[d], best + [0] * (5 - len(best)))
  assert data.strongest(f[:3], 5, 0.1)[0].shape == (360, 3)


def test_some_images_are_the_same_ones_each_time():
  chosen = data.some(1000, 50)
  assert len(set(chosen)) == 50 and (np.diff(chosen) > 0).all() and chosen.max() < 1000
  np.testing.assert_array_equal(chosen, data.some(1000, 50))
  assert (np.diff(chosen) > 40).any()  # not only the first


def test_attention_is_relative_and_of_the_mean_head_where_it_is_too_much(monkeypatch):
  maps = np.random.default_rng(0).uniform(size=(5, 2, 3, 3))
  maps[4, 1] = 0  # a head that looks at its own token alone
  shown = data.looked_at(maps)
  for n, head in np.ndindex(5, 2):
    one = maps[n, head]
    expected = 255 * one / max(one.max(), 1e-9)
    np.testing.assert_allclose(shown[n, head], expected, atol=0.501)
  monkeypatch.setattr(data, "PATCHES", maps.size - 1)
  fewer = data.looked_at(maps)
  assert fewer.shape == (5, 1, 3, 3)
  np.testing.assert_array_equal(fewer, data.looked_at(maps.mean(1)[:, None]))


def test_counts_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match="labels: 39 rows for 40 images"):
    example.make(labels=LABELS[:39])
  with pytest.raises(ValueError, match="features of 'x': 2 rows for 40"):
    example.make(sides=(Side("x", DENSE[:2]),))
  with pytest.raises(ValueError, match="attention of 'x': 3 rows for 40"):
    example.make(sides=(Side("x", DENSE, attention=np.ones((3, 1, 2, 2))),))
  with pytest.raises(ValueError, match="1 side or more"):
    Exploration("", example.images(), LABELS, (), ())
  with pytest.raises(ValueError, match="captions: 3 rows for 40 images"):
    example.two_towers(captions=np.array(["a"] * 3))
  with pytest.raises(ValueError, match="partners: 39 rows for 40 images"):
    example.two_towers(partners=example.images()[:39])
  with pytest.raises(ValueError, match="words of 'NCL': 4 rows for 2 words"):
    example.two_towers(words=example.WORDS[:2])
