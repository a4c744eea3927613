"""Image folders: layouts, classes, odd and damaged files."""

import logging as python_logging
import pathlib

import numpy as np
import pytest
from PIL import Image

from ncl_jax import data
from ncl_jax.data import decode, file_kinds, folder
from ncl_jax.data import source as source_module
from ncl_jax.errors import InputError

GREY = {"a": 40, "b": 120, "c": 200}


def picture(path, value, size=(6, 4)):
  """A picture of one colour, as a lossless file."""
  path.parent.mkdir(parents=True, exist_ok=True)
  Image.new("RGB", size, (value, value, value)).save(path)
  return path


def classes(root, counts):
  """Writes pictures whose colour tells their class."""
  for name, count in counts.items():
    (root / name).mkdir(parents=True, exist_ok=True)
    for i in range(count):
      picture(root / name / f"{i}.png", GREY[name])
  return root


def colours(split):
  return split.images[np.arange(len(split))][:, 0, 0, 0].tolist()


def assert_labels_match_colours(source):
  for split in source.splits.values():
    names = [source.class_names[k] for k in split.labels]
    assert colours(split) == [GREY[name] for name in names]


@pytest.fixture
def log(caplog):
  with caplog.at_level(python_logging.INFO, logger="absl"):
    yield caplog


@pytest.mark.parametrize("test_name", ["test", "val", "valid", "validation", "Testing"])
def test_train_and_test_folders(tmp_path, test_name):
  train_name = "Training" if test_name == "Testing" else "train"
  classes(tmp_path / train_name, {"b": 3, "a": 2})
  classes(tmp_path / test_name, {"a": 1, "b": 1})
  source = data.load(f"folder:{tmp_path}")
  assert source.class_names == ("a", "b")
  assert source.image_shape == (4, 4, 3)
  assert [source.num_examples(s) for s in ("train", "test")] == [5, 2]
  assert isinstance(source.splits["train"].images, np.ndarray)
  assert_labels_match_colours(source)


def test_class_folders_alone_are_split_by_class(tmp_path):
  classes(tmp_path, {"a": 10, "b": 20, "c": 5})
  source = data.load(f"folder:{tmp_path}")
  np.testing.assert_array_equal(np.bincount(source.splits["train"].labels), [8, 16, 4])
  np.testing.assert_array_equal(np.bincount(source.splits["test"].labels), [2, 4, 1])
  assert_labels_match_colours(source)
  again = data.load(f"folder:{tmp_path}")
  np.testing.assert_array_equal(
    source.splits["test"].labels, again.splits["test"].labels
  )


def test_files_that_come_and_go_hardly_move_others(tmp_path):
  """What was trained on yesterday is not tested on today."""
  classes(tmp_path, {"a": 30, "b": 60})

  def test_files():
    return set(folder.load(tmp_path).splits["test"].files.paths)

  before = test_files()
  assert len(before) == 18
  picture(tmp_path / "a" / "00.png", GREY["a"])
  picture(tmp_path / "b" / "000.png", GREY["b"])
  new = test_files() - before
  assert len([f for f in new if not f.endswith("00.png")]) <= 1
  (tmp_path / "b" / "7.png").unlink()
  (tmp_path / "a" / "3.png").unlink()
  assert len(test_files() - before) <= 3
  # Wherever the folder lies.
  tmp_path.rename(tmp_path.with_name("moved"))
  there = folder.load(tmp_path.with_name("moved")).splits["test"]
  again = {f.replace("/moved/", f"/{tmp_path.name}/") for f in there.files.paths}
  assert len(again - before) <= 3 and len(again & before) >= 15


def test_names_tell_training_sets_apart(tmp_path):
  classes(tmp_path, {"a": 10, "b": 10})
  names = [data.load(f"folder:{tmp_path}").names]
  (tmp_path / "a" / "0.png").rename(tmp_path / "a" / "zero.png")
  names.append(data.load(f"folder:{tmp_path}").names)
  names.append(data.load(f"folder:{tmp_path}").names)
  assert names[0] and names[0] != names[1] == names[2]


def test_names_and_pictures_go_with_the_images(tmp_path):
  """Through the split, a draw by class and the load into memory."""
  names = [f"a/🇩🇪 {i}.png" for i in range(9)] + [f"b/deep/{i}.png" for i in range(9)]
  for i, name in enumerate(names):
    picture(tmp_path / name, 10 * i, (80, 60))
  source = data.load(f"folder:{tmp_path}", image_size=8, train_examples=6)
  assert source.title == tmp_path.name and str(tmp_path) not in "".join(source.notes)
  for split in source.splits.values():
    values = [10 * names.index(name) for name in split.files.names()]
    assert split.images[:, 0, 0, 0].tolist() == values
    large = split.pictures(96)
    assert large.shape == (len(split), 60, 60, 3)  # no more than the files have
    assert large[np.arange(len(split))][:, 0, 0, 0].tolist() == values
    assert split.pictures(8) is split.images


