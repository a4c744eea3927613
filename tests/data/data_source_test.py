"""Order, batches, padding, parts and subsets, on a source of 101 numbered images."""

import gc
import threading
import time

import numpy as np
import pytest

from ncl_jax.data import source as source_module
from ncl_jax.data.prefetch import prefetch
from ncl_jax.data.source import Source, Split, epoch_order, in_memory
from ncl_jax.data.subset import divide, stratified, subset
from ncl_jax.errors import InputError

N = 101


def numbered(n, classes=5):
  """Image i is filled with i, its label is i modulo the number of classes."""
  images = np.tile(np.arange(n, dtype=np.uint8)[:, None, None, None], (1, 2, 3, 1))
  return Split(images, np.arange(n, dtype=np.int32) % classes)


class Lazy:
  """Images that are not an array; counts what is asked for."""

  def __init__(self, images):
    self.images, self.shape, self.asked = images, images.shape, []

  def __len__(self):
    return len(self.images)

  def __getitem__(self, rows):
    self.asked += list(rows)
    return self.images[rows]


@pytest.fixture
def source():
  return Source("numbers", {"train": numbered(N), "test": numbered(7)}, tuple("abcde"))


def first(batches, count):
  return [batch for batch, _ in zip(batches, range(count), strict=False)]


def ids(batches):
  return np.concatenate([batch["id"] for batch in batches])


def shares(batch_size, processes):
  """The rows of a batch that each of several processes has."""
  return np.arange(batch_size).reshape(processes, -1)


