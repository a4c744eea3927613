r"""Pursuit on CSR's decoder, and dense queries: curves of recall, bytes and time.

  python -m studies.codes.glosses --out=glosses
  python -m studies.codes.curves --embeddings=glosses/glosses.npz --encoders=glosses \
      --json=studies/codes/data/curves.json --figure=studies/codes/curves.svg

Rows of --embeddings are items, and at the end queries, as in studies.codes.run.
Encoders are kept in --encoders, and sizes that --json has are not measured again.
--tune prints the recall of other queries, those after the items, and ends.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import collections
import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
import threadpoolctl

from benchmarks import measure
from ncl_jax.encoder import InvertedIndex, NonNegativeEncoder
from ncl_jax.encoder.pursuit import pursue
from studies.codes.run import (
  LONGER,
  OURS,
  RECIPE,
  TUNING_QUERIES,
  K,
  draw,
  in_bytes,
  parts,
  read,
  unit,
)

# Ten bits of an entry are its index, six its value.
DIMENSIONS, LEVELS, ENTRY_BYTES = 1024, 63, 2
TRAINED = {"epochs": 3, "n_active": 24}
ACTIVE = (32, 24, 12, 48)
PURSUIT, DECODED = "CSR pursuit", "CSR decoder"
PLAIN, ROWS = "reconstruction pursuit", "rows pursuit"
PROBES = (1, 4, 16)  # of 256 lists of IVF-PQ
CURVES = tuple(f"IVF-PQ, {n} lists" for n in PROBES)

Search = Callable[[], np.ndarray]


def main() -> None:
  """Measures each size, and prints the tables."""
  parser = measure.arguments(__doc__)
  parser.add_argument("--embeddings", required=True, help="FILE.npy or FILE.npz")
  parser.add_argument("--encoders", required=True, help="folder for fitted encoders")
  parser.add_argument("--items", type=int, default=20_000)
  parser.add_argument("--trained", type=int, default=40_000, help="rows for encoders")
  parser.add_argument("--queries", type=int, default=1000)
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--active", type=int, nargs="+", default=ACTIVE)
  parser.add_argument("--tune", action="store_true", help="other queries, no time")
  parser.add_argument("--figure", default="", help="file for a figure: .svg or .png")
  flags = parser.parse_args()
  rows = read(flags.embeddings)
  asked = slice(-flags.queries, None)
  if flags.tune:
    asked = slice(flags.items, flags.items + TUNING_QUERIES)
  items, queries, true = parts(rows, slice(flags.items), asked)
  train = rows[: flags.trained]
  train = unit(train - train.mean(0))
  document = started(flags, items, queries)
  for active in flags.active:
    if f"{active} {PURSUIT} 0" in document["hits"]:
      continue
    encoder = fitted(train, OURS, 0, flags.encoders)
    searches = [*of_rivals(items, queries, active)]
    searches += of_encoder(encoder, items, queries, active)
    for method, search in searches:
      note(document, active, method, 0, found(search(), true))
    for method, spent in timed(searches, flags.repeats, len(queries)).items():
      document["ms"][f"{active} {method}"] = spent
    write(document, flags.json)
  for seed, name in itertools.product(range(flags.seeds), (OURS, "reconstruction")):
    for active in flags.active:
      method = PURSUIT if name == OURS else PLAIN
      if f"{active} {method} {seed}" in document["hits"]:
        continue
      encoder = fitted(train, name, seed, flags.encoders)
      if name == OURS:
        searches = of_encoder(encoder, items, queries, active)
      else:
        searches = [(PLAIN, of_pursuit(encoder, items, queries, active))]
      for method, search in searches:
        note(document, active, method, seed, found(search(), true))
      write(document, flags.json)
  print("\n".join(shown(document)))
  if flags.figure:
    draw([row for rows in compared(document).values() for row in rows], flags.figure)


def note(document: dict, active: int, method: str, seed: int, hits: np.ndarray) -> None:
  """Keeps the recall of each query."""
  document["hits"][f"{active} {method} {seed}"] = [int(round(x * K)) for x in hits]
  print(active, method, seed, hits.mean(), flush=True)


def write(document: dict, file: str) -> None:
  """After each step, so that a run that is stopped leaves something."""
  if file:
    text = json.dumps(document, separators=(",", ":")).replace('],"', '],\n"')
    pathlib.Path(file).write_text(text + "\n")


def fitted(train: np.ndarray, name: str, seed: int, folder: str) -> NonNegativeEncoder:
  """The encoder of a seed: read from the folder, or trained and written there."""
  file = pathlib.Path(folder) / f"{name.lower()}{seed}.safetensors"
  if not file.exists():
    changed = {"objective": name.lower(), "random_state": seed}
    made = NonNegativeEncoder(DIMENSIONS, **RECIPE | TRAINED | changed).fit(train)
    file.parent.mkdir(parents=True, exist_ok=True)
    made.save(file)
    print(f"{file}: explained variance {made.explained_variance_:.3f}", flush=True)
  return NonNegativeEncoder.load(file).set_params(sparse_output=True)


def started(flags, items: np.ndarray, queries: np.ndarray) -> dict[str, Any]:
  """The document: what the file has, or an empty one."""
  if flags.json and pathlib.Path(flags.json).exists():
    return json.loads(pathlib.Path(flags.json).read_text())
  return {
    "embeddings": pathlib.Path(flags.embeddings).name,
    "items": len(items),
    "queries": len(queries),
    "width": items.shape[1],
    "machine": measure.machine(),
    "hits": {},
    "ms": {},
  }


def of_rivals(items, queries, active: int) -> Iterator[tuple[str, Search]]:
  """(method, search) of what needs no encoder."""
  from studies.codes import rivals  # needs faiss

  # One thread each, so that CPU time is the time of a query.
  rivals.faiss.omp_set_num_threads(1)
  size = ENTRY_BYTES * active
  made = [rivals.dense(items, queries, K)]
  made += rivals.compressed(items, queries, K, size)
  made.append(rivals.rotated(items, queries, K, size))
  made += rivals.listed(items, queries, K, size, PROBES)
  for rival in made:
    yield rival.method, rival.search
  chosen = np.random.default_rng(0).permutation(len(items))[:DIMENSIONS]
  yield ROWS, of_rows(items, queries, items[chosen], active)


def of_encoder(encoder, items, queries, active: int) -> Iterator[tuple[str, Search]]:
  """(method, search) of an encoder of CSR."""
  encoder.set_params(n_active=active, normalize=True)
  index = InvertedIndex(in_bytes(encoder.transform(items), LEVELS))
  for name, factor in ((OURS, 1), (LONGER, 4)):
    asked = encoder.set_params(n_active=factor * active).transform(queries)
    yield name, functools.partial(index.nearest, asked, K)
  encoder.set_params(n_active=active, normalize=False)
  eye = np.eye(DIMENSIONS, dtype=np.float32)
  directions = encoder.inverse_transform(eye) - encoder.inverse_transform(0 * eye[:1])
  stored = of_unit_length(encoder.transform(items), directions)
  decoded = InvertedIndex(in_bytes(stored, LEVELS))
  yield (
    DECODED,
    lambda: decoded.nearest(queries @ directions.T, K),
  )
  yield PURSUIT, of_pursuit(encoder, items, queries, active)


def of_rows(items, queries, directions: np.ndarray, active: int) -> Search:
  """Pursuit on items drawn at random: no training at all."""
  parts = [
    scipy.sparse.csr_array(pursue(items[start : start + 256], directions, active))
    for start in range(0, len(items), 256)
  ]
  stored = of_unit_length(scipy.sparse.vstack(parts, format="csr"), directions)
  index = InvertedIndex(in_bytes(stored, LEVELS))
  return lambda: index.nearest(queries @ directions.T, K)


def of_unit_length(codes, directions: np.ndarray):
  """The codes, scaled so that what they decode to has unit length."""
  length = np.maximum(np.linalg.norm(codes @ directions, axis=1), 1e-12)
  return scipy.sparse.csr_array(scipy.sparse.diags_array(1 / length) @ codes)


def of_pursuit(encoder, items, queries, active: int) -> Search:
  """A search that computes the queries' codes, too."""
  stored = encoder.set_params(n_active=active).encode_items(items)
  index = InvertedIndex(in_bytes(stored, LEVELS))
  return lambda: index.nearest(encoder.encode_queries(queries), K)


