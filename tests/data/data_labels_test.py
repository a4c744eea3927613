"""Labels that users bring: each kind by the stated rule, alike in every source."""

import json

import numpy as np
import pytest
from absl import logging

from ncl_jax import data
from ncl_jax.data import labels
from ncl_jax.encoder import given
from ncl_jax.errors import InputError
from ncl_jax.training import fingerprints, workdir

NAN = float("nan")
TRUE = [0, 1, 2, -1, 1, 0]  # the same labels, written in many ways


class NAType:
  """As pandas' NA, which compares with nothing."""

  def __bool__(self):
    raise TypeError("boolean value of NA is ambiguous")


WAYS = {
  "int8": np.array(TRUE, np.int8),
  "int16": np.array(TRUE, ">i2"),
  "int64": np.array(TRUE, np.int64),
  "column": np.array(TRUE)[:, None],
  "float": np.array(TRUE, np.float16),
  "nan": np.array([0, 1, 2, NAN, 1, 0]),
  "none": np.array([0, 1, 2, None, 1, 0], object),
  "na": np.array([0, 1, 2, NAType(), 1, 0], object),
  "nan object": np.array([0, 1, 2, NAN, 1, 0], object),
  "names": np.array(["ant", "bee", "cat", "", "bee", "ant"]),
  "blank": np.array(["ant", "bee", "cat", "  ", "bee", "ant"]),
  "bytes": np.array([b"ant", b"bee", b"cat", b"", b"bee", b"ant"]),
  "name objects": np.array(["ant", "bee", "cat", None, "bee", "ant"], object),
  "nan among names": np.array(["ant", "bee", "cat", NAN, "bee", "ant"], object),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_writing_labels_gives_the_same_numbers(way):
  found, names = labels.numbered({"labels": WAYS[way]}, "here")
  np.testing.assert_array_equal(found["labels"], np.array(TRUE, np.int32), strict=True)
  named = isinstance(WAYS[way].ravel()[0], str | bytes)
  assert names == (("ant", "bee", "cat") if named else ("0", "1", "2"))


@pytest.mark.parametrize("way", WAYS)
def test_the_encoder_reads_them_alike(way):
  if way == "column":
    return  # a target has one axis
  np.testing.assert_array_equal(given.numbered(WAYS[way], 6), TRUE)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint64, bool])
def test_unsigned_and_boolean_labels(dtype):
  found, names = labels.numbered({"a": np.array([0, 1, 1], dtype)}, "here")
  assert found["a"].tolist() == [0, 1, 1] and found["a"].dtype == np.int32
  assert names == (("False", "True") if dtype is bool else ("0", "1"))


@pytest.mark.parametrize(
  ("values", "says"),
  [
    (np.array([-1, 1, 1, -1]), "-1 and 1 alone.* 0 and 1"),
    (np.array([-1.0, 1.0]), "-1 and 1 alone"),
    (np.eye(4), r"one-hot codes save labels.argmax\(axis=1\)"),
    (np.array([0.5, 1]), "1 values that are no whole number, such as 0.5"),
    (np.array([np.inf, 1]), "no whole number, such as inf"),
    (np.array([2**64 - 1], np.uint64), "goes from .* to 46116860"),
    (np.array([2**32 + 1, 1]), "to 4294967297; allowed: 0 to K-1"),
    (np.array([-2, 0]), "from -2 to 0"),
    (np.array([5_000_000, 0]), "label 5000000 with 2 examples"),
    (np.array([1 + 1j, 0]), "dtype complex128"),
    (np.array([1, "a"], object), "Python objects: names, numbers"),
    (np.array([1, 2**70], object), "Python objects: .*numbers beyond 64 bits"),
    (np.array([[1], 2], object), "Python objects: list, numbers"),
    (np.array([b"\xff"]), "not UTF-8"),
  ],
)
def test_what_no_rule_covers_is_refused_with_a_remedy(values, says):
  with pytest.raises(InputError, match=says):
    labels.numbered({"y": values}, "here")


def test_a_binary_part_of_more_classes_is_no_binary_coding():
  found, names = labels.numbered(
    {"train": np.array([0, 1, 2]), "test": np.array([-1, 1])}, "here"
  )
  assert found["test"].tolist() == [-1, 1] and len(names) == 3


@pytest.mark.parametrize("values", [[1, None, 1], [1, NAN, 1]])
def test_where_no_minus_one_is_written_nothing_is_mistaken_for_a_coding(values):
  found, _ = labels.numbered({"y": np.array(values, object)}, "here")
  assert found["y"].tolist() == [1, -1, 1]


