"""The sources digits, arrays and idx, and the choice among sources."""

import gzip
import struct
import subprocess
import sys

import numpy as np
import pytest
import sklearn.datasets

from ncl_jax import data
from ncl_jax.data import idx
from ncl_jax.errors import InputError

RANDOM = np.random.default_rng(0)
TRAIN = RANDOM.integers(0, 256, (20, 5, 6), dtype=np.uint8)
TEST = RANDOM.integers(0, 256, (6, 5, 6), dtype=np.uint8)
TRAIN_LABELS = np.arange(20) % 4
TEST_LABELS = np.arange(6) % 4


def test_digits_are_scikit_learns():
  source = data.load("digits")
  images, labels = sklearn.datasets.load_digits(return_X_y=True)
  assert [source.num_examples(s) for s in ("train", "test")] == [1438, 359]
  assert source.image_shape == (8, 8, 1)
  assert source.class_names == tuple("0123456789")
  for split in source.splits.values():
    assert split.images.max() == 255 and split.images.dtype == np.uint8
    share = np.bincount(split.labels) / len(split)
    np.testing.assert_allclose(share, np.bincount(labels) / 1797, atol=2e-3)

  def multiset(x, y):
    return sorted((bytes(row), int(label)) for row, label in zip(x, y, strict=True))

  ours = [
    (np.round(image.astype(float) / 255 * 16).astype(np.uint8).ravel(), label)
    for split in source.splits.values()
    for image, label in zip(split.images, split.labels, strict=True)
  ]
  assert multiset(*zip(*ours, strict=True)) == multiset(images.astype(np.uint8), labels)


def test_digits_enlarged():
  source = data.load("digits", image_size=16)
  assert source.image_shape == (16, 16, 1)
  small = data.load("digits").splits["test"].images.astype(float)
  large = source.splits["test"].images.astype(float)
  assert np.abs(small.mean((1, 2, 3)) - large.mean((1, 2, 3))).max() < 6


def test_train_examples_are_the_same_every_time():
  source = data.load("digits", train_examples=100)
  again = data.load("digits", train_examples=100)
  assert [source.num_examples(s) for s in ("train", "test")] == [100, 359]
  np.testing.assert_array_equal(
    source.splits["train"].images, again.splits["train"].images
  )
  assert np.bincount(source.splits["train"].labels).min() >= 9
  with pytest.raises(InputError, match="1439 train examples.* 1 to 1438"):
    data.load("digits", train_examples=1439)


def save(tmp_path, **arrays):
  np.savez(tmp_path / "set.npz", **arrays)
  return f"arrays:{tmp_path / 'set.npz'}"


@pytest.mark.parametrize(
  "names",
  [
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
  ],
)
@pytest.mark.parametrize("column", [False, True])
def test_arrays(tmp_path, names, column):
  labels = [
    x[:, None] if column else x.astype(np.uint8) for x in (TRAIN_LABELS, TEST_LABELS)
  ]
  values = (TRAIN, labels[0], TEST, labels[1])
  source = data.load(save(tmp_path, **dict(zip(names, values, strict=True))))
  assert source.class_names == ("0", "1", "2", "3")
  for name, images, labels in (
    ("train", TRAIN, TRAIN_LABELS),
    ("test", TEST, TEST_LABELS),
  ):
    np.testing.assert_array_equal(source.splits[name].images, images[..., None])
    np.testing.assert_array_equal(
      source.splits[name].labels, labels.astype(np.int32), strict=True
    )


@pytest.mark.parametrize(
  ("convert", "tolerance"),
  [
    (lambda x: x.astype(np.int64), 0),
    (lambda x: (x / 255).astype(np.float32), 0),
    (lambda x: np.stack([x] * 3, -1), 0),
    (lambda x: x[..., None] / 255, 0),
  ],
)
def test_array_images_in_other_forms(tmp_path, convert, tolerance):
  spec = save(tmp_path, x_train=convert(TRAIN), x_test=convert(TEST))
  source = data.load(spec)
  assert source.splits["train"].images.dtype == np.uint8
  np.testing.assert_array_equal(source.splits["train"].images[..., 0], TRAIN)
  assert source.num_classes == 0
  assert (source.splits["train"].labels == -1).all()


