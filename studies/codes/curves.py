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
  parser.add_argument("--items", type=int, default=40_000)
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
  encoders = {
    name: [fitted(items, name, seed, flags.encoders) for seed in range(flags.seeds)]
    for name in (OURS, "reconstruction")
  }
  document = started(flags, items, queries)
  for active in flags.active:
    if ENTRY_BYTES * active in {row["bytes"] for row in document["rows"]}:
      continue
    searches = list(everything(items, queries, encoders, active))
    hits = collections.defaultdict(list)
    for method, _, search in searches:
      hits[method].append(found(search(), true))
      print(active, method, hits[method][-1].mean(), flush=True)
    if flags.tune:
      continue
    spent = timed(searches, flags.repeats, len(queries))
    document["rows"] += compared(hits, spent, active)
    # After each size, so that a run that is stopped leaves something.
    pathlib.Path(flags.json).write_text(json.dumps(document, indent=1) + "\n")
  print("\n".join(shown(document)))
  if flags.figure:
    draw(document["rows"], flags.figure)


def fitted(items: np.ndarray, name: str, seed: int, folder: str) -> NonNegativeEncoder:
  """The encoder of a seed: read from the folder, or trained and written there."""
  file = pathlib.Path(folder) / f"{name.lower()}{seed}.safetensors"
  if not file.exists():
    changed = {"objective": name.lower(), "random_state": seed}
    made = NonNegativeEncoder(DIMENSIONS, **RECIPE | TRAINED | changed).fit(items)
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
    "seeds": flags.seeds,
    "machine": measure.machine(),
    "rows": [],
  }


def everything(
  items: np.ndarray, queries: np.ndarray, encoders: dict, active: int
) -> Iterator[tuple[str, int, Search]]:
  """(method, seed, search) of all methods at a size; rivals have seed 0."""
  from studies.codes import rivals  # needs faiss

  size = ENTRY_BYTES * active
  made = [rivals.dense(items, queries, K)]
  made += rivals.compressed(items, queries, K, size)
  made += rivals.listed(items, queries, K, size, PROBES)
  for rival in made:
    yield rival.method, 0, rival.search
  chosen = np.random.default_rng(0).permutation(len(items))[:DIMENSIONS]
  yield ROWS, 0, of_rows(items, queries, items[chosen], active)
  for seed, encoder in enumerate(encoders[OURS]):
    for method, search in of_codes(encoder, items, queries, active):
      yield method, seed, search
    index = InvertedIndex(in_bytes(encoder.encode_items(items), LEVELS))
    yield PURSUIT, seed, of_queries(index, encoder, queries)
  for seed, encoder in enumerate(encoders["reconstruction"]):
    stored = encoder.set_params(n_active=active).encode_items(items)
    index = InvertedIndex(in_bytes(stored, LEVELS))
    yield PLAIN, seed, of_queries(index, encoder, queries)


def of_codes(encoder, items, queries, active: int) -> Iterator[tuple[str, Search]]:
  """(method, search) of codes that the encoder computes, without pursuit."""
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


def of_queries(index: InvertedIndex, encoder, queries) -> Search:
  """A search that computes the queries' codes, too."""
  return lambda: index.nearest(encoder.encode_queries(queries), K)


def found(positions: np.ndarray, true: np.ndarray) -> np.ndarray:
  """[M] share of each query's true neighbours."""
  pairs = zip(positions, true, strict=True)
  return np.array([len(np.intersect1d(a, b)) / true.shape[1] for a, b in pairs])


def timed(searches, repeats: int, queries: int) -> dict[str, float]:
  """CPU milliseconds of a query of each method, of its first seed."""
  import faiss

  contestants = {method: search for method, seed, search in searches if seed == 0}
  # One thread each, so that CPU time is the time of a query.
  faiss.omp_set_num_threads(1)
  with threadpoolctl.threadpool_limits(1):
    spent = measure.interleaved(contestants, repeats)
  return {method: 1000 * row["cpu"] / queries for method, row in spent.items()}


def compared(hits: dict[str, list], spent: dict[str, float], active: int) -> list[dict]:
  """A row for each method: recall over seeds, time, and what others are behind by.

  "minus" holds, for each other method, the mean difference of a query's recall, itself
  a mean over seeds, and the half-width of its 95 % interval over queries.
  """
  means = {method: np.mean(each, axis=0) for method, each in hits.items()}
  rows = []
  for method, own in means.items():
    seeds = [float(np.mean(one)) for one in hits[method]]
    row = {"method": method, "bytes": ENTRY_BYTES * active, "recall": float(own.mean())}
    row |= {"seeds": seeds, "ms": spent[method]}
    if method == PURSUIT:
      row["minus"] = {
        other: [float(np.mean(own - x)), 1.96 * float(np.std(own - x) / len(x) ** 0.5)]
        for other, x in means.items()
        if other != method
      }
    rows.append(row)
  return rows


def shown(document: dict[str, Any]) -> list[str]:
  """Tables: recall by bytes, what others are behind by, and recall over time."""
  by: dict[int, dict[str, dict]] = collections.defaultdict(dict)
  for row in document["rows"]:
    by[row["bytes"]][row["method"]] = row
  quality, better, time = [], [], []
  for size, rows in sorted(by.items()):
    first = {"bytes": size, "active": size // ENTRY_BYTES}
    plain = {m: row for m, row in rows.items() if m not in CURVES and m != "dense"}
    quality.append(first | {m: row["recall"] for m, row in plain.items()})
    minus = rows[PURSUIT]["minus"]
    cells = {m: f"{minus[m][0]:+.3f} ± {minus[m][1]:.3f}" for m in plain if m in minus}
    spread = max(rows[PURSUIT]["seeds"]) - min(rows[PURSUIT]["seeds"])
    better.append({"bytes": size} | cells | {"range over seeds": spread})
    for method, row in rows.items():
      if method in CURVES or method in TIMED:
        one = {"recall": row["recall"], "ms": row["ms"]}
        time.append({"bytes": size, "method": method} | one)
  lines: list[str] = []
  for table in (quality, better, time):
    lines += [*measure.table(table), ""]
  return lines[:-1]


TIMED = ("dense", "PCA", "PQ", "binary", OURS, PURSUIT)


if __name__ == "__main__":
  main()