def test_a_part_without_labels_fits_names_and_numbers():
  for known in (np.array(["a", "b"]), np.array([0, 1])):
    found, names = labels.numbered({"a": known, "b": np.array([-1, -1, -1])}, "here")
    assert found["a"].tolist() == [0, 1] and found["b"].tolist() == [-1] * 3
    assert len(names) == 2
  found, names = labels.numbered({"a": np.array(["", " "])}, "here")
  assert found["a"].tolist() == [-1, -1] and names == ()


def test_names_that_look_like_missing_values_are_told(caplog):
  logging.use_absl_handler()
  with caplog.at_level("WARNING"):
    labels.numbered({"y": np.array(["nan", "ant", "nan"])}, "here")
  assert "'nan' is a class, of 2 labels in y" in caplog.text


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 4, 4), dtype=np.uint8)


@pytest.mark.parametrize("form", ["arrays", "pairs"])
@pytest.mark.parametrize("level", ["", "_coarse"])
def test_both_files_take_every_kind_and_refuse_the_same(form, level, tmp_path):
  def load(values):
    arrays = {"images": IMAGES, f"labels{level}": values}
    if level:
      arrays["labels"] = np.arange(12) % 2
    if form == "pairs":
      arrays["captions"] = np.array(["a text"] * 12)
    np.savez(tmp_path / "set.npz", **arrays)
    source = data.load(f"{form}:{tmp_path}/set.npz")
    split = source.split("train")
    return split.levels["coarse"] if level else split.labels

  assert sorted(set(load(np.arange(12) % 3 == 0).tolist())) == [0, 1]
  assert sorted(set(load(np.where(np.arange(12) % 3, 0, NAN)).tolist())) == [-1, 0]
  assert sorted(set(load(np.array(["a", ""] * 6)).tolist())) == [-1, 0]
  with pytest.raises(InputError, match="-1 and 1 alone"):
    load(np.where(np.arange(12) % 2, 1, -1))


def test_an_encoder_refuses_the_binary_coding():
  with pytest.raises(InputError, match="y is -1 and 1 alone"):
    given.numbered([-1, 1, -1, 1], 4)


@pytest.mark.parametrize("form", ["arrays", "pairs"])
def test_measured_factors_are_numbered_by_value_up_to_rounding(form, tmp_path):
  """0.1 + 0.2 and 0.3 are one value, and float32 makes no further ones."""
  values = np.array([0.5, 0.1 + 0.2, 0.3, np.float32(0.3), NAN, 0.5] * 2)
  arrays = {"images": IMAGES, "labels_scale": values, "labels": np.arange(12) % 2}
  if form == "pairs":
    arrays["captions"] = np.array(["a text"] * 12)
  np.savez(tmp_path / "set.npz", **arrays)
  source = data.load(f"{form}:{tmp_path}/set.npz")
  found = np.concatenate([s.levels["scale"] for s in source.splits.values()])
  assert sorted(found.tolist()) == [-1] * 2 + [0] * 6 + [1] * 4
  assert source.level_names["scale"] == ("0.3", "0.5")


def test_factors_of_whole_numbers_and_names_stay_labels():
  for values in ([0.0, 2.0, 1.0], [0, 2, 1], ["a", "c", "b"]):
    found = labels.factors({"x": np.array(values)}, "here")
    expected = labels.numbered({"x": np.array(values)}, "here")
    assert found[0]["x"].tolist() == expected[0]["x"].tolist() == [0, 2, 1]
    assert found[1] == expected[1]


def test_a_continuous_factor_is_refused_with_the_number():
  values = np.linspace(0, 1, 3000)
  with pytest.raises(InputError, match="3000 different values in x; allowed: 1500"):
    labels.factors({"x": values}, "here")


def test_data_json_keeps_the_number_of_each_class(tmp_path):
  names = np.array(["bee", "ant", "bee", "10", "9", "ant"] * 2)

  def seen(names):
    np.savez(tmp_path / "set.npz", images=IMAGES, labels=names)
    return fingerprints.training_set(data.load(f"arrays:{tmp_path}/set.npz"))

  then = seen(names)
  assert then["classes"] == ["9", "10", "ant", "bee"]
  (tmp_path / "data.json").write_text(json.dumps(then))
  renamed = np.where(names == "bee", "wasp", names)
  np.savez(tmp_path / "set.npz", images=IMAGES, labels=renamed)
  source = data.load(f"arrays:{tmp_path}/set.npz")
  assert "with other classes" in workdir.data_changed(tmp_path, source)
