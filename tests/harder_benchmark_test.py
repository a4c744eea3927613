"""benchmarks/harder.py: its measures from their definitions, its sets, its verdicts."""

import collections

import numpy as np
import pytest

from benchmarks import harder, harder_page, harder_sets, meaning
from ncl_jax import metrics
from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError

RNG = np.random.default_rng(0)


def loop(column, m, wide, narrow):
  """The figures of one dimension; image n is in the groups wide[n] and in narrow[n]."""
  top = sorted(range(len(column)), key=lambda n: -column[n])[:m]
  counts = collections.Counter(k for n in top for k in wide[n])
  best = min(k for k in counts if counts[k] == max(counts.values()))
  parts = collections.Counter(narrow[n] for n in top if best in wide[n])
  most = max(collections.Counter(narrow[n] for n in top).values())
  return counts[best] / m, most / m, best, max(parts.values()) / counts[best]


def test_two_levels_equal_the_loop():
  f = RNG.normal(size=(60, 9)).astype(np.float32)
  fine = np.concatenate([np.arange(6), RNG.integers(0, 6, 54)])
  coarse = np.array([0, 0, 0, 1, 1, 2])[fine]
  found = meaning.of_dimensions(
    np.asarray(metrics.activated(f, 0.2)), meaning.two_levels(coarse, fine)
  )
  for d, column in enumerate(f.T):
    expected = loop(column, 12, [{k} for k in coarse], fine)
    result = (found.wide[d], found.narrow[d], found.best[d], found.inner[d])
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def two(n=80, classes=4):
  """First and second class of n images."""
  one = RNG.integers(0, classes, n)
  return one, (one + RNG.integers(1, classes, n)) % classes


def test_two_objects_equal_the_loop():
  f = RNG.normal(size=(80, 9)).astype(np.float32)
  one, other = two()
  found = meaning.of_dimensions(
    np.asarray(metrics.activated(f, 0.1)), meaning.two_objects(one, other, 4)
  )
  held = [{a, b} for a, b in zip(one.tolist(), other.tolist(), strict=True)]
  for d, column in enumerate(f.T):
    expected = loop(column, 8, held, [frozenset(x) for x in held])
    result = (found.wide[d], found.narrow[d], found.best[d], found.inner[d])
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_dimensions_that_stand_for_an_object_for_a_pair_and_for_nothing():
  """One dimension of each kind and a constant one; 3 % of 4,000 are within a pair."""
  one, other = two(4000, 5)
  noise = RNG.uniform(size=(4, 4000))
  object_ = (one == 2) | (other == 2)
  pair = object_ & ((one == 3) | (other == 3))
  f = np.stack([noise[0] + object_, noise[1] + pair, noise[2], np.ones(4000)], 1)
  groups = meaning.two_objects(one, other, 5)
  found = meaning.figures(f.astype(np.float32), groups, 0.03, 0)
  assert found["live"] == 3
  for kind in ("nothing", "wide_group", "narrow_group"):
    assert found[kind] == pytest.approx(1 / 3)
  assert found["single"] == 0
  # The pair has one partner; the two others have any of four, the largest share of
  # which is above a quarter by luck.
  assert 0.5 < found["inner"] < 0.6 and 0.25 < found["inner_chance"] < 0.4
  assert 0.4 < found["wide_chance"] < 0.55 and 0.1 < found["narrow_chance"] < 0.2


def test_chance_within_leaves_the_wide_group_and_its_sizes():
  """A dimension that knows the coarse class alone is at the chance within; fine classes
  of 10 % and 90 % of it give .9, by luck no more."""
  coarse = np.repeat([0, 1], 3000)
  fine = 2 * coarse + (RNG.uniform(size=6000) < 0.1)
  f = np.stack(
    [RNG.uniform(size=6000) + coarse, RNG.uniform(size=6000) + (fine == 3)], 1
  )
  groups = meaning.two_levels(coarse, fine)
  weight = np.asarray(metrics.activated(f.astype(np.float32), 0.03))
  found = meaning.of_dimensions(weight, groups)
  chance = meaning._permuted_within(weight, groups, found, np.random.default_rng(0))
  np.testing.assert_allclose(found.inner, [0.9, 1.0], atol=0.05)
  np.testing.assert_allclose(chance, [0.9, 0.9], atol=0.08)


