"""Depth and size of images: the same rule for files and arrays, and said aloud."""

import pathlib

import numpy as np
import pytest
from absl import logging
from PIL import Image

from ncl_jax import data
from ncl_jax.data import corruptions, decode, depth
from ncl_jax.errors import InputError
from ncl_jax.host import npz
from ncl_jax.report.explorer import thumbnails

RANDOM = np.random.default_rng(0)


@pytest.fixture
def log(caplog):
  logging.use_absl_handler()
  with caplog.at_level("INFO", logger="absl"):
    yield caplog


def deep(bits, dtype=np.uint16, count=10):
  """Images whose brightest pixel is the largest number of so many bits."""
  pixels = RANDOM.integers(0, 2**bits, (count, 8, 8))
  pixels[0, 0, 0] = 2**bits - 1
  return pixels.astype(dtype)


def as_files(folder, pixels, end="tif"):
  folder.mkdir()
  for i, image in enumerate(pixels):
    Image.fromarray(image).save(folder / f"{i:02d}.{end}")
  return f"folder:{folder}"


def as_arrays(folder, pixels):
  folder.mkdir()
  np.savez(folder / "set.npz", train_images=pixels[:8], test_images=pixels[8:])
  return f"arrays:{folder}/set.npz"


def all_images(source):
  splits = source.splits.values()
  return np.concatenate([s.images[np.arange(len(s))][..., 0] for s in splits])


def in_order(images):
  return np.array(sorted(image.tobytes() for image in images))


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
@pytest.mark.parametrize("write", [as_files, as_arrays])
def test_sixteen_bit_images_keep_the_depth_that_they_use(bits, write, tmp_path, log):
  """Against v 255 / (2^bits - 1): a shift by 8 made 16 levels of 12 bits."""
  pixels = deep(bits)
  source = data.load(write(tmp_path / "set", pixels))
  expected = np.round(pixels * (255 / (2**bits - 1))).astype(np.uint8)
  np.testing.assert_array_equal(in_order(all_images(source)), in_order(expected))
  assert len(np.unique(all_images(source))) > 200
  assert (f"up to {2**bits - 1}, taken as {bits} bits" in log.text) == (bits > 8)


def test_files_and_arrays_give_the_same_bytes(tmp_path):
  pixels = deep(12)
  found = [data.load(w(tmp_path / w.__name__, pixels)) for w in (as_files, as_arrays)]
  np.testing.assert_array_equal(*(in_order(all_images(source)) for source in found))


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.int32, np.int64, np.uint64])
def test_the_type_does_not_matter(dtype, tmp_path):
  pixels = deep(12)
  source = data.load(as_arrays(tmp_path / "set", pixels.astype(dtype)))
  expected = np.round(pixels * (255 / 4095)).astype(np.uint8)
  np.testing.assert_array_equal(in_order(all_images(source)), in_order(expected))


def test_both_parts_of_a_set_have_one_depth(tmp_path):
  pixels = deep(10)
  pixels[-1] = 4095  # in the test part alone
  source = data.load(as_arrays(tmp_path / "set", pixels))
  assert source.split("train").images.max() == round(1023 * 255 / 4095)
  assert source.split("test").images.max() == 255


def test_booleans_floats_and_int8(tmp_path):
  on = RANDOM.random((10, 8, 8)) < 0.5
  source = data.load(as_arrays(tmp_path / "bool", on))
  np.testing.assert_array_equal(
    in_order(all_images(source)), in_order((on * 255).astype(np.uint8))
  )
  share = RANDOM.random((10, 8, 8)).astype(np.float32)
  share[0, 0, 0] = 1
  for write in (as_files, as_arrays):
    source = data.load(write(tmp_path / f"float-{write.__name__}", share))
    expected = np.round(share * 255).astype(np.uint8)
    np.testing.assert_array_equal(in_order(all_images(source)), in_order(expected))
  small = RANDOM.integers(0, 128, (10, 8, 8)).astype(np.int8)
  source = data.load(as_arrays(tmp_path / "int8", small))
  np.testing.assert_array_equal(
    in_order(all_images(source)), in_order(small.astype(np.uint8))
  )


