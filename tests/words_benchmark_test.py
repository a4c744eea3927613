"""benchmarks/words.py and sentences.py: vectors read, means of texts, their figures."""

import io
import json
import tarfile

import numpy as np
import pytest
from programs import ROOT

from benchmarks import run, sentences, words
from ncl_jax.encoder import program

DATA = ROOT / "docs" / "data" / "words"


@pytest.fixture
def made(tmp_path, monkeypatch, capsys):
  """A package of four tokens, two of them words of letters, and pairs of texts."""
  rng = np.random.default_rng(0)
  given = {word: rng.normal(size=100).round(5) for word in ("the", ",", 'a"b', "cat")}
  entries = {w: [*v.tolist(), 1.0, i] for i, (w, v) in enumerate(given.items())}
  content = {"size": 4, "words": list(given), "vectors": entries, "unkVector": [0, -1]}
  packed = json.dumps(content, separators=(",", ":")).encode()
  name, version = words.PACKAGE
  with tarfile.open(tmp_path / f"{name}-{version}.tgz", "w:gz") as archive:
    member = tarfile.TarInfo(words.VECTORS)
    member.size = len(packed)
    archive.addfile(member, io.BytesIO(packed))
  texts = {
    f"{part}_{key}": np.array(rows)
    for part in ("train", "test")
    for key, rows in {
      "texts": ["the cat", "unheard", "cat"],
      "captions": ["cat, thing", "of", "the"],
      "labels": ["animal", "animal", ""],
    }.items()
  }
  np.savez(tmp_path / "names.npz", **texts)
  flags = ["words", f"--out={tmp_path}", f"--texts={tmp_path / 'names.npz'}"]
  monkeypatch.setattr("sys.argv", flags)
  words.main()
  return given, tmp_path, capsys.readouterr().out


def test_vectors_are_those_of_the_package_and_texts_their_means(made):
  given, folder, out = made
  assert "(2, 100) of 4 words read" in out
  arrays = program._read(str(folder / "words.npz"), "embeddings")
  assert arrays["words"].tolist() == ["the", "cat"]
  expected = np.float32([given["the"], given["cat"]])
  np.testing.assert_array_equal(arrays["embeddings"], expected)
  with np.load(folder / "texts.npz") as file:
    # One text has no word that is known, another no label.
    assert file["test_labels"].tolist() == ["animal"]
    # Distinct words count once.
    mean = (given["the"] + given["cat"]) / 2
    np.testing.assert_allclose(file["train_embeddings"][0], mean, atol=1e-6)


def test_figures_of_features_that_are_the_classes():
  labels = {part: np.arange(30) % 3 for part in ("train", "test")}
  f = {part: np.eye(3, dtype=np.float32)[y] for part, y in labels.items()}
  found = sentences.figures(f, labels, 0)
  for name in ("neighbours", "probe", "consistency_abs", "purity"):
    assert found[name] == 100
  assert found["sparsity"] == pytest.approx(200 / 3) and found["live_dimensions"] == 3


@pytest.mark.parametrize("name", ["words", "texts"])
def test_tables_are_those_of_the_files(name):
  page = (ROOT / "docs" / "your_embeddings.md").read_text()
  rows = json.loads((DATA / f"{name}.json").read_text())["rows"]
  time = [k for k in rows[0] if "ms" in k and name == "words"]
  for columns in ([k for k in rows[0] if k not in time], ["active", *time]):
    if len(columns) > 1:
      lines = run.table([{k: row[k] for k in columns} for row in rows])
      assert "\n".join(lines) in page
