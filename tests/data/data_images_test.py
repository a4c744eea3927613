"""Image folders as they come: transparency, links, copies, names, tens of thousands."""

import logging as python_logging
import os
import shutil

import numpy as np
import pytest
from PIL import Image

from ncl_jax import data
from ncl_jax.data import decode, duplicates
from ncl_jax.data import source as source_module
from ncl_jax.errors import InputError


@pytest.fixture
def log(caplog):
  with caplog.at_level(python_logging.INFO, logger="absl"):
    yield caplog


def picture(path, value, size=(4, 4)):
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.new("RGB", size, (value, value, value)).save(path)
  return path


def classes(root, names, count=3):
  """Pictures of which no two are alike."""
  for k, name in enumerate(names):
    for i in range(count):
      picture(root / name / f"{i}.png", 20 * k + i)
  return root


def all_images(source):
  return np.concatenate([s.images[np.arange(len(s))] for s in source.splits.values()])


def transparent(mode):
  """Colours and opacities of every size, and the image that has them."""
  random = np.random.default_rng(0)
  colour = random.integers(0, 256, (6, 6, 3), dtype=np.uint8)
  alpha = random.integers(0, 256, (6, 6), dtype=np.uint8)
  alpha[0], alpha[1] = 0, 255
  if mode == "LA":
    colour[...] = colour[..., :1]
    image = Image.merge("LA", (Image.fromarray(colour[..., 0]), Image.fromarray(alpha)))
  elif mode == "P":
    entries = np.arange(36, dtype=np.uint8).reshape(6, 6)
    image = Image.fromarray(entries, "L").convert("P")
    image.putpalette(colour.tobytes())
    image.info["transparency"] = alpha.tobytes()
  elif mode == "RGB":
    # One colour is declared clear, as old PNG writers did.
    image = Image.fromarray(colour)
    image.info["transparency"] = tuple(colour[2, 3].tolist())
    alpha = np.where((colour == colour[2, 3][None, None]).all(-1), 0, 255)
  else:
    image = Image.fromarray(np.dstack([colour, alpha]))
  return image, colour, alpha


@pytest.mark.filterwarnings("ignore:'mode' parameter:DeprecationWarning")
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB"])
def test_what_is_transparent_is_laid_on_white(tmp_path, mode):
  """Against the definition: colour * opacity + white * (1 - opacity)."""
  image, colour, alpha = transparent(mode)
  image.save(tmp_path / "x.png", **image.info)
  share = (alpha / 255)[..., None]
  expected = colour * share + 255 * (1 - share)
  seen = decode.read(str(tmp_path / "x.png"), 6)
  assert np.abs(seen - expected).max() <= 1.01
  assert (seen[0] == 255).all() or mode == "RGB"


def test_classes_are_in_natural_sort_order(tmp_path):
  names = ("1", "2", "10", "a", "n2", "n10", "é", "画像")
  classes(tmp_path, reversed(names), count=5)
  assert data.load(f"folder:{tmp_path}").class_names == names


def test_a_name_written_in_two_forms_of_unicode_is_one_class(tmp_path):
  composed, apart = "caf\u00e9", "cafe\u0301"
  classes(tmp_path / "train", [composed, "tea"])
  classes(tmp_path / "test", [apart, "tea"])
  if len(os.listdir(tmp_path / "test")) != 2:
    pytest.skip("this file system has one form")
  source = data.load(f"folder:{tmp_path}")
  assert source.class_names == (composed, "tea")
  assert source.splits["test"].labels.tolist() == [0] * 3 + [1] * 3


@pytest.mark.parametrize("place", ["loop", "a/loop", "a/deep/loop"])
@pytest.mark.parametrize("target", [".", "a"])
def test_links_that_lead_back_end(tmp_path, place, target, log):
  root = classes(tmp_path / "set", ["a", "b"])
  (root / "a" / "deep").mkdir()
  if place == "loop" and target == "a":
    target = "."
  (root / place).symlink_to(root / target, target_is_directory=True)
  source = data.load(f"folder:{root}")
  assert source.class_names == ("a", "b")
  assert sum(map(len, source.splits.values())) == 6
  assert "is searched already" in log.text


def test_links_to_files_and_folders_elsewhere_are_followed(tmp_path):
  classes(tmp_path / "store", ["x", "y"])
  root = classes(tmp_path / "set", ["a", "b"])
  (root / "a" / "more").symlink_to(tmp_path / "store" / "x")
  (root / "b" / "one.png").symlink_to(tmp_path / "store" / "y" / "0.png")
  source = data.load(f"folder:{root}")
  counts = sum(np.bincount(s.labels, minlength=2) for s in source.splits.values())
  assert counts.tolist() == [6, 4]


@pytest.mark.parametrize("labelled", [True, False])
def test_a_link_to_nowhere_is_a_damaged_image(tmp_path, labelled, log):
  root = classes(tmp_path / "set", ["a", "b"] if labelled else [""])
  link = root / ("a" if labelled else "") / "gone.png"
  link.symlink_to(tmp_path / "gone.png")
  with pytest.raises(InputError, match="gone.png"):
    data.load(f"folder:{root}")
  source = data.load(f"folder:{root}", on_bad_image="skip")
  assert sum(map(len, source.splits.values())) == (6 if labelled else 3)
  assert "1 unreadable images left out" in log.text and str(link) in log.text


