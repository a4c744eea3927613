"""benchmarks/symbols.py and texts.py: names and keywords, concepts, verdicts."""

import io
import json
import tarfile

import numpy as np
import pytest

from benchmarks import symbols, texts
from ncl_jax import data

NAMES = {
  "✋": {"default": ["Hand", "man", "up", "up"], "tts": ["Man raising hand"]},
  "✌": {"default": ["woman", "hand"], "tts": ["woman raising hand"]},
  "~": {"default": ["tilde"], "tts": ["tilde"]},
  "→": {"default": ["arrow", "right"], "tts": ["rightwards arrow"]},
  "x": {"default": ["nameless"]},
}
GROUPS = {"✋\ufe0f": {"group": "People & Body"}, "✌": {"group": "Smileys"}}


def test_a_row_for_every_symbol_with_keywords():
  rows = symbols.rows_of(NAMES, symbols.groups_of(GROUPS))
  assert [row["name"] for row in rows] == [
    "man raising hand",
    "woman raising hand",
    "rightwards arrow",
  ]
  assert rows[0]["keywords"] == "hand, man, up"
  assert [row["group"] for row in rows] == ["people and body", "smileys", ""]
  assert [row["concept"] for row in rows] == ["raising hand"] * 2 + ["rightwards arrow"]


def package(file, name, content):
  with tarfile.open(file, "w:gz") as archive:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def test_the_file_is_a_source_of_texts(tmp_path, monkeypatch, capsys):
  many = {
    f"symbol {i}": {"default": [f"word{i}", "all"], "tts": [f"name {i}"]}
    for i in range(10)
  }
  groups = {f"symbol {i}": {"group": f"G & {i % 2}"} for i in range(8)}
  for (name, version), where, content in zip(
    symbols.PACKAGES.items(),
    (symbols.NAMES, symbols.GROUPS),
    ({"annotations": {"annotations": many}}, groups),
    strict=True,
  ):
    package(tmp_path / f"{name}-{version}.tgz", where, json.dumps(content).encode())
  monkeypatch.setattr("sys.argv", ["symbols", f"--out={tmp_path}"])
  symbols.main()
  assert "8 train and 2 test pairs, 10 concepts, 2 groups" in capsys.readouterr().out
  source = data.load(f"pairs:{tmp_path / 'names.npz'}")
  assert source.texts and source.class_names == ("g and 0", "g and 1")
  known = np.concatenate([s.labels for s in source.splits.values()])
  assert sorted(known.tolist()) == [-1] * 2 + [0] * 4 + [1] * 4


def row(recall, sparse, pure):
  """Of one run: recall text to caption, then both towers' figures."""
  return {
    "text_to_caption@10": recall,
    "caption_to_text@10": 10.0,
    "sparsity, text": sparse[0],
    "sparsity, caption": sparse[1],
    "consistency_abs, text": pure[0],
    "consistency_abs, caption": pure[1],
  }


def test_words_in_common_find_what_shares_a_word(tmp_path):
  arrays = {
    "train_texts": ["a thing"],
    "train_captions": ["more"],
    "test_texts": ["red car", "blue bird", "sun"],
    "test_captions": ["car, wheels", "bird, wings", "star"],
  }
  np.savez(tmp_path / "x.npz", **{k: np.array(v) for k, v in arrays.items()})
  found = texts.words_in_common(tmp_path / "x.npz")
  # The third shares no word: it is found by chance.
  assert found["text_to_caption@1"] == pytest.approx(100 * (2 + 1 / 3) / 3)
  assert found["caption_to_text@10"] == pytest.approx(100)


CL = [row(20.0, (0, 0), (30.0, 30.0))] * 2


@pytest.mark.parametrize(
  ("ncl", "words"),
  [
    ([row(18.1, (51, 90), (35, 40)), row(30, (60, 60), (40, 36))], ["seen"] * 3),
    ([row(17.9, (49, 90), (30, 90)), row(0, (90, 50), (80, 20))], ["not seen"] * 3),
    ([row(17.9, (49, 90), (30, 90)), row(20, (90, 90), (34, 90))], ["undecided"] * 3),
    (
      [row(20, (90, 90), (40, 34)), row(20, (90, 90), (40, 40))],
      ["seen", "seen", "und"],
    ),
  ],
)
def test_verdicts_are_those_written_down_before(ncl, words):
  found = list(texts.verdicts(CL, ncl).values())
  assert all(a.startswith(word) for a, word in zip(found, words, strict=True)), found
