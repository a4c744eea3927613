"""benchmarks/emoji.py: pictures on white, captions, concepts held out whole."""

import io
import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from benchmarks import emoji
from ncl_jax import data
from ncl_jax.errors import InputError

ENTRIES = [
  {
    "name": name,
    "short_name": "x",
    "image": f"{i}.png",
    "category": "People & Body",
    "subcategory": "person-role",
    "skin_variations": {
      "1F3FB": {"image": f"{i}-a.png"},
      "1F3FB-1F3FF": {"image": f"{i}-b.png"},
    },
  }
  for i, name in enumerate(["MAN FARMER", "FARMER", "MAN: BALD"])
]


def test_a_row_for_every_picture():
  rows = emoji.rows_of([*ENTRIES, {**ENTRIES[0], "name": None, "skin_variations": {}}])
  assert [row["image"] for row in rows[:3]] == ["0.png", "0-a.png", "0-b.png"]
  assert [row["caption"] for row in rows[:3]] == [
    "man farmer",
    "man farmer, light skin tone",
    "man farmer, light and dark skin tone",
  ]
  assert rows[0]["category"] == "people and body" and rows[-1]["caption"] == "x"
  assert [row["concept"] for row in rows[::3]] == ["farmer", "farmer", "bald", "x"]


def test_a_concept_lies_on_one_side():
  concepts = [str(i // 3) for i in range(60)]
  test = emoji.held_out(concepts)
  assert test.sum() == 12  # a fifth of 20 concepts of three rows
  assert all(len(set(test[i : i + 3])) == 1 for i in range(0, 60, 3))
  values = {"captions": np.array(concepts)}
  parts = emoji.divided(values, test)
  assert not set(parts["train_captions"]) & set(parts["test_captions"])
  np.testing.assert_array_equal(emoji.held_out(concepts[::-1]), test[::-1])


def test_pictures_lose_their_transparency(tmp_path):
  pixels = np.array([[[200, 0, 100, 51], [7, 8, 9, 255]]], np.uint8)
  file = tmp_path / "package.tgz"
  with tarfile.open(file, "w:gz") as archive:
    for name, content in (
      ("img/google/64/a.png", png(Image.fromarray(pixels))),
      ("img/google/64/b.png", png(Image.fromarray(pixels[..., 2:], mode="LA"))),
      ("img/google/sheets/c.png", b"no picture of one emoji"),
      ("emoji.json", json.dumps(ENTRIES).encode()),
    ):
      member = tarfile.TarInfo(f"package/{name}")
      member.size = len(content)
      archive.addfile(member, io.BytesIO(content))
  pictures = emoji.read_pictures(file, "google")
  assert pictures.keys() == {"a.png", "b.png"}
  share = np.array([0.2, 1.0])[:, None]
  expected = share * pixels[0, :, :3] + (1 - share) * 255
  np.testing.assert_allclose(pictures["a.png"][0], expected, atol=1)
  grey = share * pixels[0, :, 2:3] + (1 - share) * 255
  np.testing.assert_allclose(pictures["b.png"][0], np.repeat(grey, 3, 1), atol=1)
  assert emoji.read_entries(file) == ENTRIES


def png(image):
  file = io.BytesIO()
  image.save(file, "PNG")
  return file.getvalue()


def test_pictures_in_folders_by_category(tmp_path):
  rows = emoji.rows_of(ENTRIES)
  for i, row in enumerate(rows):
    row["category"] = ("flags", "food and drink")[i % 2]
  pictures = np.random.default_rng(0).integers(0, 256, (9, 8, 8, 3), np.uint8)
  test = np.arange(9) >= 6
  emoji.write_folder(tmp_path, rows, pictures, test)
  source = data.load(f"folder:{tmp_path}")
  assert source.class_names == ("flags", "food and drink") and not source.divided
  for name, part in (("train", ~test), ("test", test)):
    split = source.split(name)
    of = {p.tobytes(): i % 2 for i, p in enumerate(pictures) if part[i]}
    assert {
      p.tobytes(): k for p, k in zip(split.images, split.labels, strict=True)
    } == of


def test_without_npm(tmp_path, monkeypatch):
  monkeypatch.setenv("PATH", str(tmp_path))
  with pytest.raises(InputError, match="npm is not installed and .*google-16"):
    emoji.fetch("google", tmp_path)