def found(positions: np.ndarray, true: np.ndarray) -> np.ndarray:
  """[M] share of each query's true neighbours."""
  pairs = zip(positions, true, strict=True)
  return np.array([len(np.intersect1d(a, b)) / true.shape[1] for a, b in pairs])


def timed(searches, repeats: int, queries: int) -> dict[str, float]:
  """CPU milliseconds of a query of each method."""
  with threadpoolctl.threadpool_limits(1):
    spent = measure.interleaved(dict(searches), repeats)
  return {method: 1000 * row["cpu"] / queries for method, row in spent.items()}


def compared(document: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
  """By active entries a row for each method: recall over seeds, and time.

  "minus" holds, for each other method, the mean difference of a query's recall, itself
  a mean over seeds, with the half-width of its 95 % interval over queries.
  """
  by: dict[int, dict[str, list]] = collections.defaultdict(dict)
  for key, hits in document["hits"].items():
    active, _, rest = key.partition(" ")
    method, _, _ = rest.rpartition(" ")
    by[int(active)].setdefault(method, []).append(np.array(hits) / K)
  found = {}
  for active, each in sorted(by.items()):
    means = {method: np.mean(hits, axis=0) for method, hits in each.items()}
    found[active] = [
      {
        "method": method,
        "bytes": ENTRY_BYTES * active,
        "recall": float(own.mean()),
        "seeds": [float(np.mean(one)) for one in each[method]],
        "ms": document["ms"].get(f"{active} {method}"),
        "minus": {other: interval(own - x) for other, x in means.items()},
      }
      for method, own in means.items()
    ]
  return found


def interval(difference: np.ndarray) -> str:
  """Mean over queries and half-width of its 95 % interval."""
  half = 1.96 * np.std(difference) / len(difference) ** 0.5
  return f"{difference.mean():+.3f} ± {half:.3f}"


def tables(folder: pathlib.Path) -> list[str]:
  """The page's tables of this program, from its files in a folder."""
  files = (folder / f"{name}.json" for name in ("curves", "images"))
  first, second = (shown(json.loads(file.read_text())) for file in files)
  return [*first, "", *second]


def shown(document: dict[str, Any]) -> list[str]:
  """Tables: recall by bytes, what others are behind by, and recall over time."""
  quality, better, time = [], [], []
  for active, rows in compared(document).items():
    by = {row["method"]: row for row in rows}
    first = {"bytes": ENTRY_BYTES * active, "active": active}
    plain = [m for m in by if m not in CURVES[:-1] and m != "dense"]
    quality.append(first | {m: by[m]["recall"] for m in plain})
    own = by[PURSUIT]
    cells = {m: own["minus"][m] for m in plain if m != PURSUIT}
    low, high = min(own["seeds"]), max(own["seeds"])
    seeds = {"seeds": len(own["seeds"]), "lowest": low, "highest": high}
    better.append({"bytes": ENTRY_BYTES * active} | cells | seeds)
    for method in TIMED:
      if method not in by:
        continue  # OPQ came later
      one = {"recall": by[method]["recall"], "ms": by[method]["ms"]}
      time.append(first | {"method": method} | one)
  lines: list[str] = []
  for table in (quality, better, time):
    lines += [*measure.table(table), ""]
  return lines[:-1]


TIMED = ("dense", "PCA", "PQ", "OPQ", *CURVES, "binary", OURS, PURSUIT)


if __name__ == "__main__":
  main()