def joined(batches_of_processes):
  """The global batches, from the lists of the processes."""
  return [
    {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    for parts in zip(*batches_of_processes, strict=True)
  ]


def assert_same(a, b):
  assert len(a) == len(b)
  for x, y in zip(a, b, strict=True):
    assert x.keys() == y.keys()
    for key in x:
      np.testing.assert_array_equal(x[key], y[key])
      assert x[key].dtype == y[key].dtype


def test_source_describes_itself(source):
  assert source.num_classes == 5
  assert source.image_shape == (2, 3, 1)
  assert (source.num_examples("train"), source.num_examples("test")) == (101, 7)
  assert source.steps_per_epoch(16) == 6
  assert source.steps_per_epoch(101) == 1


def test_channel_statistics_are_those_of_all_train_pixels():
  images = np.random.default_rng(0).integers(0, 256, (300, 4, 5, 3)).astype(np.uint8)
  images[..., 2] = 7  # a constant channel must not divide by zero
  labels = np.zeros(300, np.int32)
  source = Source("x", {"train": Split(Lazy(images), labels)}, ("a",))
  mean, std = source.channel_statistics()
  pixels = images.reshape(-1, 3) / 255
  np.testing.assert_allclose(mean, pixels.mean(0), rtol=1e-12)
  np.testing.assert_allclose(std, [*pixels.std(0)[:2], 1.0], rtol=1e-10)


@pytest.mark.parametrize("batch_size", [1, 7, 16, 101])
def test_epochs_are_permutations_that_differ(source, batch_size):
  steps = N // batch_size
  seen = ids(first(source.train_batches(3, 0, batch_size), 3 * steps)).reshape(3, -1)
  for epoch in seen:
    assert len(set(epoch)) == steps * batch_size
    assert 0 <= epoch.min() <= epoch.max() < N
  if batch_size == 1:
    assert sorted(seen[0]) == list(range(N))
  assert len({tuple(epoch) for epoch in seen}) == 3
  other_seed = ids(first(source.train_batches(4, 0, batch_size), steps))
  assert tuple(other_seed) != tuple(seen[0])


def test_train_batch_content(source):
  for batch in first(source.train_batches(0, 0, 16), 8):
    assert {k: (v.shape, v.dtype) for k, v in batch.items()} == {
      "image": ((16, 2, 3, 1), np.uint8),
      "label": ((16,), np.int32),
      "id": ((16,), np.int64),
    }
    np.testing.assert_array_equal(batch["image"][:, 1, 2, 0], batch["id"])
    np.testing.assert_array_equal(batch["label"], batch["id"] % 5)


@pytest.mark.parametrize("start", [1, 5, 6, 7, 20])
def test_resumed_order_is_the_uninterrupted_one(source, start):
  whole = first(source.train_batches(1, 0, 16), start + 8)
  assert_same(first(source.train_batches(1, start, 16), 8), whole[start:])


def test_order_is_known_from_seed_and_epoch(source):
  batches = first(source.train_batches(2, 6, 16), 6)
  np.testing.assert_array_equal(ids(batches), epoch_order(N, seed=2, epoch=1)[:96])


@pytest.mark.parametrize("processes", [1, 2, 8])
def test_union_over_processes_is_the_global_batch(source, processes):
  parts = [
    first(source.train_batches(0, 4, 16, rows), 9) for rows in shares(16, processes)
  ]
  assert all(len(part[0]["id"]) == 16 // processes for part in parts)
  assert_same(joined(parts), first(source.train_batches(0, 4, 16), 9))


@pytest.mark.parametrize("processes", [1, 2, 8])
@pytest.mark.parametrize("batch_size", [1, 7, 16, 101, 104, 1000])
@pytest.mark.parametrize("examples", [1, 101])
def test_evaluation_sees_every_image_once_in_order(examples, batch_size, processes):
  batch_size *= processes
  split = numbered(examples)
  source = Source("numbers", {"train": split, "test": split}, tuple("abcde"))
  parts = [
    list(source.eval_batches("test", batch_size, rows))
    for rows in shares(batch_size, processes)
  ]
  batches = joined(parts)
  assert len(batches) == int(np.ceil(examples / batch_size))
  for batch in batches:
    assert batch["image"].shape == (batch_size, 2, 3, 1)
    assert [batch[k].dtype for k in ("image", "label", "mask", "id")] == [
      np.uint8,
      np.int32,
      np.bool_,
      np.int64,
    ]
  image, label, mask, i = (
    np.concatenate([batch[key] for batch in batches])
    for key in ("image", "label", "mask", "id")
  )
  row = np.arange(len(mask))
  real = row < examples
  np.testing.assert_array_equal(mask, real)
  np.testing.assert_array_equal(i, np.where(real, row, -1))
  np.testing.assert_array_equal(label, np.where(real, row % 5, -1))
  expected = np.where(real, row, 0)[:, None, None, None]
  np.testing.assert_array_equal(image, np.broadcast_to(expected, image.shape))
  assert len(row) >= examples


@pytest.mark.parametrize("examples", [5, 11, 16])
def test_rows_need_not_be_neighbours(examples):
  split = numbered(examples)
  source = Source("numbers", {"train": split, "test": split}, tuple("abcde"))
  rows = np.array([1, 2, 7, 4])
  whole = list(source.eval_batches("test", 8))
  for all_, some in zip(whole, source.eval_batches("test", 8, rows), strict=True):
    for key, value in some.items():
      np.testing.assert_array_equal(value, all_[key][rows], strict=True)


def test_evaluation_never_asks_for_padding():
  lazy = Lazy(numbered(10).images)
  split = Split(lazy, np.zeros(10, np.int32))
  source = Source("lazy", {"train": split, "test": split}, ("a",))
  parts = [list(source.eval_batches("test", 16, rows)) for rows in shares(16, 4)]
  assert lazy.asked == list(range(10))
  assert [part[0]["mask"].sum() for part in parts] == [4, 4, 2, 0]


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda s: s.train_batches(0, 0, 102), "batch size 102.* 1 to 101"),
    (lambda s: s.train_batches(0, 0, 0), "batch size 0.* 1 to 101"),
    (lambda s: s.train_batches(0, 0, 4, np.array([1, 4])), "rows 1 to 4.* 0 to 3"),
    (lambda s: s.eval_batches("test", 4, np.array([-1])), "rows -1 to -1.* 0 to 3"),
    (lambda s: s.eval_batches("test", 0), "batch size 0"),
    (lambda s: s.eval_batches("val", 4), "no split 'val'; there are: train, test"),
    (lambda s: s.train_batches(0, 0, 4, split="x"), "no split 'x'.*train, test"),
    (lambda s: next(s.train_batches(-1, 0, 4)), "seed -1"),
    (lambda s: subset(s, train=102), "102 train examples .* 1 to 101"),
    (lambda s: subset(s, test=-1), "-1 test examples .* 1 to 7"),
  ],
)
def test_mistakes_are_named(source, call, message):
  with pytest.raises(InputError, match=message):
    call(source)


@pytest.mark.parametrize(
  ("test", "names", "message"),
  [
    (Split(np.zeros((0, 2, 3, 1), np.uint8), np.zeros(0, np.int32)), "abcde", "no im"),
    (Split(np.zeros((4, 2, 3, 1), np.uint8), np.zeros(3, np.int32)), "abcde", "4 im"),
    (Split(np.zeros((4, 2, 2, 1), np.uint8), np.zeros(4, np.int32)), "abcde", "size"),
    (numbered(7), "abc", "labels from 0 to 4 .* 0 to 2"),
  ],
)
def test_a_source_that_does_not_fit_together_is_refused(test, names, message):
  with pytest.raises(InputError, match=message):
    Source("numbers", {"train": numbered(10, 3), "test": test}, tuple(names))


def started_since(before):
  """Those that other tests have left may end meanwhile, and do not count."""
  return set(threading.enumerate()) - before