def test_half_precision_is_rounded_once():
  values = np.arange(256) / 255
  found = depth.to_bytes(values.astype(np.float16), 255)
  assert np.abs(found.astype(int) - np.arange(256)).max() == 0


@pytest.mark.parametrize(
  ("pixels", "says"),
  [
    (np.full((10, 8, 8), -1024, np.int32), "int32 from -1024 to -1024.*subtract"),
    (np.full((10, 8, 8), 70_000, np.int32), "from 70000 to 70000; allowed: .*65535"),
    (np.full((10, 8, 8), 200, np.float32), "divide them by 255"),
    (np.full((10, 8, 8), np.nan, np.float32), "[0-9]+ values that are NaN"),
  ],
)
@pytest.mark.parametrize("write", [as_files, as_arrays])
def test_what_has_no_depth_is_refused_with_numbers(write, pixels, says, tmp_path):
  with pytest.raises(InputError, match=says) as error:
    data.load(write(tmp_path / "set", pixels))
  assert "set" in str(error.value)


def test_a_brighter_file_than_those_looked_at_is_told(tmp_path, monkeypatch, log):
  pixels = deep(12)
  pixels[5, 0, 0] = 9000
  monkeypatch.setattr(decode, "SAMPLE", 2)
  source = data.load(as_files(tmp_path / "set", pixels))
  assert all_images(source).max() == 255
  assert "05.tif: 9000 is above 4095" in log.text


def test_images_of_few_levels_are_told(tmp_path, log):
  data.load(as_arrays(tmp_path / "set", deep(4, np.uint8)))
  assert "the brightest of 8 training images has the value 15 of 255" in log.text


@pytest.mark.parametrize("write", [as_files, as_arrays])
def test_images_all_alike_are_told(write, tmp_path, log):
  data.load(write(tmp_path / "set", np.full((10, 8, 8), 77, np.uint8)))
  assert "8 of 8 training images looked at are the same" in log.text


def test_different_images_are_not_called_alike_or_dark(tmp_path, log):
  data.load(as_arrays(tmp_path / "set", deep(8, np.uint8)))
  assert "the same" not in log.text and "brightest" not in log.text


def test_a_large_jpeg_is_decoded_reduced_and_a_large_png_refused(tmp_path, monkeypatch):
  """Pillow refuses beyond twice its limit, reduced or not."""
  image = Image.new("RGB", (640, 480), (200, 10, 10))
  image.save(tmp_path / "large.jpg")
  image.save(tmp_path / "large.png")
  monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
  monkeypatch.setattr(decode, "LARGEST_PIXELS", 20_000)
  pixels = decode.read(str(tmp_path / "large.jpg"), 32)
  assert np.abs(pixels.astype(int) - (200, 10, 10)).max() <= 4
  with pytest.raises(ValueError, match="640 x 480 = 0 million pixels; allowed: .*JPEG"):
    decode.read(str(tmp_path / "large.png"), 32)
  assert Image.MAX_IMAGE_PIXELS == 1000
  monkeypatch.setattr(decode, "LARGEST_PIXELS", 640 * 480)
  assert decode.read(str(tmp_path / "large.png"), 32).shape == (32, 32, 3)


