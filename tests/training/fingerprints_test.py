"""Cache keys: every input that a result reads changes them, the place does not."""

import dataclasses
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest
import tiny

from ncl_jax import data as data_lib
from ncl_jax.data import source as source_lib
from ncl_jax.data.source import Source, Split
from ncl_jax.training import fingerprints


@dataclasses.dataclass(frozen=True)
class Given:
  """The other image of each pair."""

  images: np.ndarray

  def __call__(self, rows, rng):
    return self.images[rows]


def made(**changes):
  """A source with all that a split can have, made anew."""
  splits = {
    name: dataclasses.replace(
      part,
      levels={"light": np.arange(len(part), dtype=np.int32) % 3},
      captions=np.array([f"picture {i}" for i in range(len(part))]),
      partners=Given(part.images[::-1].copy()),
    )
    for name, part in tiny.source(train=40, test=10).splits.items()
  }
  return Source("set", splits, changes.get("classes", ("upper", "lower")))


def one_more(values):
  values = values.copy()
  values.flat[-1] ^= 1
  return values


CHANGES = {
  "pixel": {"images": lambda x: one_more(x.images)},
  "shape": {"images": lambda x: x.images.reshape(len(x), 4, 16, 1)},
  "order": {"images": lambda x: x.images[::-1]},
  "label": {"labels": lambda x: one_more(x.labels)},
  "label type": {"labels": lambda x: x.labels.view(np.float32)},
  "level": {"levels": lambda x: {"light": one_more(x.levels["light"])}},
  "level name": {"levels": lambda x: {"dark": x.levels["light"]}},
  "caption": {"captions": lambda x: np.array([*x.captions[:-1], "other"])},
  "no captions": {"captions": lambda x: None},
  "partner": {"partners": lambda x: Given(one_more(x.partners.images))},
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_input_is_another_split(change):
  same, part = made().split("train"), made().split("train")
  assert fingerprints.split(same) == fingerprints.split(part)
  changed = {key: new(part) for key, new in CHANGES[change].items()}
  other = dataclasses.replace(part, **changed)
  assert fingerprints.split(same) != fingerprints.split(other)


@pytest.mark.parametrize("name", ["train", "test"])
def test_a_change_of_either_split_is_another_set(name):
  source = made()
  part = source.split(name)
  part = dataclasses.replace(part, images=one_more(part.images))
  other = dataclasses.replace(source, splits=source.splits | {name: part})
  assert fingerprints.data(source) == fingerprints.data(made())
  assert fingerprints.data(source) != fingerprints.data(other)
  apart = "test" if name == "train" else "train"
  assert fingerprints.data(source, apart) == fingerprints.data(other, apart)


def test_renamed_classes_are_another_set_and_another_path_is_not():
  assert fingerprints.data(made()) != fingerprints.data(made(classes=("a", "b")))
  elsewhere = dataclasses.replace(made(), name="elsewhere")
  assert fingerprints.data(made()) == fingerprints.data(elsewhere)


def test_captions_do_not_run_together():
  part = made().split("train")
  one, other = (
    dataclasses.replace(part, captions=np.array([*first, *part.captions[2:]]))
    for first in (("a", "b c"), ("a b", "c"))
  )
  assert fingerprints.split(one) != fingerprints.split(other)


class Lazy:
  """Images that are decoded when asked for."""

  def __init__(self, images):
    self.images, self.asked = images, []
    self.shape = images.shape

  def __len__(self):
    return len(self.images)

  def __getitem__(self, rows):
    self.asked += np.asarray(rows).tolist()
    return self.images[rows]


def test_of_images_that_are_decoded_some_are_and_once():
  images, labels = tiny.images(0, 3000)
  lazy = Lazy(images)
  part = Split(lazy, labels)
  first = fingerprints.split(part)
  assert len(lazy.asked) == fingerprints.SAMPLED
  assert (lazy.asked[0], lazy.asked[-1]) == (0, 2999)
  assert fingerprints.split(part) == first and len(lazy.asked) == fingerprints.SAMPLED
  other = images.copy()
  other[lazy.asked[7], 0, 0] ^= 1
  assert fingerprints.split(Split(Lazy(other), labels)) != first


@pytest.fixture
def folder(tmp_path, monkeypatch):
  """Photographs that are decoded when asked for."""
  monkeypatch.setattr(source_lib, "IN_MEMORY_BYTES", 0)
  root = tiny.photographs(tmp_path / "photographs")
  (root / "train" / "b" / "99.JPEG").unlink()
  return root


def of_folder(root):
  source = data_lib.load(f"folder:{root}", image_size=16)
  return fingerprints.data(source), fingerprints.training_set(source)


def test_a_folder_is_known_by_its_files_wherever_it_lies(folder, tmp_path):
  here = of_folder(folder)
  copy = shutil.copytree(folder, tmp_path / "deep" / "er" / "copy")
  for file in copy.rglob("*.JPEG"):
    file.touch()
  assert of_folder(copy) == here
  file = sorted(copy.glob("train/a/*"))[0]
  content = file.read_bytes()
  for other in (content[:-1] + bytes([content[-1] ^ 1]), content + b"x"):
    file.write_bytes(other)
    assert of_folder(copy) != here
  file.write_bytes(content)
  assert of_folder(copy) == here
  file.rename(file.with_name("another.JPEG"))
  assert of_folder(copy) != here


@pytest.mark.parametrize("module", ["evaluators.supervised", "experiments.controls"])
def test_the_code_of_a_result_is_all_that_is_imported_for_it(module):
  """In a fresh process: what Python itself loads, against what is hashed."""
  code = (
    f"import sys, ncl_jax.{module}\n"
    "print(*(m.__file__ for n, m in sys.modules.items() if n.startswith('ncl_jax')))"
  )
  done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
  loaded = {pathlib.Path(file) for file in done.stdout.split()}
  assert loaded and loaded <= set(fingerprints.sources(f"ncl_jax.{module}"))


def test_an_edit_of_imported_code_changes_the_key(tmp_path, monkeypatch):
  before = fingerprints.code.__wrapped__("ncl_jax.evaluators.knn")
  real = fingerprints._file

  def edited(module):
    file = real(module)
    if module != "ncl_jax.metrics.knn":
      return file
    copy = tmp_path / "knn.py"
    copy.write_text(file.read_text().replace("temperature", "warmth"))
    return copy

  monkeypatch.setattr(fingerprints, "_file", edited)
  assert fingerprints.code.__wrapped__("ncl_jax.evaluators.knn") != before


def test_settings_and_weights_make_a_network_and_the_place_of_its_data_does_not():
  weights = {"params": {"a": np.zeros(2)}}
  config = tiny.config().lock()
  first = fingerprints.network(config, weights)
  moved = tiny.config()
  moved.data.source = "arrays:elsewhere.npz"
  assert fingerprints.network(moved, weights) == first
  other = tiny.config()
  other.eval.knn_k = 6
  assert fingerprints.network(other, weights) != first
  assert fingerprints.network(config, {"params": {"a": np.ones(2)}}) != first
