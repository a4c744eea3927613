"""JPEG input: decoded as far as needed, the same for any number of processes."""

import io
import re
import resource

import numpy as np
import pytest
import tiny
from PIL import Image, ImageOps

from ncl_jax import config as config_lib
from ncl_jax import data
from ncl_jax.data import decode, threads
from ncl_jax.data import source as source_module
from ncl_jax.data.source import Source, Split
from ncl_jax.data.subset import only_classes
from ncl_jax.errors import InputError
from ncl_jax.preflight import input_rate
from ncl_jax.runtime import timing


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  return tiny.photographs(tmp_path_factory.mktemp("photographs"))


@pytest.fixture
def lazy(folder, monkeypatch):
  """Them as a source that is decoded batch by batch, the damaged one left out."""
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 0)
  return data.load(f"folder:{folder}", image_size=16, on_bad_image="skip")


@pytest.mark.parametrize("turned", [False, True])
def test_large_jpegs_are_decoded_small_and_look_the_same(tmp_path, turned, monkeypatch):
  image, path = tiny.photograph(0, (1100, 900)), str(tmp_path / "x.jpg")
  exif = image.getexif()
  if turned:
    exif[0x0112] = 6  # the camera was held upright
  image.save(path, quality=95, exif=exif)
  sizes = []
  original = ImageOps.exif_transpose
  monkeypatch.setattr(
    ImageOps,
    "exif_transpose",
    lambda x, **how: (sizes.append(x.size), original(x, **how))[1],
  )
  found = decode.read(path, 224).astype(int)
  assert sizes == [(275, 225)]  # a quarter
  with Image.open(path) as whole:
    upright = original(whole.convert("RGB"))
  expected = ImageOps.fit(upright, (224, 224), Image.Resampling.BICUBIC)
  assert np.abs(found - np.asarray(expected)).mean() < 1
  with open(path, "rb") as file:
    from_bytes = decode.read(io.BytesIO(file.read()), 224)
  np.testing.assert_array_equal(from_bytes, found)


def test_threads_put_each_image_in_its_place():
  rows = np.random.default_rng(0).permutation(500)
  made = threads.read(lambda i: np.full((2, 3, 1), i % 251, np.uint8), rows, (2, 3, 1))
  np.testing.assert_array_equal(made[:, 1, 2, 0], rows % 251)
  with pytest.raises(ZeroDivisionError):
    threads.read(lambda i: 7 // abs(i - 3), rows, (1, 1, 1))


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_photographs(lazy, processes):
  def read(index, count, start=0):
    stream = lazy.train_batches(3, start, 8, np.arange(8).reshape(count, -1)[index])
    return [batch for batch, _ in zip(stream, range(9 - start), strict=False)]

  assert lazy.num_examples("train") == 36
  whole = read(0, 1)
  parts = [read(p, processes) for p in range(processes)]
  for step, batch in enumerate(whole):
    for key, value in batch.items():
      joined = np.concatenate([part[step][key] for part in parts])
      np.testing.assert_array_equal(joined, value, strict=True)
  # Killed after five steps and started again.
  again = read(1, processes, start=5)
  for a, b in zip(again, parts[1][5:], strict=True):
    np.testing.assert_array_equal(a["image"], b["image"])
  # Evaluation sees each image once, padding masked.
  shares = np.arange(8).reshape(processes, -1)
  parts = [list(lazy.eval_batches("test", 8, rows)) for rows in shares]
  seen = np.concatenate([b["id"][b["mask"]] for part in parts for b in part])
  assert sorted(seen) == list(range(12))


def test_a_damaged_photograph_stops_every_process(folder, monkeypatch):
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 0)
  source = data.load(f"folder:{folder}", image_size=16)
  for rows in np.arange(36).reshape(2, -1):
    with pytest.raises(InputError, match=r"99\.JPEG"):
      stream = source.train_batches(0, 0, 36, rows)
      # In one of two epochs it is in this process's half, at the latest in 30.
      for _ in range(30):
        next(stream)


