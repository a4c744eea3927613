"""Tiny sets prepared by TensorFlow Datasets; the only tests that need TensorFlow."""

import subprocess
import sys

import numpy as np
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax import data
from ncl_jax.data import decoded_cache, tfds
from ncl_jax.data import source as source_module
from ncl_jax.errors import InputError
from ncl_jax.host import network
from ncl_jax.runtime import jsonl
from ncl_jax.training import loop

# TensorFlow and what it imports warn of their own ageing.
pytestmark = pytest.mark.filterwarnings("ignore")

NAMES = ("ant", "bee", "cat")


def example(i, size):
  """Image i is filled with i."""
  image = np.full((*size, 3), i, np.uint8)
  return {"image": image, "label": i % 3, "coarse_label": i % 2}


def sizes(count, variable):
  return [(8 + (i % 3) * 2, 12) if variable else (8, 8) for i in range(count)]


def prepare(
  folder, name, file_format, counts, variable=False, unlabelled=(), encoding="png"
):
  """Writes a set with the given number of examples by split."""
  import tensorflow as tf
  import tensorflow_datasets as tfds

  signature = {
    "image": tf.TensorSpec((None, None, 3), tf.uint8),
    "label": tf.TensorSpec((), tf.int64),
    "coarse_label": tf.TensorSpec((), tf.int64),
  }

  def dataset(split, count):
    def examples():
      for i, size in enumerate(sizes(count, variable)):
        x = example(i, size)
        yield {**x, "label": -1} if split in unlabelled else x

    return tf.data.Dataset.from_generator(examples, output_signature=signature)

  shape = (None, None, 3) if variable else (8, 8, 3)
  tfds.dataset_builders.TfDataBuilder(
    name=name,
    version="1.0.0",
    data_dir=folder,
    file_format=file_format,
    split_datasets={split: dataset(split, count) for split, count in counts.items()},
    features=tfds.features.FeaturesDict(
      {
        "image": tfds.features.Image(shape=shape, encoding_format=encoding),
        "label": tfds.features.ClassLabel(names=NAMES),
        "coarse_label": tfds.features.ClassLabel(num_classes=2),
      }
    ),
  ).download_and_prepare()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("tfds")
  both = {"train": 30, "test": 9}
  prepare(folder, "tiny_rows", "tfrecord", both)
  prepare(folder, "tiny_random", "array_record", both)
  prepare(folder, "tiny_varied", "array_record", both, variable=True)
  prepare(folder, "tiny_jpeg", "array_record", both, variable=True, encoding="jpeg")
  three = {"train": 12, "test": 4, "validation": 6}
  prepare(folder, "tiny_contest", "tfrecord", three, unlabelled=("test",))
  prepare(folder, "tiny_single", "array_record", {"train": 15})
  prepare(folder, "tiny_no_train", "array_record", {"test": 4})
  said = [[f"zoë {i}", "another"][: 1 + i % 2] for i in range(8)]
  both = {"train": said, "test": said[:4]}
  prepare_captions(folder, "tiny_caption", "tfrecord", "caption", both)
  prepare_captions(folder, "tiny_text", "array_record", "text", both)
  hidden = {"train": said, "test": [[]] * 3, "validation": said[:5]}
  prepare_captions(folder, "tiny_captions", "array_record", "captions", hidden)
  holes = {"train": [*said, [], []]}
  prepare_captions(folder, "tiny_holes", "array_record", "text", holes)
  return folder


def prepare_captions(folder, name, file_format, kind, texts):
  """A set of a caption feature and no classes: text i is of image i."""
  import tensorflow as tf
  import tensorflow_datasets as tfds

  text, number = tf.TensorSpec((None,), tf.string), tf.TensorSpec((None,), tf.int64)
  forms = {
    "caption": (tfds.features.Text(), tf.TensorSpec((), tf.string), lambda x: x[0]),
    "text": (tfds.features.Sequence(tfds.features.Text()), text, lambda x: x),
    "captions": (
      tfds.features.Sequence({"id": np.int64, "text": np.str_}),
      {"id": number, "text": text},
      lambda x: {"id": list(range(len(x))), "text": x},
    ),
  }
  feature, spec, form = forms[kind]
  signature = {"image": tf.TensorSpec((8, 8, 3), tf.uint8), kind: spec}

  def dataset(rows):
    def examples():
      for i, row in enumerate(rows):
        yield {"image": np.full((8, 8, 3), i, np.uint8), kind: form(row)}

    return tf.data.Dataset.from_generator(examples, output_signature=signature)

  tfds.dataset_builders.TfDataBuilder(
    name=name,
    version="1.0.0",
    data_dir=folder,
    file_format=file_format,
    split_datasets={split: dataset(rows) for split, rows in texts.items()},
    features=tfds.features.FeaturesDict(
      {"image": tfds.features.Image(shape=(8, 8, 3)), kind: feature}
    ),
  ).download_and_prepare()


