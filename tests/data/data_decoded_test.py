"""Images that are decoded once: the same bits, one writer, kills, changed files."""

import hashlib
import logging as python_logging
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny
from PIL import Image

from ncl_jax import config as config_lib
from ncl_jax import data
from ncl_jax.data import decode, decoded_cache, folder, threads
from ncl_jax.data import source as source_module
from ncl_jax.errors import InputError
from ncl_jax.preflight import dry_run
from ncl_jax.training import fingerprints, workdir

SIDE = 16
ROW = SIDE * SIDE * 3


@pytest.fixture
def photographs(tmp_path, monkeypatch):
  """36 train and 12 test images, decoded on demand; written in blocks of five."""
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 0)
  monkeypatch.setattr(decoded_cache, "BLOCK_BYTES", 5 * ROW)
  root = tiny.photographs(tmp_path / "photographs")
  (root / "train" / "b" / "99.JPEG").unlink()
  return root


@pytest.fixture
def decoding(monkeypatch):
  """The paths decoded so far."""
  seen = []
  read = decode.read

  def counted(path, *args):
    seen.append(path)
    return read(path, *args)

  monkeypatch.setattr(decode, "read", counted)
  return seen


def load(root, cache="", **settings):
  cache = str(cache)
  return data.load(f"folder:{root}", image_size=SIDE, decoded=cache, **settings)


def pixels(split):
  return split.images[np.arange(len(split))]


def entries(cache):
  return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def assert_same(streamed, cached):
  """Every batch of training and evaluation, of both, bit for bit."""
  for a, b in zip(
    [*zip(range(9), streamed.train_batches(3, 2, 8), strict=False)],
    [*zip(range(9), cached.train_batches(3, 2, 8), strict=False)],
    strict=True,
  ):
    for key in a[1]:
      np.testing.assert_array_equal(a[1][key], b[1][key], strict=True)
  for a, b in zip(
    streamed.eval_batches("test", 5), cached.eval_batches("test", 5), strict=True
  ):
    np.testing.assert_array_equal(a["image"], b["image"], strict=True)


@pytest.mark.parametrize("settings", [{}, {"train_examples": 20}])
def test_batches_are_those_of_streaming(photographs, tmp_path, decoding, settings):
  streamed = load(photographs, **settings)
  cached = load(photographs, tmp_path / "cache", **settings)
  assert_same(streamed, cached)
  assert isinstance(cached.splits["train"].images, decoded_cache.Decoded)
  # A run may go on with a cache or without: its training set is the same.
  assert fingerprints.training_set(streamed) == fingerprints.training_set(cached)
  assert streamed.channel_statistics() == cached.channel_statistics()
  few = [data.labelled(source, 0.5).splits["train"] for source in (streamed, cached)]
  np.testing.assert_array_equal(*map(pixels, few))
  assert len({repr(fingerprints.split(split)) for split in few}) == 1

  decoding.clear()
  again = load(photographs, tmp_path / "cache", **settings)
  pixels(again.splits["train"])
  compared = min(decoded_cache.COMPARED, len(again.splits["train"])) + 12
  assert len(decoding) == compared and len(entries(tmp_path / "cache")) == 2


def test_sets_that_fit_in_memory_are_read_from_the_cache(
  photographs, tmp_path, monkeypatch, decoding
):
  monkeypatch.undo()
  plain = load(photographs)
  load(photographs, tmp_path / "cache")
  cached = load(photographs, tmp_path / "cache")
  for name, split in cached.splits.items():
    assert type(split.images) is np.ndarray
    np.testing.assert_array_equal(split.images, plain.splits[name].images)


def test_an_entry_is_a_numpy_file(photographs, tmp_path):
  split = load(photographs, tmp_path / "cache").splits["train"]
  (file,) = [p for p in (tmp_path / "cache").glob("*.npy") if len(np.load(p)) == 36]
  np.testing.assert_array_equal(np.load(file), pixels(split))
  assert file.name.startswith("photographs-16px-")
  with pytest.raises(IndexError, match="36"):
    split.images[np.array([36])]
  assert split.images[np.array([], np.int64)].shape == (0, SIDE, SIDE, 3)


