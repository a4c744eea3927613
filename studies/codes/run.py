r"""Search with sparse codes against PCA, truncation and product quantisation.

  python -m studies.codes.run --repeats=5 --json=codes.json --figure=codes.svg
  python -m studies.codes.run --tune
  python -m studies.codes.run --embeddings=words/words.npz --dimensions=512 \
      --active=4,8,16,32 --figure=words.svg

Fashion-MNIST's pixels as 784-dimensional embeddings (Debian: dataset-fashion-mnist), or
rows of --embeddings (FILE.npy, or `embeddings` of an .npz): items, and queries that no
method was fitted to. True neighbours are the ten nearest by cosine of the centred
embeddings. --tune compares weights of the reconstruction term on training images, or
rows, that are no items, and ends.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import pathlib

import numpy as np
import scipy.sparse
import threadpoolctl
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA

from benchmarks import measure
from ncl_jax import data
from ncl_jax.encoder import InvertedIndex, NonNegativeEncoder, nearest, recall
from ncl_jax.encoder.search import largest
from ncl_jax.errors import InputError

K = 10
SHORTER = (2, 4, 8)
# Of an active entry: two of its index, as D is at most 65,536, and one of its value.
ENTRY_BYTES = 3
CENTROIDS = 256  # of a part: a byte
# The weight by --tune among WEIGHTS, the learning rate on the same images; temperature
# and noise by hand on 500 test images that the table leaves out.
RECIPE = {
  "temperature": 0.05,
  "noise": 0.5,
  "reconstruction": 300.0,
  "learning_rate": 3e-3,
  "random_state": 0,
}
WEIGHTS = (0.0, 3.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


def main() -> None:
  """Prints the table, or the one of the weights."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--source", default="idx:/usr/share/datasets/fashion-mnist")
  parser.add_argument("--embeddings", default="", help="FILE.npy or .npz instead")
  parser.add_argument("--items", type=int, default=20_000)
  parser.add_argument("--queries", type=int, default=1000)
  parser.add_argument("--dimensions", type=int, default=1024, help="D of the codes")
  parser.add_argument("--active", default="8,16,32,64", help="dimensions of a code")
  parser.add_argument("--epochs", type=int, default=8)
  parser.add_argument("--tune", action="store_true", help="compare weights, and end")
  parser.add_argument("--figure", default="", help="file for a figure: .svg or .png")
  flags = parser.parse_args()
  items, queries, name = embeddings(flags)
  actives = [int(x) for x in flags.active.split(",")]
  if ENTRY_BYTES * max(actives) > items.shape[1]:
    raise InputError(
      f"--active={flags.active}: codes of {ENTRY_BYTES * max(actives)} bytes, and "
      f"these embeddings have {items.shape[1]} columns, a byte each: fewer"
    )
  mean = items.mean(0)
  dense, asked = unit(items - mean), unit(queries - mean)
  true = nearest(dense, asked, K)
  if flags.tune:
    rows = [tuned(flags, items, queries, true, weight) for weight in WEIGHTS]
    title = "Recall@10 of codes of 32 active dimensions, by the reconstruction's weight"
    note = "Queries: training images that are no items. Other settings as in the table."
    measure.finish(title, rows, flags.json, note)
    return
  rivals = [
    row
    for active in actives
    for row in compressed(dense, asked, true, ENTRY_BYTES * active)
  ]
  codes = [
    row for active in actives for row in encoded(flags, items, queries, true, active)
  ]
  whole = {"method": "dense", "bytes": 4 * dense.shape[1], "recall": 1.0}
  searches = [whole | {"search": lambda: nearest(dense, asked, K)}, *rivals, *codes]
  timed(searches, flags.repeats, len(asked))
  if flags.figure:
    draw(searches, flags.figure)
  measure.finish(
    f"Recall@{K} of {len(items):,} items, {name}, {len(queries):,} queries, codes of "
    f"{flags.dimensions:,} dimensions",
    [line(searches, active) for active in actives],
    flags.json,
    f"bytes: of an item; sparse codes {ENTRY_BYTES} an active dimension (its index 2, "
    "its value 1), all others one a dimension or part. 1/2, 1/4, 1/8: of the "
    "dimensions kept. untrained: the projector before training. ms: CPU time of a "
    f"query on one thread with the choice of the {K} best; NCL by an inverted index, "
    "dense, truncated and PCA by a dense float32 product, PQ by table. PCA <= ms: the "
    "best PCA here that takes no more time than NCL.",
  )


