r"""What codes of texts' embeddings say of classes, against the embeddings themselves.

  python -m studies.codes.words --texts=symbols/names.npz --out=words
  python -m studies.codes.sentences --data=words/texts.npz

Encoders are trained without labels on the training texts; every figure is of the texts
held out. Minutes on two cores.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import argparse
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV

from benchmarks import measure
from ncl_jax import metrics
from ncl_jax.encoder import NonNegativeEncoder
from ncl_jax.evaluators import feature_stats
from studies.codes.run import CODES, RECIPE, unit

DIMENSIONS, ACTIVE = 256, 8
NEIGHBOURS = 20  # training texts that vote
ACTIVITY = 0.03  # of the texts: purity's share, as in the reports
THRESHOLD = 1e-5
FIGURES = {
  "sparsity": 100.0,
  "live_dimensions": 1.0,
  "consistency_abs": 100.0,
  "consistency_abs_chance": 100.0,
  "purity": 100.0,
  "purity_chance": 100.0,
}
# A number's name in the stored data -> its key in a result, where they differ.
KEYS = {"live_dimensions": "active_dimensions"}


def main() -> None:
  """Prints the table, means over seeds."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument(
    "--data", default="words/texts.npz", help="of studies.codes.words"
  )
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--epochs", type=int, default=60)
  parser.add_argument("--json", default="", help="file for the table as JSON")
  flags = parser.parse_args()
  with np.load(flags.data) as file:
    data = {name: file[name] for name in file}
  names, numbers = np.unique(data["train_labels"], return_inverse=True)
  place = {name: k for k, name in enumerate(names)}
  labels = {"train": numbers, "test": np.array([place[x] for x in data["test_labels"]])}
  x = {part: data[f"{part}_embeddings"] for part in labels}
  dense = {part: unit(rows - x["train"].mean(0)) for part, rows in x.items()}
  rows = [
    {"codes": "dense"} | figures(dense, labels, 0),
    {"codes": "dense, negative values cut"}
    | figures({part: unit(np.maximum(f, 0)) for part, f in dense.items()}, labels, 0),
  ]
  kinds: dict[str, dict[str, Any]] = CODES | {"untrained": {"epochs": 0}}
  for name, changed in kinds.items():
    seeds = []
    for seed in range(flags.seeds):
      settings = RECIPE | {"epochs": flags.epochs} | changed | {"random_state": seed}
      made = NonNegativeEncoder(DIMENSIONS, n_active=ACTIVE, **settings).fit(x["train"])
      codes = {part: made.transform(rows) for part, rows in x.items()}
      seeds.append(figures(codes, labels, seed))
    rows.append({"codes": name} | {k: mean(k, seeds) for k in seeds[0]})
  measure.finish(
    f"{len(x['test'])} texts held out, {len(x['train'])} to train on, {len(names)} "
    f"classes; codes of {DIMENSIONS} dimensions, {ACTIVE} active",
    rows,
    flags.json,
    f"Per cent, but for live dimensions; means over {flags.seeds} seeds. neighbours: "
    f"weighted vote of {NEIGHBOURS} training texts; probe: logistic regression, "
    f"penalty by cross-validation; purity: at {ACTIVITY:.0%} activity; largest class: "
    f"{100 * np.bincount(labels['test']).max() / len(labels['test']):.1f}.",
  )


def mean(name: str, seeds: list[dict[str, float]]) -> float:
  """Over seeds."""
  return float(np.mean([row[name] for row in seeds]))


def figures(
  f: dict[str, np.ndarray], labels: dict[str, np.ndarray], seed: int
) -> dict[str, float]:
  """The figures of one kind of features, by part [N, D], rows of unit length."""
  classes = int(labels["train"].max()) + 1
  found = feature_stats.statistics(
    f["test"],
    labels["test"],
    classes,
    threshold=THRESHOLD,
    activation_rate=ACTIVITY,
    seed=seed,
  )
  near = metrics.knn_predict(
    f["train"], labels["train"], f["test"], classes, k=NEIGHBOURS
  )
  penalties = {"C": np.logspace(-1, 4, 6)}
  probe = GridSearchCV(LogisticRegression(max_iter=500), penalties, cv=3)
  probe.fit(f["train"], labels["train"])
  right = {"neighbours": near, "probe": probe.predict(f["test"])}
  shares = {k: 100 * float(np.mean(v == labels["test"])) for k, v in right.items()}
  own = {name: found[KEYS.get(name, name)] for name in FIGURES}
  return shares | {name: factor * own[name] for name, factor in FIGURES.items()}


if __name__ == "__main__":
  main()