@pytest.mark.parametrize("labelled", [True, False])
def test_undivided_arrays_are_split_by_class(tmp_path, labelled):
  labels = {"labels": TRAIN_LABELS} if labelled else {}
  source = data.load(save(tmp_path, images=TRAIN, **labels))
  assert [source.num_examples(s) for s in ("train", "test")] == [16, 4]
  assert source.num_classes == (4 if labelled else 0)
  if labelled:
    np.testing.assert_array_equal(np.bincount(source.splits["test"].labels), [1] * 4)
  for split in source.splits.values():
    for image, label in zip(split.images, split.labels, strict=True):
      row = np.flatnonzero((image[..., 0] == TRAIN).all((1, 2)))
      assert len(row) == 1 and label == (TRAIN_LABELS[row[0]] if labelled else -1)


def test_array_sizes_may_differ_if_scaled(tmp_path):
  spec = save(tmp_path, x_train=TRAIN, x_test=TEST[:, :, :5])
  with pytest.raises(InputError, match="image size"):
    data.load(spec)
  assert data.load(spec, image_size=4).image_shape == (4, 4, 1)


@pytest.mark.parametrize(
  ("arrays", "message"),
  [
    ({"pictures": TRAIN}, "holds the arrays pictures; allowed: train_images"),
    ({}, r"holds the arrays \(none\)"),
    ({"x_train": TRAIN}, "holds the arrays x_train"),
    ({"images": TRAIN[0]}, r"images .* shape \(5, 6\)"),
    ({"images": TRAIN[:0]}, r"shape \(0, 5, 6, 1\)"),
    ({"images": np.zeros((9, 3, 5, 5), np.uint8)}, "channels to the end"),
    ({"images": TRAIN * 1j}, "dtype complex128"),
    ({"images": TRAIN.astype(float)}, r"from 0\.0 to 255\.0; allowed"),
    ({"images": TRAIN * np.nan}, "600 values that are NaN or infinite"),
    ({"images": TRAIN.astype(int) - 1}, "int64 from -1 to 25"),
    ({"images": TRAIN, "labels": TRAIN_LABELS + 0.5}, "labels .*float64"),
    ({"images": TRAIN, "labels": np.full(20, np.inf)}, "labels .*float64"),
    ({"images": TRAIN, "labels": np.full(20, 1e300)}, "to 4611686018427387904"),
    ({"images": TRAIN, "label": TRAIN_LABELS}, "has no labels but label"),
    ({"imgs": TRAIN, "labels": TRAIN_LABELS}, "holds the arrays imgs, labels"),
    ({"images": TRAIN, "labels": np.eye(20, dtype=int)}, r"labels .* \(20, 20\)"),
    (
      {"images": TRAIN, "labels": TRAIN_LABELS[1:]},
      "20 examples but 19 labels in labels",
    ),
    ({"images": TRAIN, "labels": TRAIN_LABELS - 2}, "from -2 to 1"),
    (
      {"images": TRAIN, "labels": TRAIN_LABELS + 10**6},
      "label 1000003 with 20",
    ),
    ({"images": np.array([None])}, "set.npz cannot be read: it holds Python objects"),
    ({"images": TRAIN.astype(float), "labels": TRAIN_LABELS}, "divide them by 255"),
  ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, message):
  with pytest.raises(InputError, match=message):
    data.load(save(tmp_path, **arrays))


@pytest.mark.parametrize("kind", ["U", "S"])
def test_labels_that_are_names(tmp_path, kind):
  names = np.array(["10", "2", "a", ""])[TRAIN_LABELS].astype(kind)
  test = np.array(["2", "new", "10", "a"])[TEST_LABELS].astype(kind)
  spec = save(tmp_path, x_train=TRAIN, y_train=names, x_test=TEST, y_test=test[:, None])
  source = data.load(spec)
  assert source.class_names == ("2", "10", "a", "new")
  np.testing.assert_array_equal(
    source.splits["train"].labels, np.array([1, 0, 2, -1])[TRAIN_LABELS]
  )
  np.testing.assert_array_equal(
    source.splits["test"].labels, np.array([0, 3, 1, 2])[TEST_LABELS]
  )


@pytest.mark.parametrize(
  ("train", "test", "message"),
  [
    (TRAIN_LABELS, TEST_LABELS.astype("U"), "y_test holds names and y_train int64"),
    (np.array([b"\xff"] * 20), np.array([b"a"] * 6), "not UTF-8"),
  ],
)
def test_names_that_cannot_be_classes(tmp_path, train, test, message):
  spec = save(tmp_path, x_train=TRAIN, y_train=train, x_test=TEST, y_test=test)
  with pytest.raises(InputError, match=message):
    data.load(spec)


def test_names_of_images_are_no_classes(tmp_path):
  images = np.zeros((1200, 1, 1), np.uint8)
  names = np.array([f"{i}.jpg" for i in range(1200)])
  with pytest.raises(InputError, match=r"1200 different names in labels.*'0\.jpg'"):
    data.load(save(tmp_path, images=images, labels=names))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8])