@pytest.fixture(autouse=True)
def data_dir(folder, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(folder))


def values(source, split):
  part = source.splits[split]
  return part.images[np.arange(len(part))][:, 4, 4, 0], part.labels


@pytest.mark.parametrize(
  ("name", "shape"), [("rows", 8), ("random", 8), ("varied", 10)]
)
def test_every_example_with_its_label(name, shape):
  source = data.load(f"tfds:tiny_{name}")
  assert source.class_names == NAMES
  assert source.image_shape == (shape, shape, 3)
  for split, count in (("train", 30), ("test", 9)):
    images, labels = values(source, split)
    assert sorted(images) == list(range(count))
    np.testing.assert_array_equal(labels, (images % 3).astype(np.int32), strict=True)
    levels = source.splits[split].levels
    assert levels.keys() == {"coarse"}
    np.testing.assert_array_equal(levels["coarse"], images % 2)
    again, _ = values(data.load(f"tfds:tiny_{name}"), split)
    np.testing.assert_array_equal(images, again)


@pytest.mark.parametrize("name", ["random", "varied", "jpeg"])
def test_large_array_records_are_decoded_by_batch(name, monkeypatch):
  whole = data.load(f"tfds:tiny_{name}", image_size=6, train_examples=20)
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 0)
  lazy = data.load(f"tfds:tiny_{name}", image_size=6, train_examples=20)
  assert isinstance(whole.splits["train"].images, np.ndarray)
  assert not isinstance(lazy.splits["train"].images, np.ndarray)
  for _, a, b in zip(
    range(4), whole.train_batches(0, 0, 6), lazy.train_batches(0, 0, 6), strict=False
  ):
    for key in a:
      np.testing.assert_array_equal(a[key], b[key], strict=True)
  a, b = (source.splits["train"].levels["coarse"] for source in (whole, lazy))
  np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.parametrize("name", ["random", "varied", "jpeg", "single", "text"])
def test_large_sets_are_decoded_once_and_their_labels_read_once(
  name, monkeypatch, tmp_path
):
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 0)
  streamed = data.load(f"tfds:tiny_{name}", image_size=6)
  made = data.load(f"tfds:tiny_{name}", image_size=6, decoded=str(tmp_path))
  monkeypatch.setattr(tfds, "_columns", lambda *_: pytest.fail("read again"))
  again = data.load(f"tfds:tiny_{name}", image_size=6, decoded=str(tmp_path))
  for source in (made, again):
    for key, split in source.splits.items():
      same = streamed.splits[key]
      assert isinstance(split.images, decoded_cache.Decoded)
      rows = np.arange(len(same))[::-1]
      np.testing.assert_array_equal(split.images[rows], same.images[rows], strict=True)
      np.testing.assert_array_equal(split.labels, same.labels, strict=True)
      np.testing.assert_array_equal(split.captions, same.captions)
      assert split.levels.keys() == same.levels.keys()
      for level, labels in split.levels.items():
        np.testing.assert_array_equal(labels, same.levels[level], strict=True)
  assert len(list(tmp_path.glob("*.npy"))) == 2


def test_large_tfrecords_are_refused_with_advice(monkeypatch):
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", 39 * 8 * 8 * 3 - 1)
  with pytest.raises(InputError, match="tfds build tiny_rows --file_format=array_rec"):
    data.load("tfds:tiny_rows")
  assert data.load("tfds:tiny_rows", image_size=7).image_shape == (7, 7, 3)


def test_unlabelled_test_gives_way_to_validation():
  source = data.load("tfds:tiny_contest")
  assert source.num_examples("test") == 6
  images, labels = values(source, "test")
  np.testing.assert_array_equal(labels, images % 3)


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_without_a_test_split_a_fifth_is_held_out(limit, monkeypatch):
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", limit)
  source = data.load("tfds:tiny_single")
  images, labels = zip(*(values(source, s) for s in ("train", "test")), strict=True)
  assert [np.bincount(x).tolist() for x in labels] == [[4, 4, 4], [1, 1, 1]]
  assert sorted(np.concatenate(images)) == list(range(15))


def test_array_records_are_read_without_tensorflow():
  code = (
    "import sys\n"
    "from ncl_jax import data\n"
    "print(data.load('tfds:tiny_varied').num_examples('train'))\n"
    "print('tensorflow' in sys.modules)"
  )
  output = subprocess.run(
    [sys.executable, "-c", code], capture_output=True, text=True, check=True
  )
  assert output.stdout.split() == ["30", "False"]


def test_tensorflow_keeps_off_gpus(monkeypatch):
  import tensorflow as tf

  calls = []
  monkeypatch.setattr(
    tf.config, "set_visible_devices", lambda *args: calls.append(args)
  )
  data.load("tfds:tiny_rows")
  assert calls == [([], "GPU")]


