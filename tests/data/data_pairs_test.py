"""The source pairs: what it reads, and what it answers to a wrong file."""

import numpy as np
import pytest

from ncl_jax import config as config_lib
from ncl_jax import data
from ncl_jax.data import texts
from ncl_jax.errors import InputError
from ncl_jax.evaluators import finetune, robustness, sepin

RANDOM = np.random.default_rng(0)


def part(n, prefix):
  return {
    f"{prefix}images": RANDOM.integers(0, 256, (n, 6, 5, 3), dtype=np.uint8),
    f"{prefix}captions": np.array([f"{prefix} é {i}" for i in range(n)]),
    f"{prefix}partners": RANDOM.integers(0, 256, (n, 6, 5, 3), dtype=np.uint8),
    f"{prefix}labels": np.array(["dog", "cat"])[np.arange(n) % 2],
    f"{prefix}labels_size": np.arange(n) % 3,
    f"{prefix}concepts": np.arange(n),
  }


def write(path, **changed):
  arrays = part(9, "train_") | part(5, "test_") | changed
  np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
  return arrays


def test_both_kinds_of_pair_and_two_levels(tmp_path):
  arrays = write(tmp_path / "set.npz")
  source = data.load(f"pairs:{tmp_path / 'set.npz'}")
  assert source.class_names == ("cat", "dog") and not source.divided
  assert source.level_names == {"size": ("0", "1", "2")}
  for name in ("train", "test"):
    split, rows = source.split(name), np.array([3, 0, 4])
    np.testing.assert_array_equal(split.images, arrays[f"{name}_images"])
    np.testing.assert_array_equal(split.captions, arrays[f"{name}_captions"])
    np.testing.assert_array_equal(
      split.partners(rows, np.random.default_rng(0)), arrays[f"{name}_partners"][rows]
    )
    assert split.labels.tolist()[:3] == [1, 0, 1]
    np.testing.assert_array_equal(split.levels["size"], arrays[f"{name}_labels_size"])


def test_bytes_are_utf8_and_some_rows_keep_what_is_theirs(tmp_path):
  texts = np.char.encode(part(9, "train_")["train_captions"], "utf-8")
  arrays = write(
    tmp_path / "set.npz", train_captions=texts, train_partners=None, test_partners=None
  )
  source = data.load(f"pairs:{tmp_path / 'set.npz'}", train_examples=4)
  split = source.split("train")
  assert len(split) == 4 and split.partners is None
  for image, caption in zip(split.images, split.captions, strict=True):
    row = int(caption.split()[-1])
    np.testing.assert_array_equal(image, arrays["train_images"][row])


def test_without_a_division_a_fifth_is_held_out(tmp_path):
  np.savez(tmp_path / "set.npz", **part(20, ""))
  source = data.load(f"pairs:{tmp_path / 'set.npz'}")
  assert source.divided and [len(source.split(s)) for s in ("train", "test")] == [16, 4]
  texts = [t for s in ("train", "test") for t in source.split(s).captions]
  assert len(set(texts)) == 20


NAMES = {
  "train": np.array(["zoë", "a", "quite a long one", "😀", "x", "y", "z", "v", "w"]),
  "test": np.array(["é", "naïve", "c", "d", "e"]),
}


def of_texts(**changed):
  """The same file with texts in the place of images and partners."""
  gone = ("images", "partners")
  none = {f"{part}_{kind}": None for part in ("train", "test") for kind in gone}
  return none | {f"{part}_texts": x for part, x in NAMES.items()} | changed


def test_pairs_of_texts(tmp_path):
  arrays = write(tmp_path / "set.npz", **of_texts())
  source = data.load(f"pairs:{tmp_path / 'set.npz'}")
  assert source.texts and source.class_names == ("cat", "dog")
  for module in (robustness, finetune, sepin):
    with pytest.raises(InputError, match="holds texts and.* changes images.*knn"):
      module.evaluate(config_lib.defaults(), None, source, None)
  for name, given in NAMES.items():
    split = source.split(name)
    np.testing.assert_array_equal(split.captions, arrays[f"{name}_captions"])
    assert split.images.shape[1:] == (4, 4, 1)  # 16 bytes, the longest
    for picture, text in zip(split.images, given, strict=True):
      content = text.encode()
      expected = list(content) + [0] * (16 - len(content))
      assert picture.reshape(-1).tolist() == expected
    assert texts.from_pictures(split.images) == given.tolist()
  assert source.channel_statistics() == ((0.0,), (1 / 255,))
  write(tmp_path / "images.npz")
  assert not data.load(f"pairs:{tmp_path / 'images.npz'}").texts


def test_texts_that_do_not_fit():
  assert texts.as_pictures([]).shape == (0, 1, 1, 1)
  with pytest.raises(InputError, match="zero byte"):
    texts.as_pictures(["a\0b"])


def test_texts_have_no_size_and_no_partners(tmp_path):
  write(tmp_path / "set.npz", **of_texts())
  with pytest.raises(InputError, match="holds texts, and image size 8: allowed"):
    data.load(f"pairs:{tmp_path / 'set.npz'}", image_size=8)
  partners = {"train_partners": np.zeros((9, 4, 4), np.uint8)}
  write(tmp_path / "set.npz", **of_texts(**partners))
  with pytest.raises(InputError, match="holds texts, and partners, which are images"):
    data.load(f"pairs:{tmp_path / 'set.npz'}")


WRONG = [
  (of_texts(test_captions=None), "lacks test_captions"),
  (of_texts(test_texts=None), "lacks test_texts"),
  (
    of_texts(train_texts=np.array(["a"] * 8)),
    "8 examples but 9 labels in train_labels",
  ),
  (of_texts(train_texts=np.array(["a"] * 8 + [""])), "1 texts are empty, .* at 8"),
  ({"test_images": None}, "lacks test_images"),
  ({"test_captions": None}, "lacks test_captions"),
  ({"train_labels_size": None}, "lacks train_labels_size"),
  (
    {f"{p}_{k}": None for p in ("train", "test") for k in ("captions", "partners")},
    "lacks .*captions or .*partners",
  ),
  ({"train_captions": np.array(["a"] * 8)}, r"9 images .* train_captions has .*\(8,\)"),
  ({"train_captions": np.arange(9)}, "dtype int64; allowed: texts"),
  ({"train_captions": np.array(["a"] * 8 + [" "])}, "1 texts are empty, .* at 8"),
  ({"train_captions": np.array([b"\xff"] * 9)}, "not UTF-8"),
  ({"train_captions": np.array(["a", 1] * 4 + [None], object)}, "never read"),
  ({"test_partners": np.zeros((5, 4, 5, 3), np.uint8)}, r"images of \(4, 5, 3\)"),
  ({"test_labels_size": np.array([10**6] * 5)}, "label 1000000 with 14"),
]


@pytest.mark.parametrize(("changed", "says"), WRONG, ids=[says for _, says in WRONG])
def test_wrong_files(changed, says, tmp_path):
  write(tmp_path / "set.npz", **changed)
  with pytest.raises(InputError, match=says):
    data.load(f"pairs:{tmp_path / 'set.npz'}")


def test_images_alone_are_told_what_they_lack(tmp_path):
  np.savez(tmp_path / "set.npz", images=np.zeros((4, 5, 5, 3), np.uint8))
  with pytest.raises(InputError, match="it lacks captions or partners"):
    data.load(f"pairs:{tmp_path / 'set.npz'}")