FOREIGN = {
  "heic": (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC picture.*convert it"),
  "html": (b"<!DOCTYPE html><html>", "a web page"),
  "lfs": (
    b"version https://git-lfs.github.com/spec/v1",
    "a pointer of Git LFS.*pull",
  ),
  "svg": (b"<svg xmlns=", "an SVG drawing"),
  "pdf": (b"%PDF-1.7", "a PDF"),
  "empty": (b"", "an empty file"),
  "text": (b"hello", "not an image that Pillow knows"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_image_is_called_by_its_name(kind, tmp_path):
  content, says = FOREIGN[kind]
  Image.new("RGB", (4, 4)).save(tmp_path / "a.jpg")
  (tmp_path / "b.jpg").write_bytes(content)
  with pytest.raises(InputError, match=f"cannot read the image .*b.jpg: {says}"):
    data.load(f"folder:{tmp_path}", image_size=4)


def test_pictures_that_pillow_lacks_are_counted_with_the_remedy(tmp_path, log):
  as_files(tmp_path / "a", deep(8, np.uint8), "png")
  (tmp_path / "a" / "x.heic").write_bytes(b"x")
  (tmp_path / "a" / "x.SVG").write_bytes(b"x")
  data.load(f"folder:{tmp_path}")
  assert "each .heic file is a HEIC picture" in log.text
  assert "each .svg file is an SVG drawing" in log.text


def test_images_beyond_the_memory_are_refused_before_they_are_made(
  tmp_path, monkeypatch
):
  images = deep(8, np.uint8, 10)
  np.savez(tmp_path / "set.npz", images=images)
  monkeypatch.setattr(npz, "memory", lambda: 10 * 32 * 32 * 3)
  assert data.load(f"arrays:{tmp_path}/set.npz", image_size=16)
  with pytest.raises(InputError, match="images of 64 pixels.*lower data.image_size"):
    data.load(f"arrays:{tmp_path}/set.npz", image_size=64)


@pytest.mark.parametrize("size", [4097, 10**9])
def test_an_absurd_image_size_is_refused(size):
  with pytest.raises(InputError, match=f"image size {size}; allowed: 1 to 4096"):
    data.load("digits", image_size=size)


@pytest.mark.parametrize("form", ["folder", "idx"])
def test_a_file_where_a_folder_is_wanted(form, tmp_path):
  (tmp_path / "x.zip").write_bytes(b"PK")
  with pytest.raises(InputError, match=f"{form}:.*x.zip is a file; allowed: "):
    data.load(f"{form}:{tmp_path}/x.zip")


@pytest.mark.parametrize("form", ["arrays", "pairs"])
def test_a_folder_where_a_file_is_wanted(form, tmp_path):
  with pytest.raises(InputError, match="is a folder; allowed: an .npz file"):
    data.load(f"{form}:{tmp_path}")


def test_names_that_differ_in_capitals_alone(tmp_path, log):
  if pathlib.Path(str(tmp_path).upper()).exists():
    pytest.skip("file names have no capitals here")
  for name in ("Cat", "cat", "dog"):
    as_files(tmp_path / name, deep(8, np.uint8, 3), "png")
  data.load(f"folder:{tmp_path}")
  assert "the classes Cat and cat differ in capitals alone" in log.text
  (tmp_path / "train").mkdir()
  (tmp_path / "Train").mkdir()
  with pytest.raises(InputError, match="the folders Train and train; allowed: one"):
    data.load(f"folder:{tmp_path}")


@pytest.mark.parametrize("form", ["arrays", "folder"])
def test_test_images_of_classes_without_training_images_are_counted(
  form, tmp_path, log
):
  images = deep(8, np.uint8, 12)
  labels = np.array([0, 1, 0, 1, 0, 1, 2, 2, 0, 1, 3, 2])
  if form == "arrays":
    parts = {"train_images": images[:6], "train_labels": labels[:6]}
    parts |= {"test_images": images[6:], "test_labels": labels[6:]}
    np.savez(tmp_path / "set.npz", **parts)
    spec = f"arrays:{tmp_path}/set.npz"
  else:
    for i, (image, label) in enumerate(zip(images, labels, strict=True)):
      place = tmp_path / "set" / ("train" if i < 6 else "test") / str(label)
      place.mkdir(parents=True, exist_ok=True)
      Image.fromarray(image).save(place / f"{i}.png")
    spec = f"folder:{tmp_path}/set"
  source = data.load(spec)
  assert source.unseen() == (4, [2, 3])
  assert (
    "4 of 6 labelled test images are of 2 classes without a training image (2, 3)"
    in log.text
  )


def test_pixels_that_are_no_bytes_are_refused_where_bytes_are_wanted():
  """Floats in 0..1 passed for images that are black."""
  image = np.full((4, 4, 1), 0.5)
  with pytest.raises(InputError, match=r"image is float64: .*255 \* images"):
    corruptions.corrupt(image, "brightness", 1)
  with pytest.raises(InputError, match="images is float64"):
    thumbnails.sprite(image[None])