def test_files_of_other_kinds_are_counted(tmp_path, log):
  root = classes(tmp_path, ["a", "b"])
  for name in ("a/x.heic", "a/y.heic", "b/notes.txt", "b/README", "b/.DS_Store"):
    (root / name).write_text("x")
  data.load(f"folder:{root}")
  assert "left out: 2 .heic, 1 without ending, 1 .txt" in log.text


def test_a_run_among_the_images_is_not_counted(tmp_path, log):
  root = classes(tmp_path, ["a", "b"])
  (root / "run" / "eval").mkdir(parents=True)
  for name in ("config.json", "metrics.jsonl", "eval/knn.jsonl"):
    (root / "run" / name).write_text("{}")
  assert data.load(f"folder:{root}").class_names == ("a", "b")
  assert ".json" not in log.text.replace("(config.json)", "")


def test_copies_are_used_and_reported(tmp_path, log):
  root = classes(tmp_path / "train", ["a", "b"]).parent
  classes(root / "test", ["a", "b"])
  for path in sorted((root / "test").rglob("*.png")):
    picture(path, 200 + int(path.stem) + 10 * (path.parent.name == "b"))
  shutil.copy(root / "train" / "a" / "0.png", root / "train" / "b" / "copy.png")
  shutil.copy(root / "train" / "a" / "1.png", root / "test" / "a" / "seen.png")
  source = data.load(f"folder:{root}")
  assert [len(source.splits[name]) for name in ("train", "test")] == [7, 7]
  assert "2 files are copies of others, such as" in log.text
  assert "1 test images are training images too" in log.text


def test_copies_across_a_set_that_was_divided_here(tmp_path, log):
  for i in range(10):
    shutil.copy(picture(tmp_path / "one.png", 5), tmp_path / f"{i}.png")
  data.load(f"folder:{tmp_path}")
  assert "10 files are copies of others" in log.text
  # One image alone: nothing can be tested but what was trained on.
  assert "2 test images are training images too" in log.text


def test_copies_of_an_image_are_on_one_side_of_a_divided_set(tmp_path):
  root = classes(tmp_path, [])
  for name in "ab":
    for i in range(40):
      picture(root / name / f"{i}.png", 40 * (name == "b") + i // 2)
  splits = data.load(f"folder:{root}").splits
  test, train = (set(splits[s].images.reshape(-1)) for s in ("test", "train"))
  assert not test & train
  assert 8 <= len(splits["test"]) <= 24  # of 80 files, 40 images


def test_copies_are_the_groups_of_equal_bytes(tmp_path):
  """Against a comparison of all pairs; some agree in size and last bytes alone."""
  random = np.random.default_rng(0)
  same_end = random.bytes(5000)
  contents = [b"a" + same_end, b"b" + same_end, b"a" + same_end, b"", b"", b"x", b"yy"]
  paths = []
  for i, content in enumerate(contents):
    (tmp_path / str(i)).write_bytes(content)
    paths.append(str(tmp_path / str(i)))
  groups = duplicates.copies([*paths, str(tmp_path / "gone")])
  expected = [
    [paths[j] for j in range(len(paths)) if contents[j] == content]
    for content in dict.fromkeys(contents)
  ]
  assert groups == [group for group in expected if len(group) > 1]
  assert duplicates.describe([], paths, tmp_path) == ""


def test_a_flat_folder_of_many_files_has_no_classes(tmp_path, monkeypatch, log):
  """Zero classes, and not one class an image."""
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 0)
  first = [picture(tmp_path / "store" / f"{i}.png", i) for i in range(40)]
  root = tmp_path / "flat"
  root.mkdir()
  for i in range(5_000):
    os.link(first[i % 40], root / f"{i}.png")
  source = data.load(f"folder:{root}")
  assert (source.num_classes, source.class_names) == (0, ())
  assert sum(map(len, source.splits.values())) == 5_000
  assert "4960 files are copies" in log.text
  batch = next(source.train_batches(0, 0, 8))
  assert batch["image"].shape == (8, 4, 4, 3) and (batch["label"] == -1).all()


def test_memory_does_not_grow_from_epoch_to_epoch():
  """20 epochs of 50,000 tiny images, after one to settle: below 5 % more."""
  images = np.zeros((50_000, 8, 8, 1), np.uint8)
  split = source_module.Split(images, np.full(50_000, -1, np.int32))
  source = source_module.Source("tiny", {"train": split})
  per_epoch = source.steps_per_epoch(1000)
  batches = source.train_batches(0, 0, 1000)

  def resident():
    with open("/proc/self/statm") as file:
      return int(file.read().split()[1])

  for _ in range(per_epoch):
    next(batches)
  before = resident()
  for _ in range(20 * per_epoch):
    next(batches)
  batches.close()
  assert resident() <= 1.05 * before