def test_a_set_of_test_images_alone(folder, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(folder))
  source = data.load("tfds:tiny_no_train", need_train=False)
  test = source.split("test")
  assert len(test) == 4 and not source.divided
  values = test.images[np.arange(4)][:, 0, 0, 0]
  assert sorted(values) == [0, 1, 2, 3]
  np.testing.assert_array_equal(test.labels, values % 3)


@pytest.mark.parametrize("limit", [0, 1 << 30])
@pytest.mark.parametrize(("name", "test"), [("text", 4), ("captions", 5)])
def test_the_first_caption_of_each_image(name, test, limit, monkeypatch):
  """Of those whose test images have none, the validation's."""
  monkeypatch.setattr(source_module, "IN_MEMORY_BYTES", limit)
  source = data.load(f"tfds:tiny_{name}")
  for split, count in (("train", 8), ("test", test)):
    images, _ = values(source, split)
    assert sorted(images) == list(range(count))
    expected = [f"zoë {i}" for i in images]
    assert source.split(split).captions.tolist() == expected


def test_captions_are_pairs_for_two_towers():
  source = data.load("tfds:tiny_caption")
  images, _ = values(source, "train")
  assert source.split("train").captions.tolist() == [f"zoë {i}" for i in images]
  config = tiny.config()
  config.loss.name = "clip"
  config.train.batch_size = 8
  assert config_lib.resolve(config, source).loss.name == "clip"
  plain = data.load("tfds:tiny_random")
  assert plain.split("train").captions is None
  with pytest.raises(
    InputError, match="tiny_random has no captions: .*named caption, "
  ):
    config_lib.resolve(config, plain)


def test_where_captions_are_missing_there_are_images_alone(caplog):
  with caplog.at_level("WARNING"):
    source = data.load("tfds:tiny_holes")
  assert all(split.captions is None for split in source.splits.values())
  assert "2 of 10 captions are empty, the first at" in caplog.text


@pytest.mark.parametrize(
  ("name", "message"),
  [
    ("cifra10", "no TensorFlow data set 'cifra10'.*did you mean cifar10"),
    ("qqqqqq", "neither known by name nor prepared in .*TFDS_DATA_DIR"),
    ("imagenet2012", "cannot be prepared: Manual directory"),
    ("tiny_no_train", "splits test; needed: train"),
  ],
)
def test_sets_that_cannot_be_used(name, message):
  with pytest.raises(InputError, match=message):
    data.load(f"tfds:{name}")


def test_without_a_network_nothing_is_downloaded(tmp_path, monkeypatch, caplog):
  import requests

  def asked(*args, **kwargs):
    raise requests.exceptions.ConnectionError("asked")

  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
  monkeypatch.setattr(network, "offline", lambda hosts: True)
  monkeypatch.setattr(requests.Session, "send", asked)
  with pytest.raises(InputError, match="mnist is not prepared in .*, and there is no"):
    data.load("tfds:mnist")
  assert not caplog.records
  # What was downloaded earlier may be all that is needed.
  (tmp_path / "downloads" / "a").mkdir(parents=True)
  (tmp_path / "downloads" / "a" / "images.gz.INFO").touch()
  with pytest.raises(InputError, match="cannot be prepared: asked"):
    data.load("tfds:mnist")
  with pytest.raises(InputError, match="cannot be prepared: Manual directory"):
    data.load("tfds:imagenet2012")


@pytest.mark.parametrize(
  ("name", "missing", "says"),
  [
    ("tiny_rows", "tensorflow", "tiny_rows is stored as tfrecord: reading it needs"),
    ("mnist", "tensorflow", "mnist is not prepared in .*: preparing it needs"),
    ("tiny_random", "tensorflow_datasets", "tfds:tiny_random needs"),
  ],
)
def test_what_is_not_installed_is_named_with_its_extra(
  name, missing, says, monkeypatch
):
  monkeypatch.setitem(sys.modules, missing, None)
  with pytest.raises(InputError, match=rf"{says} {missing}: .*ncl_jax\[tfds\]"):
    data.load(f"tfds:{name}")


def test_a_download_that_fails(monkeypatch):
  import requests

  monkeypatch.setattr(network, "offline", lambda hosts: False)

  def fail(*args, **kwargs):
    raise requests.exceptions.ConnectionError("Failed to resolve 'example.org'")

  monkeypatch.setattr(requests.Session, "send", fail)
  with pytest.raises(InputError, match="tfds:mnist is not in .* cannot be prepared: F"):
    data.load("tfds:mnist")


@pytest.mark.slow
def test_the_trainer_takes_it_by_name(tmp_path):
  config = tiny.config()
  config.data.source = "tfds:tiny_rows"
  config.train.epochs = 2
  path = loop.train(config, tmp_path / "run")
  rows = jsonl.read(path / "metrics.jsonl")
  assert [row["step"] for row in rows] == [1, 2]  # 30 images, a batch of 16 an epoch
  assert np.isfinite(rows[0]["loss"]) and "probe_accuracy" in rows[0]