# Each is noticed: by the names, the time, the size, or the setting.
CHANGES = {
  "renamed": lambda file: file.rename(file.with_name("z.JPEG")),
  "other pixels": lambda file: tiny.photograph(99, (50, 60)).save(file),
  "touched": lambda file: os.utime(file, ns=(0, 0)),
  "removed": lambda file: file.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_noticed(photographs, tmp_path, change):
  load(photographs, tmp_path / "cache")
  before = entries(tmp_path / "cache")
  CHANGES[change](photographs / "train" / "a" / "3.JPEG")
  assert_same(load(photographs), load(photographs, tmp_path / "cache"))
  new = set(entries(tmp_path / "cache")) - set(before)
  assert len(new) == 1  # the test images are the same


def test_another_decoder_or_size_makes_another_entry(
  photographs, tmp_path, monkeypatch
):
  load(photographs, tmp_path / "cache")
  monkeypatch.setattr(decode, "CODE_VERSION", decode.CODE_VERSION + 1)
  load(photographs, tmp_path / "cache")
  data.load(f"folder:{photographs}", image_size=8, decoded=str(tmp_path / "cache"))
  assert len(entries(tmp_path / "cache")) == 6


def test_the_set_may_be_moved(photographs, tmp_path, decoding):
  load(photographs, tmp_path / "cache")
  moved = photographs.rename(tmp_path / "elsewhere")
  moved = moved.rename(moved.with_name("photographs"))
  before = entries(tmp_path / "cache")
  load(moved, tmp_path / "cache")
  assert entries(tmp_path / "cache") == before


@pytest.mark.parametrize("damage", ["pixels", "short", "empty"])
def test_a_damaged_entry_is_refused(photographs, tmp_path, damage):
  load(photographs, tmp_path / "cache")
  for file in (tmp_path / "cache").glob("*.npy"):
    if damage in ("short", "empty"):
      os.truncate(file, file.stat().st_size - 1 if damage == "short" else 0)
    else:
      found = np.load(file, mmap_mode="r+")
      found[0, 0, 0] += 1
  with pytest.raises(InputError, match="damaged.*Delete it"):
    load(photographs, tmp_path / "cache")


def test_without_space_nothing_is_begun(photographs, tmp_path, monkeypatch, decoding):
  cache = tmp_path / "cache"
  load(photographs, cache, train_examples=20)
  (kept,) = [name for name in entries(cache) if len(np.load(cache / name)) == 20]
  decoding.clear()
  usage = type("Usage", (), {"free": 36 * ROW - 1})
  monkeypatch.setattr(decoded_cache.shutil, "disk_usage", lambda place: usage)
  with pytest.raises(InputError, match=r"data.decoded_cache is .* GiB more") as told:
    load(photographs, cache)
  assert kept in str(told.value) and not decoding
  # The test images are there already: so much suffices.
  usage.free += 1
  assert_same(load(photographs), load(photographs, cache))


def test_an_image_that_cannot_be_read_leaves_nothing(photographs, tmp_path):
  bad = photographs / "train" / "c" / "98.JPEG"
  bad.write_bytes((photographs / "train" / "c" / "2.JPEG").read_bytes()[:300])
  with pytest.raises(InputError, match="cannot read the image .*98.JPEG"):
    load(photographs, tmp_path / "cache")
  assert not list((tmp_path / "cache").glob("*.partial"))


def test_unreadable_files_are_sought_once(photographs, tmp_path, monkeypatch):
  bad = photographs / "train" / "c" / "98.JPEG"
  bad.write_bytes((photographs / "train" / "c" / "2.JPEG").read_bytes()[:300])
  streamed = load(photographs, on_bad_image="skip")
  notes = [load(photographs, tmp_path / "c", on_bad_image="skip").notes]
  monkeypatch.setattr(decode, "unreadable", None)
  again = load(photographs, tmp_path / "c", on_bad_image="skip")
  assert streamed.notes == notes[0] == again.notes
  assert "98.JPEG" in "".join(again.notes)
  assert_same(streamed, again)


# Decodes in a process of its own, slowly, and writes down what it decodes.
PROGRAM = f"""
import logging, sys, time
from absl import logging as absl_logging
from ncl_jax import data
from ncl_jax.data import decode, decoded_cache, source
absl_logging.set_verbosity(absl_logging.INFO)
folder, cache, log, seconds = sys.argv[1:]
source.IN_MEMORY_BYTES, decoded_cache.BLOCK_BYTES = 0, 5 * {ROW}
decoded_cache.COMPARED = 1
read = decode.read
def slow(path, size, white):
  time.sleep(float(seconds))
  with open(log, "a") as file:
    file.write(path + chr(10))
  return read(path, size, white)
decode.read = slow
print("ready", flush=True)
input()
data.load("folder:" + folder, image_size={SIDE}, decoded=cache)
"""


def start(root, cache, log, seconds):
  """A process that has imported everything and waits for a line."""
  command = [sys.executable, "-c", PROGRAM, str(root), str(cache), str(log)]
  process = subprocess.Popen(
    [*command, str(seconds)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    env=os.environ,
  )
  assert process.stdout.readline() == "ready\n", process.stderr.read()
  return process


def go(process):
  process.stdin.write("\n")
  process.stdin.flush()


def wait_for(condition, process):
  while not condition():
    assert process.poll() is None, process.stderr.read()
    time.sleep(0.02)


def test_killed_in_the_middle_it_goes_on(photographs, tmp_path, decoding):
  cache, log = tmp_path / "cache", tmp_path / "log"
  process = start(photographs, cache, log, 0.2)
  go(process)

  def written():
    return sum(path.stat().st_size for path in cache.glob("*.partial"))

  wait_for(lambda: written() > 15 * ROW, process)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert not list(cache.glob("*.npy"))
  # As if the kill had come in the middle of an image.
  (partial,) = cache.glob("*.partial")
  with partial.open("ab") as file:
    file.write(b"\xff" * (ROW // 2))
  cached = load(photographs, cache)
  train = {path for path in decoding if "/train/" in path}
  assert 36 - 15 <= len(train) <= 36 - 5  # no more than two blocks again
  assert_same(load(photographs), cached)
  assert not list(cache.glob("*.partial"))


def test_two_processes_decode_once(photographs, tmp_path):
  cache, log = tmp_path / "cache", tmp_path / "log"
  first = start(photographs, cache, log, 0.1)
  second = start(photographs, cache, log, 0.0)
  go(first)
  wait_for(lambda: list(cache.glob("*.partial")), first)
  go(second)
  said = [process.communicate()[1] for process in (first, second)]
  assert [process.returncode for process in (first, second)] == [0, 0], said
  # Each of the 48 once, and one of each split a process to compare.
  assert len(log.read_text().splitlines()) == 48 + 2 * 2
  assert f"waiting for process {first.pid} on" in said[1]
  assert_same(load(photographs), load(photographs, cache))


def test_two_writers_without_locks_write_the_same(photographs, tmp_path, monkeypatch):
  """Such as on Lustre; the second begins while the first writes, and ends before."""
  monkeypatch.setattr(decoded_cache.locks, "_acquired", lambda *_: True)
  streamed = load(photographs)
  images = streamed.splits["train"].images
  (entry,) = {
    e.file: e for e in decoded_cache.entries(streamed, tmp_path).values()
    if len(e.images) == 36
  }.values()  # fmt: skip
  read, blocks = folder.decode.Files.__getitem__, []

  def interrupted(files, rows):
    blocks.append(len(rows))
    if len(blocks) == 4:
      entry.open("theirs")
    return read(files, rows)

  monkeypatch.setattr(folder.decode.Files, "__getitem__", interrupted)
  found = entry.open("ours")
  np.testing.assert_array_equal(found.pixels, read(images, np.arange(36)))
  assert len(blocks) > 8 and not entry.partial.exists()


def test_threads_take_rows_in_their_order():
  array = np.random.default_rng(0).integers(0, 256, (50, 2, 3, 1), np.uint8)
  for count in (0, 1, 7, 200):
    rows = np.random.default_rng(count).integers(0, 50, count)
    np.testing.assert_array_equal(threads.take(array, rows), array[rows], strict=True)


def test_the_dry_run_tells_the_space_and_writes_nothing(photographs, tmp_path):
  config = tiny.config()
  config.data.source = f"folder:{photographs}"
  config.data.image_size, config.data.decoded_cache = SIDE, str(tmp_path / "cache")
  text = dry_run.describe(config, tmp_path / "run")
  assert f"decoded once, into {tmp_path / 'cache'}: 0.00 GiB to write" in text
  assert not (tmp_path / "cache").exists()


def test_the_setting(photographs, tmp_path, caplog):
  config = tiny.config()
  config.data.decoded_cache = str(tmp_path / "cache")
  with pytest.raises(InputError, match="allowed is '' for arrays:tiny.npz"):
    config_lib.validate(config)
  config.data.source = f"folder:{photographs}"
  config_lib.validate(config)
  # A run is read on another machine, too.
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text(config_lib.to_json(config))
  with caplog.at_level(python_logging.INFO, logger="absl"):
    assert not workdir.read_config(tmp_path / "run").data.decoded_cache
  assert "not here" in caplog.text
  (tmp_path / "cache").mkdir()
  assert workdir.read_config(tmp_path / "run").data.decoded_cache
  file = tmp_path / "file"
  file.touch()
  with pytest.raises(InputError, match="which is a file; allowed is a folder"):
    load(photographs, file)


def test_pixels_are_those_of_this_version(tmp_path):
  """If this fails, raise `decode.CODE_VERSION`, and renew the digest.

  Lossless files, so that no codec rounds.
  """
  y, x = np.mgrid[:45, :70]
  colour = np.stack([x * 3, y * 5, (x * y) % 256], -1).astype(np.uint8)
  turned = Image.Exif()
  turned[0x0112] = 6
  alpha = np.dstack([colour, colour[..., 2]])
  files = {
    "rgb": (colour, {}),
    "turned": (colour, {"exif": turned}),
    "clear": (alpha, {}),
    "deep": ((x * y * 20).astype(np.uint16), {}),
    "grey": (colour[..., 2], {}),
  }
  seen = [decode.square(colour[None], SIDE)]
  for name, (image, options) in files.items():
    path = tmp_path / f"{name}.png"
    Image.fromarray(image).save(path, **options)
    seen += [decode.read(str(path), side, 64000) for side in (SIDE, 60)]
  digest = hashlib.sha256(b"".join(pixels.tobytes() for pixels in seen)).hexdigest()
  assert (decode.CODE_VERSION, digest[:16]) == (1, "6ee2368e09f40ff9")