def test_only_some_classes(folder, tmp_path):
  file = tmp_path / "classes.txt"
  file.write_text("c first words count\n\na\n")
  part = data.load(
    f"folder:{folder}", image_size=16, on_bad_image="skip", classes_file=str(file)
  )
  whole = data.load(f"folder:{folder}", image_size=16, on_bad_image="skip")
  assert part.class_names == ("a", "c")
  for name, split in part.splits.items():
    all_ = whole.splits[name]
    kept = all_.labels != 1
    np.testing.assert_array_equal(split.images, all_.images[kept])
    np.testing.assert_array_equal(split.labels, all_.labels[kept] // 2)


def test_unlabelled_images_are_of_no_class():
  labels = np.array([0, -1, 1, 1], np.int32)
  split = Split(np.arange(4, dtype=np.uint8)[:, None, None, None], labels)
  source = Source("s", {"train": split, "test": split}, ("x", "y"))
  kept = only_classes(source, ["y"]).splits["train"]
  assert kept.images.ravel().tolist() == [2, 3] and kept.labels.tolist() == [0, 0]


@pytest.mark.parametrize(
  ("text", "message"),
  [("a\nz\n", "unknown: z; allowed: from 1 of its 3 classes"), ("", "0, of which"),
   (None, "there is no such file")],
)  # fmt: skip
def test_classes_that_are_not_there(folder, tmp_path, text, message):
  file = tmp_path / "classes.txt"
  if text is not None:
    file.write_text(text)
  with pytest.raises(InputError, match=message):
    data.load(f"folder:{folder}", on_bad_image="skip", classes_file=str(file))


def test_the_rate_counts_batches_and_the_need_is_arithmetic(folder, lazy):
  config = tiny.config()
  config.data.source = f"folder:{folder}"
  config.data.on_bad_image, config.data.image_size = "skip", 16
  rate = input_rate.measure(config, lazy, batches=3)
  assert rate.images == 3 * config.train.batch_size and rate.seconds > 0
  text = input_rate.run(config, 2, "H100")
  assert "images/s on" in text and "one H100 takes up to" in text
  assert "on the devices whole" not in text
  speed, sent = re.search(r"([\d,]+) images/s .* ([\d,.]+) MiB/s", text).groups()
  speed, sent = (float(x.replace(",", "")) for x in (speed, sent))
  assert sent == pytest.approx(speed * 16 * 16 * 3 / 2**20, abs=0.06)
  # The released stem makes 34 x 34 of 32 x 32; multiplications of each stage.
  stages = 34**2 * (27 * 64 + 4 * 9 * 64**2)
  for side, width in ((17, 128), (9, 256), (5, 512)):
    stages += side**2 * width * (width // 2 * (9 + 1) + 3 * 9 * width)
  projector = 512 * 2048 + 2048 * 256
  cifar = config_lib.defaults()
  cifar.data.source = "tfds:cifar10"
  images = np.zeros((256, 32, 32, 3), np.uint8)
  split = Split(images, np.zeros(256, np.int32))
  source = Source("c", {"train": split, "test": split}, ("a", "b"))
  needed = input_rate.need(cifar, source, "H100")
  assert needed == pytest.approx(
    0.25 * 989e12 / (3 * 2 * 2 * (stages + projector)), rel=1e-3
  )
  with pytest.raises(InputError, match="accelerator = 'abacus'"):
    input_rate.need(cifar, source, "abacus")
  assert set(timing.PEAKS) > {"H100", "TPU v5e"}


@pytest.mark.slow
def test_memory_does_not_grow_over_20_epochs():
  """50,000 small images: the highest mark after 2 epochs is that after 20."""
  images = np.random.default_rng(0).integers(0, 256, (50_000, 32, 32, 3), np.uint8)
  split = Split(images, np.zeros(50_000, np.int32))
  source = Source("many", {"train": split, "test": split}, ("a",))
  stream = source.train_batches(0, 0, 500)
  marks = []
  for epoch in range(20):
    for _ in range(100):
      next(stream)
    if epoch in (1, 19):
      marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
  assert marks[1] < 1.05 * marks[0]
