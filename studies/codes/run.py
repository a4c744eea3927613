r"""Search with sparse codes against PCA, product quantisation and binary codes.

  python -m studies.codes.glosses --out=glosses
  python -m studies.codes.run --embeddings=glosses/glosses.npz --tune
  python -m studies.codes.run --embeddings=glosses/glosses.npz --repeats=3 \
      --json=studies/codes/data/glosses.json --figure=studies/codes/glosses.svg

Rows of --embeddings (FILE.npy, or `embeddings` of an .npz; in random order) are items,
and queries that no method was fitted to. True neighbours are the ten nearest by cosine
of the centred embeddings. --tune compares settings with other queries and fewer items,
and ends.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import collections
import functools
import json
import pathlib
from typing import Any

import numpy as np
import threadpoolctl

from benchmarks import measure
from ncl_jax.encoder import InvertedIndex, NonNegativeEncoder, nearest, recall
from ncl_jax.errors import InputError

K = 10
# Of an active entry: two of its index, as D is at most 65,536, and one of its value.
ENTRY_BYTES = 3
RECIPE = {
  "objective": "csr",
  "gamma": 0.1,
  "learning_rate": 0.01,
  "epochs": 8,
  "random_state": 0,
}
# The codes, each by its best settings of --tune.
CODES: dict[str, dict[str, Any]] = {
  "CSR": {},
  "reconstruction": {"objective": "reconstruction"},
  "NCL": {"objective": "contrastive", "temperature": 0.05, "noise": 0.5},
}
OURS = "CSR"
LONGER = "CSR 4k"  # queries of four times as many active dimensions
NCL = CODES["NCL"]
TUNED: tuple[dict[str, Any], ...] = (
  {"objective": "reconstruction", "learning_rate": 1e-3},
  {"objective": "reconstruction", "learning_rate": 3e-3},
  {"objective": "reconstruction"},
  {"objective": "reconstruction", "tied": False},
  {"gamma": 0.01},
  {},
  {"gamma": 0.3},
  {"gamma": 1.0},
  {"epochs": 24},
  NCL,
  NCL | {"learning_rate": 3e-3},
  NCL | {"noise": 0.0},
  NCL | {"noise": 0.2, "temperature": 0.2},
)
TUNING_QUERIES = 500


def main() -> None:
  """Prints the tables, or the one of the settings."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--embeddings", required=True, help="FILE.npy or FILE.npz")
  parser.add_argument("--items", type=int, default=10_000)
  parser.add_argument("--queries", type=int, default=1000)
  parser.add_argument("--dimensions", type=int, default=512, help="D of the codes")
  parser.add_argument("--active", default="16,32,8", help="dimensions of a code")
  parser.add_argument("--tune", action="store_true", help="compare settings, and end")
  parser.add_argument("--figure", default="", help="file for a figure: .svg or .png")
  flags = parser.parse_args()
  rows = read(flags.embeddings)
  if flags.tune:
    measure.finish("Recall@10 by settings", list(tuned(rows, flags)), flags.json)
    return
  from studies.codes import rivals  # needs faiss

  items, queries, true = parts(rows, slice(flags.items), slice(-flags.queries, None))
  document = {
    "embeddings": pathlib.Path(flags.embeddings).name,
    "items": len(items),
    "queries": len(queries),
    "width": items.shape[1],
    "dimensions": flags.dimensions,
    "machine": measure.machine(),
    "rows": [],
  }
  # One thread each, so that CPU time is the time of a query.
  rivals.faiss.omp_set_num_threads(1)
  for active in map(int, flags.active.split(",")):
    size = ENTRY_BYTES * active
    searches = [rivals.dense(items, queries, K)]
    searches += rivals.compressed(items, queries, K, size)
    for name, changed in CODES.items():
      encoder = fitted(items, flags.dimensions, changed | {"n_active": active})
      for method, search in searches_of(name, encoder, items, queries):
        searches.append(rivals.Rival(method, size, search))
    found = scored(searches, true)
    contestants = {str(i): one.search for i, one in enumerate(searches)}
    with threadpoolctl.threadpool_limits(1):
      spent = measure.interleaved(contestants, flags.repeats)
    for i, row in enumerate(found):
      row["ms"] = 1000 * spent[str(i)]["cpu"] / len(queries)
    document["rows"] += found
    # After each size, so that a run that is stopped leaves something.
    if flags.json:
      pathlib.Path(flags.json).write_text(json.dumps(document, indent=1) + "\n")
  print("\n".join(shown(document)))
  if flags.figure:
    draw(document["rows"], flags.figure)


def read(file: str) -> np.ndarray:
  """Embeddings [N, E] float32; their order must be random."""
  rows = np.load(file)
  return np.float32(rows["embeddings"] if file.endswith(".npz") else rows)