def test_gaps_in_labels_are_reported_and_minus_one_is_unlabelled(
  tmp_path, dtype, caplog
):
  labels = np.array([0, 3, -1, 5])[TRAIN_LABELS].astype(dtype)
  with caplog.at_level("WARNING", logger="absl"):
    source = data.load(save(tmp_path, images=TRAIN, labels=labels))
  assert "no image has the label 1, 2, 4" in caplog.text
  assert source.num_classes == 6
  found = np.concatenate([split.labels for split in source.splits.values()])
  np.testing.assert_array_equal(np.sort(found), np.sort(labels.astype(int)))


def test_array_files_that_are_none(tmp_path):
  spec = save(tmp_path, images=TRAIN)
  path = tmp_path / "set.npz"
  path.write_bytes(path.read_bytes()[:300])
  with pytest.raises(InputError, match=r"set\.npz is not an \.npz"):
    data.load(spec)
  np.save(tmp_path / "one.npy", TRAIN)
  with pytest.raises(InputError, match=r"one\.npy is not an \.npz"):
    data.load(f"arrays:{tmp_path / 'one.npy'}")
  with pytest.raises(InputError, match=r"no file .*gone\.npz"):
    data.load(f"arrays:{tmp_path / 'gone.npz'}")


def idx_bytes(values):
  header = struct.pack(">BBBB", 0, 0, 8, values.ndim)
  return header + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_idx(folder, dot="-", end="", open_file=open):
  folder.mkdir(exist_ok=True)
  for stem, values in (
    (f"train-images{dot}idx3-ubyte", TRAIN),
    (f"train-labels{dot}idx1-ubyte", TRAIN_LABELS.astype(np.uint8)),
    (f"t10k-images{dot}idx3-ubyte", TEST),
    (f"t10k-labels{dot}idx1-ubyte", TEST_LABELS.astype(np.uint8)),
  ):
    with open_file(folder / f"{stem}{end}", "wb") as file:
      file.write(idx_bytes(values))
  return folder


