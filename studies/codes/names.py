r"""Names of the dimensions of CSR's codes of WordNet's glosses, and search by them.

  python -m studies.codes.names --embeddings=glosses/glosses.npz \
      --encoder=glosses/csr0.safetensors --json=studies/codes/data/names.json

The encoder is one of studies.codes.curves. The first --items rows give the names; the
--searched after them are searched. Classes are the 45 lexicographer files.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
import json
import pathlib
from typing import Any

import numpy as np

from benchmarks import measure
from ncl_jax.encoder import InvertedIndex, NonNegativeEncoder, names

K = 10
SHOWN = 12


def main() -> None:
  """Prints the tables."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--embeddings", required=True, help="of studies.codes.glosses")
  parser.add_argument("--encoder", required=True, help="of studies.codes.curves")
  parser.add_argument("--items", type=int, default=20_000)
  parser.add_argument("--searched", type=int, default=20_000)
  parser.add_argument("--active", type=int, default=32, help="entries of a code")
  parser.add_argument("--json", default="", help="file for the tables as JSON")
  flags = parser.parse_args()
  with np.load(flags.embeddings) as file:
    data = {name: file[name] for name in ("embeddings", "texts", "labels")}
  encoder = NonNegativeEncoder.load(flags.encoder).set_params(n_active=flags.active)
  first, second = slice(flags.items), slice(flags.items, flags.items + flags.searched)
  rows = data["embeddings"]
  index = InvertedIndex(encoder.encode_items(rows[second]))
  document: dict[str, Any] = {"items": flags.items, "searched": flags.searched}
  for kind, argument, attributes in (
    ("words", "texts", names.of_texts),
    ("classes", "labels", names.of_labels),
  ):
    encoder.name_dimensions(rows[first], **{argument: data[argument][first]})
    true = attributes(data[argument][second])
    document[kind] = summary(encoder, true, index)
    document[f"{kind} shown"] = examples(encoder.names_)
  if flags.json:
    pathlib.Path(flags.json).write_text(json.dumps(document, indent=1) + "\n")
  print("\n".join(shown(document)))


def summary(encoder, true: names.Attributes, index: InvertedIndex) -> dict[str, Any]:
  """How well names hold, and what search by each of them finds."""
  found = encoder.names_
  used = sorted(
    {word for d in np.flatnonzero(found.score > 0) for word in found.words[d]}
  )
  has = true.has.tocsc()
  place = {name: i for i, name in enumerate(true.names)}
  hits, rates = [], []
  for word in used:
    if word in place:
      positions = index.nearest(encoder.query(word), K)[0]
      column = has[:, [place[word]]].toarray()[:, 0]
      hits.append(np.mean(column[positions[positions >= 0]]))
      rates.append(np.mean(column))
  high = np.quantile(found.chance, 0.99)
  return {
    "dimensions": len(found.words),
    "score": float(found.score.mean()),
    "chance": float(found.chance.mean()),
    "above 99 % of chance": float(np.mean(found.score > high)),
    "names": len(hits),
    f"search: precision@{K}": float(np.mean(hits)),
    "search: chance": float(np.mean(rates)),
  }


def examples(found: names.Names) -> list[dict[str, Any]]:
  """Dimensions at equal distances in the order of their scores, the best first."""
  order = np.argsort(-found.score, kind="stable")
  chosen = order[np.linspace(0, len(order) - 1, SHOWN).astype(int)]
  return [
    {
      "dimension": int(d),
      "name": ", ".join(found.words[d]) or "–",
      "score": float(found.score[d]),
      "chance": float(found.chance[d]),
    }
    for d in chosen
  ]


def tables(folder: pathlib.Path) -> list[str]:
  """The page's tables of this program, from its file in a folder."""
  return shown(json.loads((folder / "names.json").read_text()))


def shown(document: dict[str, Any]) -> list[str]:
  """The lines of the page's tables."""
  kinds = [{"of": kind} | document[kind] for kind in ("words", "classes")]
  return [*measure.table(kinds), "", *measure.table(document["words shown"])]


if __name__ == "__main__":
  main()