def test_a_class_of_one_kind_is_told_apart():
  coarse = harder_sets.coarse(np.arange(10).repeat(20))
  groups = meaning.two_levels(coarse, np.arange(10).repeat(20))
  np.testing.assert_array_equal(groups.inside.sum(1), [4, 1, 1, 3, 1])
  f = np.eye(10, dtype=np.float32)[np.arange(10).repeat(20)]
  found = meaning.figures(f, groups, 0.1, 0)
  assert found["single"] == pytest.approx(0.3)
  assert found["narrow_group"] == pytest.approx(0.7)
  assert found["inner"] == found["wide"] == found["narrow"] == 1


def test_images_of_two_objects():
  images = RNG.integers(1, 255, (12, 3, 3, 1)).astype(np.uint8)
  single = Split(images, np.arange(12) % 4)
  made, labels = harder_sets.compose(single, 50, 0)
  places = collections.Counter()
  for image, partner, pair in zip(*made, labels, strict=True):
    of = [items(canvas, images) for canvas in (image, partner)]
    for found in of:
      assert len(found) == 2
      assert {n % 4 for n in found.values()} == set(pair.tolist()) and pair[0] != pair[
        1
      ]
    assert set(of[0].values()) == set(of[1].values())
    places.update(["same" if tuple(of[0]) == tuple(of[1]) else "anew", *of[0]])
  assert places.keys() == {0, 1, 2, 3, "same", "anew"}
  again, _ = harder_sets.compose(single, 50, 0)
  np.testing.assert_array_equal(again, made)


def items(image, images):
  """Quarter -> which of the images fills it."""
  quarters = [image[r : r + 3, c : c + 3] for r in (0, 3) for c in (0, 3)]
  return {
    i: n
    for i, quarter in enumerate(quarters)
    for n in range(len(images))
    if quarter.any() and (quarter == images[n]).all()
  }


def test_emoji_without_tones_one_of_a_concept(tmp_path):
  captions = ["farmer, dark skin tone", "man farmer", "woman farmer", "cat"]
  concepts = ["farmer", "farmer", "farmer", "cat"]
  split = Split(np.zeros((4, 2, 2, 3), np.uint8), np.arange(4), {"level": np.arange(4)})
  source = Source("emoji", {"train": split, "test": split}, tuple("abcd"))
  with pytest.raises(InputError, match="no .*text.npz: make it by"):
    harder_sets.emoji(tmp_path, source)
  for name in ("drawers", "text"):
    np.savez(tmp_path / f"{name}.npz", test_captions=captions, test_concepts=concepts)
  made = harder_sets.emoji(tmp_path, source)
  assert made.split("test").labels.tolist() == [1, 3]
  assert made.split("test").levels["level"].tolist() == [1, 3]
  assert made.num_examples("train") == 4


def test_both_objects_are_read_where_features_show_them():
  one, other = two(300, 5)
  marks = meaning.two_objects(one, other, 5).wide
  x = marks + 0.01 * RNG.normal(size=marks.shape)
  assert harder.both_right(x[:200], marks[:200], x[200:], marks[200:]) == 1
  noise = RNG.normal(size=(300, 5))
  assert harder.both_right(noise[:200], marks[:200], noise[200:], marks[200:]) < 0.3


def invented(**of):
  """Rows of two seeds for each arm: the narrow figure, all else alike."""
  arms = {"CL": (1, 1), "NCL": (2, 2), "CL + map": (1, 1), "untrained + map": (0, 0)}
  return [
    {"arm": arm, "seed": seed, "wide": x, "narrow": x, "inner": x, "inner_chance": 0}
    for arm, values in (arms | of).items()
    for seed, x in enumerate(values)
  ]


@pytest.mark.parametrize(
  "of, verdict",
  [
    ({}, "seen"),
    ({"CL + map": (1, 3)}, "undecided"),
    ({"NCL": (0, 4)}, "undecided"),
    ({"NCL": (0, 2)}, "not seen"),
  ],
)
def test_verdicts(of, verdict):
  rows = harder_page.arms(invented(**of))
  assert harder_page.compared(rows, lambda row: row["narrow"]) == verdict


def test_what_most_dimensions_stand_for():
  def row(**shares):
    return (
      dict.fromkeys(["nothing", "single", "wide_group", "narrow_group"], 0) | shares
    )

  most = row(single=0.4, wide_group=0.35, nothing=0.25)
  assert harder_page.kind("emoji", [most, most]) == "a category"
  assert harder_page.kind("emoji", [most, row(nothing=1)]) == "no one kind"
  assert harder_page.kind("two", [row(nothing=0.6)] * 2) == "nothing"