def parts(
  rows: np.ndarray, items: slice, queries: slice
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(items [N, E], queries [M, E], true neighbours [M, K]), centred, of unit length.

  Raises:
    InputError: there are too few rows for both.
  """
  numbers = np.arange(len(rows))
  if np.intersect1d(numbers[items], numbers[queries]).size:
    raise InputError(f"{len(rows)} rows are too few: queries must not be items")
  mean = rows[items].mean(0)
  near, asked = unit(rows[items] - mean), unit(rows[queries] - mean)
  return near, asked, nearest(near, asked, K)


def unit(x: np.ndarray) -> np.ndarray:
  """Rows of length 1."""
  return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def fitted(items: np.ndarray, dimensions: int, changed: dict) -> NonNegativeEncoder:
  """An encoder of the study's settings."""
  settings = {"sparse_output": True} | RECIPE | changed
  return NonNegativeEncoder(dimensions, **settings).fit(items)


def in_bytes(codes, levels: int = 255):
  """The codes as they are after their values were rounded, to fit in a byte each."""
  step = codes.data.max() / levels
  codes.data = np.rint(codes.data / step) * step
  codes.eliminate_zeros()
  return codes


def searched(encoder: NonNegativeEncoder, items: np.ndarray, queries: np.ndarray):
  """The search of an inverted index of an encoder's codes."""
  index = InvertedIndex(in_bytes(encoder.transform(items)))
  return functools.partial(index.nearest, encoder.transform(queries), K)


def searches_of(name: str, encoder: NonNegativeEncoder, items, queries):
  """(method, search): queries as sparse as items, and of CSR longer ones, too."""
  search = searched(encoder, items, queries)
  yield name, search
  if name == OURS:
    longer = encoder.set_params(n_active=4 * encoder.n_active).transform(queries)
    yield LONGER, functools.partial(search.func, longer, K)


def scored(searches, true: np.ndarray) -> list[dict[str, Any]]:
  """Recall of each search, and by how much those of CSR are better.

  "minus" holds, for each other method of the same size, the mean difference of a
  query's recall and the half-width of its 95 % interval over queries.
  """
  hits = {}
  for one in searches:
    pairs = zip(one.search(), true, strict=True)
    shares = [len(np.intersect1d(a, b)) / true.shape[1] for a, b in pairs]
    hits[one.method, one.size] = np.array(shares)
  found = []
  for (method, size), own in hits.items():
    row = {"method": method, "bytes": size, "recall": float(own.mean())}
    if method in (OURS, LONGER):
      row["minus"] = {
        other: [float(np.mean(own - x)), 1.96 * float(np.std(own - x) / len(x) ** 0.5)]
        for (other, place), x in hits.items()
        if place == size and other != method
      }
    found.append(row)
  return found


def tuned(rows: np.ndarray, flags):
  """The lines of the table of settings; the queries follow the items."""
  asked = slice(flags.items, flags.items + TUNING_QUERIES)
  items, queries, true = parts(rows, slice(flags.items), asked)
  for changed in TUNED:
    encoder = fitted(items, flags.dimensions, {"n_active": 16} | changed)
    found = recall(searched(encoder, items, queries)(), true)
    print(changed, found, flush=True)
    yield changed | {"recall": found}


def tables(folder: pathlib.Path) -> list[str]:
  """The page's tables of this program, from its file in a folder."""
  return shown(json.loads((folder / "glosses.json").read_text()))


def shown(document: dict[str, Any]) -> list[str]:
  """Tables by bytes: recall, by how much CSR is better, and time."""
  by: dict[int, dict[str, dict]] = collections.defaultdict(dict)
  for row in document["rows"]:
    by[row["bytes"]][row["method"]] = row
  whole = by.pop(4 * document["width"])["dense"]
  by = dict(sorted(by.items()))
  quality, better, time = [], [], []
  for size, rows in by.items():
    first = {"bytes": size, "active": size // ENTRY_BYTES}
    quality.append(first | {m: row["recall"] for m, row in rows.items()})
    time.append(
      first | {m: row["ms"] for m, row in rows.items()} | {"dense": whole["ms"]}
    )
    for method in (OURS, LONGER):
      minus = rows[method]["minus"]
      cells = {m: f"{x:+.3f} ± {half:.3f}" for m, (x, half) in minus.items()}
      line = {"bytes": size, "of": method}
      better.append(line | {m: cells.get(m) for m in rows if m != LONGER})
  lines = []
  for table in (quality, better, time):
    lines += [*measure.table(table), ""]
  return lines[:-1]


def draw(rows: list[dict], file: str) -> None:
  """Recall over bytes, and over the time of a query."""
  import matplotlib

  matplotlib.use("agg")
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
  labels = {"bytes": "bytes of an item", "ms": "CPU ms of a query, one thread"}
  for axis, column in zip(axes, labels, strict=True):
    for i, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
      own = [row for row in rows if row["method"] == method]
      line = sorted((row[column], row["recall"]) for row in own)
      axis.plot(*zip(*line, strict=True), marker="o", color=f"C{i}", label=method)
    axis.set_xscale("log")
    axis.set(xlabel=labels[column], ylim=(0, 1.02))
    axis.grid(alpha=0.3)
  axes[0].set_ylabel(f"recall@{K}")
  axes[0].legend(fontsize="small")
  pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(file)
  print(f"figure: {file}")


if __name__ == "__main__":
  main()