def embeddings(flags) -> tuple[np.ndarray, np.ndarray, str]:
  """Items [N, E], queries [M, E] float32, and what they are."""
  if flags.embeddings:
    rows = np.load(flags.embeddings)
    rows = rows["embeddings"] if flags.embeddings.endswith(".npz") else rows
    rows = rows.astype(np.float32)
    rows = np.random.default_rng(0).permutation(rows)
    if len(rows) < flags.items + flags.queries:
      raise InputError(
        f"{flags.embeddings} has {len(rows):,} rows: --items={flags.items} and "
        f"--queries={flags.queries} together must not be more"
      )
    place = flags.items if flags.tune else len(rows) - flags.queries
    name = pathlib.Path(flags.embeddings).name
    return rows[: flags.items], rows[place : place + flags.queries], name
  source = data.load(flags.source)
  train = source.split("train").images.reshape(source.num_examples("train"), -1)
  test = source.split("test").images.reshape(source.num_examples("test"), -1)
  # Tuning sees no image of the test set.
  asked = (
    train[flags.items :][: flags.queries] if flags.tune else test[-flags.queries :]
  )
  return (
    np.float32(train[: flags.items] / 255),
    np.float32(asked / 255),
    f"pixels of {source.name.rpartition('/')[2]}",
  )


def unit(x: np.ndarray) -> np.ndarray:
  """Rows of length 1."""
  return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def encoder(flags, active: int, **changed) -> NonNegativeEncoder:
  """Not fitted."""
  settings = {"epochs": flags.epochs} | RECIPE | changed
  return NonNegativeEncoder(
    flags.dimensions, n_active=active, sparse_output=True, **settings
  )


def in_bytes(codes):
  """The codes as they are after their values were stored in a byte each."""
  step = codes.data.max() / 255
  codes.data = np.rint(codes.data / step) * step
  codes.eliminate_zeros()
  return codes


def tuned(flags, items, queries, true, weight) -> dict:
  """A line of the table of weights."""
  fitted = encoder(flags, 32, reconstruction=weight).fit(items)
  stored = InvertedIndex(in_bytes(fitted.transform(items)))
  found = stored.nearest(fitted.transform(queries), K)
  return {"weight": weight, "recall": recall(found, true)}