@pytest.mark.parametrize("under", ["", "train"])
def test_flat_folder_is_unlabelled(tmp_path, under):
  for i in range(20):
    picture(tmp_path / under / f"{i}.png", i)
  source = data.load(f"folder:{tmp_path}")
  assert (source.num_classes, source.class_names) == (0, ())
  assert [source.num_examples(s) for s in ("train", "test")] == [16, 4]
  assert sorted(sum(map(colours, source.splits.values()), [])) == list(range(20))
  assert all((split.labels == -1).all() for split in source.splits.values())
  assert data.load(f"folder:{tmp_path}", train_examples=3).num_examples("train") == 3


def test_test_images_without_classes_are_not_used_beside_classes(tmp_path):
  classes(tmp_path / "train", {"a": 2, "b": 2})
  picture(tmp_path / "test" / "0.png", 7)
  classes(tmp_path / "val", {"a": 1, "b": 3})
  source = data.load(f"folder:{tmp_path}")
  assert source.splits["test"].labels.tolist() == [0, 1, 1, 1]


def test_a_class_missing_in_one_split_keeps_labels_aligned(tmp_path, log):
  classes(tmp_path / "train", {"a": 0, "b": 2, "c": 2})
  classes(tmp_path / "test", {"a": 2, "c": 1})
  source = data.load(f"folder:{tmp_path}")
  assert source.class_names == ("a", "b", "c")
  assert_labels_match_colours(source)
  assert "no train images of a" in log.text
  assert "no test images of b" in log.text
  assert "no images to use in train/a" in log.text


def test_hidden_and_foreign_things_are_left_out(tmp_path, log):
  classes(tmp_path, {"a": 3, "b": 3, "c": 0})
  for name in (".ipynb_checkpoints/x.png", "a/.ipynb_checkpoints/x.png"):
    picture(tmp_path / name, 1)
  (tmp_path / "a" / ".DS_Store").write_bytes(b"\0")
  (tmp_path / "a" / "._0.png").write_bytes(b"\0")
  (tmp_path / "a" / "notes.txt").write_text("no picture")
  picture(tmp_path / "preview.png", 1)
  source = data.load(f"folder:{tmp_path}")
  assert source.class_names == ("a", "b")
  assert sum(map(len, source.splits.values())) == 6
  assert_labels_match_colours(source)
  assert "no images to use in c" in log.text
  assert "1 images outside the class folders left out" in log.text


@pytest.mark.parametrize("run", ["run/config.json", "comparison/cl/0/config.json"])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_run_inside_the_data_is_no_class(tmp_path, run, labelled):
  if labelled:
    classes(tmp_path, {"a": 3, "b": 3})
  else:
    for i in range(6):
      picture(tmp_path / f"{i}.png", i)
  before = data.load(f"folder:{tmp_path}")
  (tmp_path / run).parent.mkdir(parents=True)
  (tmp_path / run).write_text("{}")
  picture(tmp_path / pathlib.Path(run).parts[0] / "report" / "figures" / "f.png", 9)
  after = data.load(f"folder:{tmp_path}")
  assert after.class_names == before.class_names
  for name, split in before.splits.items():
    assert colours(split) == colours(after.splits[name])


def test_images_deeper_below_a_class_and_a_class_that_is_a_link(tmp_path):
  classes(tmp_path / "elsewhere", {"b": 4})
  picture(tmp_path / "set" / "a" / "images" / "0.png", GREY["a"])
  (tmp_path / "set" / "b").symlink_to(tmp_path / "elsewhere" / "b")
  source = data.load(f"folder:{tmp_path / 'set'}")
  assert source.class_names == ("a", "b")
  assert_labels_match_colours(source)


def test_one_class_is_suspicious(tmp_path, log):
  classes(tmp_path / "flowers", {"a": 2, "b": 2})
  assert data.load(f"folder:{tmp_path}").class_names == ("flowers",)
  assert "one class only, 'flowers'" in log.text


@pytest.mark.parametrize("name", ["with space", "ünïcödé 画像", "a:b"])
def test_paths_home_relative_and_strange(tmp_path, monkeypatch, name):
  classes(tmp_path / name, {"a": 3, "b": 3})
  monkeypatch.setenv("HOME", str(tmp_path))
  monkeypatch.chdir(tmp_path)
  for spec in (f"folder:~/{name}", f"folder:{name}", f"folder:./{name}/"):
    assert_labels_match_colours(data.load(spec))