def wait_for_end(before):
  for _ in range(100):
    if not started_since(before):
      return
    time.sleep(0.02)
  raise AssertionError(f"still running: {started_since(before)}")


@pytest.mark.parametrize("how", ["closed", "collected", "exhausted", "failed"])
def test_the_background_thread_ends(source, how):
  before = set(threading.enumerate())
  if how == "exhausted":
    list(source.eval_batches("train", 16))
  elif how == "failed":
    with pytest.raises(ZeroDivisionError):
      list(prefetch(lambda step: 1 // (2 - step), range(9)))
  else:
    batches = source.train_batches(0, 0, 16)
    next(batches)
    assert len(started_since(before)) == 1
    if how == "closed":
      batches.close()
    del batches
    gc.collect()
  wait_for_end(before)


def test_an_error_comes_at_its_step():
  results = prefetch(lambda step: 6 // (3 - step), range(9))
  assert [next(results) for _ in range(3)] == [2, 3, 6]
  with pytest.raises(ZeroDivisionError):
    next(results)


def test_prefetch_works_ahead_but_not_without_end():
  made = []
  results = prefetch(made.append, range(1000), ahead=2)
  for _ in range(5):
    next(results)
  for _ in range(100):
    if len(made) == 7:
      break
    time.sleep(0.02)
  results.close()
  assert made == list(range(7))


@pytest.mark.parametrize("count", [0, 1, 3, 20, 99, 150, 151])
def test_stratified_keeps_shares_to_within_one(count):
  labels = np.random.default_rng(0).permutation(np.repeat([0, 1, 2], [100, 50, 1]))
  rows = stratified(labels, count)
  assert len(rows) == count
  assert (np.diff(rows) > 0).all()
  for k, size in enumerate([100, 50, 1]):
    assert abs((labels[rows] == k).sum() - count * size / 151) < 1
  np.testing.assert_array_equal(rows, stratified(labels, count))
  if 0 < count < 150:
    assert list(rows) != list(stratified(labels, count, seed=1))


def test_few_examples_of_many_classes_are_not_always_the_first_classes():
  labels = np.repeat(np.arange(10), 10)
  drawn = [frozenset(labels[stratified(labels, 5, seed)]) for seed in range(4)]
  assert all(len(classes) == 5 for classes in drawn)
  assert len(set(drawn)) > 1


@pytest.mark.parametrize("labels", [np.full(50, -1), np.repeat([0, 1], [40, 10])])
def test_divide_holds_out_a_fixed_stratified_fifth(labels):
  whole = Split(numbered(50).images, labels)
  parts = divide(whole, "x")
  rows = {name: part.images[:, 0, 0, 0] for name, part in parts.items()}
  assert sorted(np.concatenate(list(rows.values()))) == list(range(50))
  for name, part in parts.items():
    np.testing.assert_array_equal(part.labels, labels[rows[name]])
  for k in set(labels.tolist()):
    assert (parts["test"].labels == k).sum() == (labels == k).sum() / 5
  np.testing.assert_array_equal(parts["test"].images, divide(whole, "x")["test"].images)


def test_divide_two_and_one():
  assert [len(part) for part in divide(numbered(2), "x").values()] == [1, 1]
  with pytest.raises(InputError, match="thing: 1 image"):
    divide(numbered(1), "thing")


@pytest.mark.parametrize("lazy", [False, True])
def test_subset_keeps_images_with_their_labels(source, lazy):
  if lazy:
    splits = {k: Split(Lazy(s.images), s.labels) for k, s in source.splits.items()}
    source = Source("lazy", splits, source.class_names)
  part = subset(source, train=20)
  assert part.num_examples("train") == 20
  assert part.splits["test"] is source.splits["test"]
  if lazy:
    assert not source.splits["train"].images.asked
  split = part.splits["train"]
  images = split.images[np.arange(20)]
  np.testing.assert_array_equal(images[:, 0, 0, 0] % 5, split.labels)
  np.testing.assert_array_equal(np.bincount(split.labels), [4, 4, 4, 4, 4])
  assert subset(source).splits == source.splits


@pytest.mark.parametrize("fits", [True, False])
def test_small_sets_are_decoded_once(source, fits, monkeypatch):
  size = (N + 7) * 2 * 3
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", size if fits else size - 1)
  splits = {k: Split(Lazy(s.images), s.labels) for k, s in source.splits.items()}
  result = in_memory(Source("lazy", splits, source.class_names))
  for name, split in result.splits.items():
    assert isinstance(split.images, np.ndarray) == fits
    rows = np.arange(len(split))
    np.testing.assert_array_equal(
      split.images[rows], source.splits[name].images, strict=True
    )