def encoded(flags, items, queries, true, active: int) -> list[dict]:
  """Sparse codes: whole, shortened, and before training."""
  fitted = encoder(flags, active).fit(items)
  kinds = {"NCL": fitted}
  for part in SHORTER:
    kinds[f"NCL 1/{part}"] = fitted.shorten(flags.dimensions // part)
  kinds["untrained"] = encoder(flags, active, epochs=0).fit(items)
  rows = []
  for method, chosen in kinds.items():
    stored = in_bytes(chosen.transform(items))
    index, asked = InvertedIndex(stored), chosen.transform(queries)
    rows.append(
      {
        "method": method,
        "bytes": ENTRY_BYTES * active,
        "recall": recall(index.nearest(asked, K), true),
        "search": lambda index=index, asked=asked: index.nearest(asked, K),
      }
    )
  return rows


def compressed(dense, asked, true, size: int) -> list[dict]:
  """Truncation, PCA and product quantisation to `size` bytes an item."""
  rows = []
  largest = np.argsort(-dense.var(0), kind="stable")[:size]
  pca = PCA(size, svd_solver="covariance_eigh").fit(dense)
  pairs = {
    "truncated": (dense[:, largest], asked[:, largest]),
    "PCA": (pca.transform(dense), pca.transform(asked)),
  }
  for method, (stored, query) in pairs.items():
    step = np.maximum(np.abs(stored).max(0), 1e-12) / 127
    a, b = by_distance(np.rint(stored / step) * step, query)
    rows.append(
      {
        "method": method,
        "bytes": size,
        "recall": recall(nearest(a, b, K), true),
        "search": lambda a=a, b=b: nearest(a, b, K),
      }
    )
  return [*rows, quantised(dense, asked, true, size)]


def by_distance(items, queries) -> tuple[np.ndarray, np.ndarray]:
  """Rows whose inner products are in the order of Euclidean distances, falling."""
  square = -0.5 * np.sum(items**2, axis=1, keepdims=True)
  ones = np.ones((len(queries), 1))
  return (
    np.float32(np.concatenate([items, square], 1)),
    np.float32(np.concatenate([queries, ones], 1)),
  )


def quantised(dense, asked, true, parts: int) -> dict:
  """Product quantisation: the columns in parts, each the number of its centroid."""
  some = np.random.default_rng(0).permutation(len(dense))[:5000]
  numbers, tables = [], []
  # A thread, or as many as there are cores would wait for each other at every batch.
  with threadpoolctl.threadpool_limits(1):
    for columns in np.array_split(np.arange(dense.shape[1]), parts):
      means = MiniBatchKMeans(
        CENTROIDS, batch_size=1024, max_iter=10, n_init=1, random_state=0
      ).fit(dense[some][:, columns])
      centroids = means.cluster_centers_
      numbers.append(means.predict(dense[:, columns]))
      half = 0.5 * np.sum(centroids**2, axis=1)
      tables.append(asked[:, columns] @ centroids.T - half[None])
  # A query's score is the sum of one entry a part of its table: the product with a
  # matrix of ones at these places.
  place = np.stack(numbers, 1) + CENTROIDS * np.arange(parts)[None]
  ends = np.arange(0, place.size + 1, parts)
  ones = np.ones(place.size, np.float32)
  shape = (len(dense), CENTROIDS * parts)
  picked = scipy.sparse.csr_matrix((ones, place.ravel(), ends), shape)
  table = np.float32(np.concatenate(tables, 1))

  def search():
    blocks = (table[i : i + 256].T for i in range(0, len(table), 256))
    return np.concatenate([largest((picked @ block).T, K) for block in blocks])

  return {
    "method": "PQ",
    "bytes": parts,
    "recall": recall(search(), true),
    "search": search,
  }


def timed(rows: list[dict], repeats: int, queries: int) -> None:
  """Adds the milliseconds of a query, on one thread, where they are of interest."""
  rows = [row for row in rows if row["method"] not in ("truncated", "untrained")]
  contestants = {str(i): row["search"] for i, row in enumerate(rows)}
  with threadpoolctl.threadpool_limits(1):
    spent = measure.interleaved(contestants, repeats)
  for i, row in enumerate(rows):
    row["ms"] = 1000 * spent[str(i)]["cpu"] / queries


def line(rows: list[dict], active: int) -> dict:
  """A line of the table."""
  size = ENTRY_BYTES * active
  here = {row["method"]: row for row in rows if row["bytes"] == size}
  ours = here["NCL"]
  quick = [
    row["recall"] for row in rows if row["method"] == "PCA" and row["ms"] <= ours["ms"]
  ]
  dense = next(row for row in rows if row["method"] == "dense")
  return (
    {"active": active, "bytes": size}
    | {method: row["recall"] for method, row in here.items()}
    | {f"{name} ms": here[name]["ms"] for name in ("NCL", "PCA", "PQ")}
    | {"dense ms": dense["ms"], "PCA <= ms": max(quick, default=None)}
  )


def draw(rows: list[dict], file: str) -> None:
  """Recall over bytes, and over the time of a query."""
  import matplotlib

  matplotlib.use("agg")
  import matplotlib.pyplot as plt

  figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
  labels = {"bytes": "bytes of an item", "ms": "CPU ms of a query, one thread"}
  for axis, unit_ in zip(axes, labels, strict=True):
    for i, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
      own = [row for row in rows if row["method"] == method and unit_ in row]
      if not own:
        continue
      points = [(row[unit_], row["recall"]) for row in own]
      (drawn,) = axis.plot(
        *zip(*sorted(points), strict=True), marker="o", color=f"C{i}"
      )
      drawn.set_label(method)
      if method.startswith("NCL 1"):
        drawn.set(linestyle="--", alpha=0.6)
    axis.set_xscale("log")
    axis.set(xlabel=labels[unit_], ylim=(0, 1.02))
    axis.grid(alpha=0.3)
  axes[0].set_ylabel(f"recall@{K}")
  axes[0].legend(fontsize="small")
  pathlib.Path(file).parent.mkdir(parents=True, exist_ok=True)
  figure.savefig(file)
  print(f"figure: {file}")


if __name__ == "__main__":
  main()