ENDINGS = [
  ".apng",
  ".avif",
  ".bmp",
  ".dib",
  ".gif",
  ".ico",
  ".jfif",
  ".jp2",
  ".jpe",
  ".jpeg",
  ".jpg",
  ".png",
  ".pnm",
  ".ppm",
  ".qoi",
  ".tga",
  ".tif",
  ".tiff",
  ".webp",
]


def test_every_ending_that_pillow_writes_and_reads_in_any_case(tmp_path):
  assert set(ENDINGS) <= file_kinds.extensions()
  assert not {".eps", ".h5", ".mpg", ".pdf"} & file_kinds.extensions()
  for i, end in enumerate(ENDINGS):
    picture(tmp_path / "a" / f"{i}{end}", 90, (16, 16))
    picture(tmp_path / "a" / f"{i}{end}".upper(), 90, (16, 16))
  source = data.load(f"folder:{tmp_path}")
  found = sum(map(colours, source.splits.values()), [])
  assert len(found) == 2 * len(ENDINGS)
  assert all(abs(colour - 90) <= 2 for colour in found)


# One picture, left half red and right half blue, in every kind of file.
RED, BLUE = (255, 0, 0), (0, 0, 255)


def halves(size=(8, 8)):
  image = Image.new("RGB", size, RED)
  image.paste(BLUE, (size[0] // 2, 0, *size))
  return image


def exif(orientation):
  tags = Image.Exif()
  tags[0x0112] = orientation
  return {"exif": tags}


KINDS = {
  "plain.png": (halves(), {}),
  "palette.png": (halves().convert("P"), {}),
  "rgba.png": (halves().convert("RGBA"), {}),
  "cmyk.jpg": (halves().convert("CMYK"), {"quality": 100}),
  "cmyk.tif": (halves().convert("CMYK"), {}),
  "animated.gif": (
    halves(),
    {"save_all": True, "append_images": [Image.new("RGB", (8, 8), (0, 255, 0))]},
  ),
  "wide.png": (halves((40, 8)), {}),
  "png_named.jpg": (halves(), {"format": "PNG"}),
  "turned_6.jpg": (halves().transpose(Image.Transpose.ROTATE_90), exif(6)),
  "turned_8.png": (halves().transpose(Image.Transpose.ROTATE_270), exif(8)),
  "turned_3.webp": (
    halves().transpose(Image.Transpose.ROTATE_180),
    {**exif(3), "lossless": True},
  ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_colour_files_become_upright_rgb(tmp_path, kind):
  image, options = KINDS[kind]
  image.save(tmp_path / kind, **options)
  pixels = decode.read(str(tmp_path / kind), 8)
  assert (pixels.shape, pixels.dtype) == ((8, 8, 3), np.uint8)
  for columns, colour in ((slice(0, 3), RED), (slice(5, 8), BLUE)):
    off = np.abs(pixels[:, columns].astype(int) - np.array(colour)[None, None])
    assert off.max() <= (40 if kind.endswith(".jpg") else 1), kind


@pytest.mark.parametrize(
  ("name", "image"),
  [
    ("grey.png", Image.new("L", (5, 7), 99)),
    ("grey_alpha.png", Image.new("LA", (5, 7), (99, 255))),
    ("grey.jpg", Image.new("L", (5, 7), 99)),
    ("16_bit.png", Image.fromarray(np.full((7, 5), 99 * 257, np.uint16))),
    ("16_bit.tif", Image.fromarray(np.full((7, 5), 99 * 257, np.uint16))),
    ("16_bit.ppm", Image.fromarray(np.full((7, 5), 99 * 257, np.uint16))),
    ("1x1.png", Image.new("RGB", (1, 1), (99, 99, 99))),
    ("1x4000.png", Image.new("RGB", (1, 4000), (99, 99, 99))),
    ("4000x1.png", Image.new("RGB", (4000, 1), (99, 99, 99))),
  ],
)
def test_grey_deep_tiny_and_long_files(tmp_path, name, image):
  image.save(tmp_path / name)
  pixels = decode.read(str(tmp_path / name), 6)
  assert pixels.shape == (6, 6, 3)
  assert np.abs(pixels.astype(int) - 99).max() <= 1


def test_black_and_white(tmp_path):
  Image.new("1", (4, 4), 1).save(tmp_path / "x.png")
  assert (decode.read(str(tmp_path / "x.png"), 4) == 255).all()


def test_scaling_is_the_shorter_side_then_the_centre(tmp_path):
  """Against Pillow's resize and crop, away from the cut edges."""
  random = np.random.default_rng(0)
  smooth = Image.fromarray(random.integers(0, 256, (5, 9, 3), dtype=np.uint8))
  image = smooth.resize((90, 50), Image.Resampling.BICUBIC)
  image.save(tmp_path / "x.png")
  expected = image.resize((36, 20), Image.Resampling.BICUBIC).crop((8, 0, 28, 20))
  off = decode.read(str(tmp_path / "x.png"), 20).astype(int) - np.asarray(expected)
  assert np.abs(off[:, 2:-2]).max() <= 1
  many = decode.square(np.asarray(image)[None], 20)
  np.testing.assert_array_equal(many[0], decode.read(str(tmp_path / "x.png"), 20))


def test_size_without_a_wish_is_the_median_shorter_side(tmp_path, monkeypatch):
  for i, size in enumerate([(8, 30), (10, 30), (30, 90), (12, 12), (300, 400)]):
    picture(tmp_path / "train" / f"{i}.png", 5, size)
    picture(tmp_path / "test" / f"{i}.png", 5, size)
  assert data.load(f"folder:{tmp_path}").image_shape == (12, 12, 3)
  assert data.load(f"folder:{tmp_path}", image_size=7).image_shape == (7, 7, 3)
  monkeypatch.setattr(decode, "LARGEST_DEFAULT_SIDE", 11)
  assert data.load(f"folder:{tmp_path}").image_shape == (11, 11, 3)


def damaged(root, kind):
  """One damaged file among good ones; its path."""
  classes(root, {"a": 4, "b": 6})
  path = root / "a" / "bad.jpg"
  if kind == "truncated":
    halves((64, 64)).save(path)
    path.write_bytes(path.read_bytes()[:400])
  elif kind == "empty":
    path.write_bytes(b"")
  elif kind == "text":
    path.write_text("this is not a picture")
  elif kind == "float":
    path = path.with_suffix(".tif")
    Image.new("F", (4, 4), 1.5).save(path)
  elif kind == "broken":
    path = path.with_suffix(".png")
    noise = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    head, _, tail = path.read_bytes().rpartition(b"IDAT")
    path.write_bytes(head + b"\xe7DAT" + tail)
  return path


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", ["truncated", "empty", "text", "float", "broken"])
def test_damaged_files(tmp_path, kind, lazy, monkeypatch, log):
  if lazy:
    monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 0)
  path = damaged(tmp_path, kind)

  with pytest.raises(InputError, match="on_bad_image") as error:
    source = data.load(f"folder:{tmp_path}")
    for split in source.splits:
      list(source.eval_batches(split, 4))
  assert str(path) in str(error.value)

  source = data.load(f"folder:{tmp_path}", on_bad_image="skip")
  assert isinstance(source.splits["train"].images, np.ndarray) != lazy
  assert sum(map(len, source.splits.values())) == 10
  assert_labels_match_colours(source)
  assert "1 unreadable images left out" in log.text and str(path) in log.text


def test_large_folders_are_decoded_by_batch(tmp_path, monkeypatch):
  classes(tmp_path / "train", {"a": 5, "b": 4, "c": 4})
  classes(tmp_path / "test", {"a": 1, "b": 4})
  whole = data.load(f"folder:{tmp_path}")
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 0)
  lazy = data.load(f"folder:{tmp_path}")
  assert not isinstance(lazy.splits["train"].images, np.ndarray)
  assert lazy.image_shape == whole.image_shape
  for make in (
    lambda s: [x for x, _ in zip(s.train_batches(0, 0, 4), range(5), strict=False)],
    lambda s: list(s.eval_batches("test", 3)),
  ):
    for a, b in zip(make(whole), make(lazy), strict=True):
      for key in a:
        np.testing.assert_array_equal(a[key], b[key], strict=True)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda root: None, "no images in ROOT"),
    (lambda root: (root / "a").mkdir(), "no images in ROOT"),
    (lambda root: classes(root / "val", {"a": 2}), "folders val but none of train"),
    (lambda root: classes(root / "train", {"a": 0}), "no images in ROOT"),
    (lambda root: picture(root / "0.png", 1), "1 image; at least 2"),
    (lambda root: root.rmdir(), "no folder ROOT"),
  ],
)
def test_folders_without_use(tmp_path, make, message):
  root = tmp_path / "data"
  root.mkdir()
  make(root)
  with pytest.raises(InputError, match=message.replace("ROOT", str(root))):
    data.load(f"folder:{root}")


def test_nothing_but_damaged_files(tmp_path):
  for i in range(3):
    (tmp_path / f"{i}.png").write_text("text")
  with pytest.raises(InputError, match=r"0\.png"):
    data.load(f"folder:{tmp_path}")
  with pytest.raises(InputError, match="no images"):
    data.load(f"folder:{tmp_path}", on_bad_image="skip")
  with pytest.raises(InputError, match="'drop'; allowed: stop, skip"):
    folder.load(tmp_path, on_bad_image="drop")