@pytest.mark.parametrize("dot", ["-", "."])
@pytest.mark.parametrize(
  ("end", "open_file"), [("", open), (".gz", gzip.open), (".gz", open)]
)
@pytest.mark.parametrize("name", ["mnist", "Fashion-MNIST"])
def test_idx(tmp_path, name, dot, end, open_file):
  folder = write_idx(tmp_path / name, dot, end, open_file)
  source = data.load(f"idx:{folder}")
  first = "0" if name == "mnist" else "T-shirt/top"
  assert source.class_names[0] == first
  assert source.num_classes == (4 if name == "mnist" else 10)
  assert source.image_shape == (5, 6, 1)
  np.testing.assert_array_equal(source.splits["train"].images[..., 0], TRAIN)
  np.testing.assert_array_equal(source.splits["test"].labels, TEST_LABELS)
  assert data.load(f"idx:{folder}", image_size=7).image_shape == (7, 7, 1)


IMAGES = idx_bytes(TRAIN)


@pytest.mark.parametrize(
  ("content", "message"),
  [
    (b"", r"bytes \(none\); allowed: 00 00 08 03"),
    (b"PK\x03\x04" + IMAGES, "bytes 50 4b 03 04"),
    (idx_bytes(TRAIN_LABELS.astype(np.uint8)), "bytes 00 00 08 01; allowed: .* 08 03"),
    (IMAGES[:10], "bytes 00 00 08 03"),
    (IMAGES[:-1], "20 x 5 x 6 = 600 bytes but holds 599"),
    (IMAGES + b"\0", "holds 601"),
    (gzip.compress(IMAGES)[:-20], "damaged gzip"),
    (gzip.compress(IMAGES)[:-8] + bytes(8), "damaged gzip"),
    (b"\x1f\x8b\x08\x00" + b"\xff" * 30, "damaged gzip"),
    (idx_bytes(TRAIN[:-1]), "19 images in .* but 20 labels"),
  ],
)
def test_damaged_idx_files(tmp_path, content, message):
  folder = write_idx(tmp_path / "mnist")
  path = folder / "train-images-idx3-ubyte"
  path.write_bytes(content)
  with pytest.raises(InputError, match=message) as error:
    data.load(f"idx:{folder}")
  assert str(path) in str(error.value)


def test_missing_idx_files(tmp_path):
  folder = write_idx(tmp_path / "mnist")
  (folder / "t10k-labels-idx1-ubyte").unlink()
  with pytest.raises(InputError, match="none of the files t10k-labels-idx1-ubyte, "):
    data.load(f"idx:{folder}")
  with pytest.raises(InputError, match="no folder .*gone"):
    data.load(f"idx:{tmp_path / 'gone'}")


def test_idx_reads_any_number_of_axes(tmp_path):
  values = RANDOM.integers(0, 256, (2, 3, 4, 5), dtype=np.uint8)
  (tmp_path / "x").write_bytes(idx_bytes(values))
  np.testing.assert_array_equal(idx.read(tmp_path / "x", 4), values)


@pytest.mark.parametrize(
  ("spec", "message"),
  [
    ("digit", "did you mean digits"),
    (
      "digits:",
      "allowed: digits, dsprites, dsprites:FILE.npz, arrays:FILE.npz, idx:FOLDER",
    ),
    ("folders:/x", "did you mean folder:PATH"),
    ("array:/x", "did you mean arrays:FILE.npz"),
    ("folder:", "unknown data source 'folder:'"),
    ("", "unknown data source ''"),
    ("tdfs:cifar10", "did you mean tfds:NAME"),
    (".", "did you mean folder:."),
  ],
)
def test_unknown_sources(spec, message):
  with pytest.raises(InputError, match=message):
    data.load(spec)


def test_negative_image_size():
  with pytest.raises(InputError, match="image size -1"):
    data.load("digits", image_size=-1)


def test_reading_data_starts_neither_tensorflow_nor_jax():
  code = (
    "import sys\n"
    "from ncl_jax import data\n"
    "next(data.load('digits').train_batches(0, 0, 4))\n"
    "unwanted = {'tensorflow', 'tensorflow_datasets', 'jax'}\n"
    "print(sorted(unwanted & set(sys.modules)))"
  )
  output = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert output.stdout == "[]\n"
