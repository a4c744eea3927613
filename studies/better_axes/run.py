r"""Recipes of NCL and CL on frozen features, chosen by whose dimensions name classes.

  python -m studies.better_axes.run --data=cifar100.npz --features=runs/frozen \
      --out=runs/better_axes --stage=all

--features is the folder of studies.frozen.run after its stage features. The stages
search, train and score resume; README.md says how a recipe is chosen.
"""

import argparse
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from ncl_jax import features, losses, metrics, models, nonneg, numerics, optimizers
from ncl_jax.data.subset import stratified
from ncl_jax.experiments import rivals
from ncl_jax.runtime import compile_cache, jsonl
from studies import scores
from studies.frozen.run import BATCH, TEMPERATURE, TRAINING, VIEWS, loaded

STAGES = ("search", "train", "score")
TUNING_SEED = 100
SEEDS = (31, 32, 33)
CLUSTERS = (256, 512)
ACTIVE = 15  # clusters that stay of an image: as many as NCL's dimensions
WORTH = 0.005  # gain in naming from which on an idea is combined with others
GOAL = 0.02


@dataclasses.dataclass(frozen=True)
class Recipe:
  """How a projector is trained. The defaults are the base, but for the rate."""

  rate: float = 0.0
  transform: str = "identity"
  hidden: int = 512  # 0: one linear layer
  out: int = 256
  epochs: int = 20
  standardised: bool = False
  neighbours: float = 0.0  # share of pairs whose second image is a neighbour
  columns: float = 0.0  # weight of the columns' loss
  squared: bool = False
  start: str = ""  # "cl" or "kmeans"

  @property
  def projector(self) -> models.Projector:
    """Its network."""
    return models.Projector(self.hidden, self.out, depth=2 if self.hidden else 1)


BASE = {
  "cl": Recipe(rate=2e-3),
  "ncl": Recipe(rate=5e-4, transform="rep_relu"),
}
IDEAS: dict[str, dict[str, Any]] = {
  "wide": {"out": 1024},
  "deep": {"hidden": 2048},
  "linear": {"hidden": 0},
  "standardised": {"standardised": True},
  "neighbours": {"neighbours": 0.5},
  "columns": {"columns": 1.0},
  "rate": {"rate": 2},  # the base's times 2
  "long": {"epochs": 60},
}
ONLY_NCL: dict[str, dict[str, Any]] = {
  "squared": {"squared": True},
  "from CL": {"start": "cl"},
  "from k-means": {"start": "kmeans"},
}


def ideas(method: str) -> dict[str, dict[str, Any]]:
  """Those of a method."""
  return IDEAS | (ONLY_NCL if method == "ncl" else {})


def recipe(method: str, names: tuple[str, ...]) -> Recipe:
  """The base with some ideas; rates multiply."""
  made = BASE[method]
  for name in names:
    change = dict(ideas(method)[name])
    change["rate"] = made.rate * change.get("rate", 1)
    made = dataclasses.replace(made, **change)
  return made


def main() -> None:
  """The stages in order."""
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--data", required=True, help="CIFAR-100 as .npz")
  parser.add_argument("--features", required=True, help="folder of studies.frozen.run")
  parser.add_argument("--out", required=True, help="folder for all of it")
  parser.add_argument("--stage", choices=("all", *STAGES), default="all")
  flags = parser.parse_args()
  logging.set_verbosity(logging.INFO)
  compile_cache.set_up()
  out = pathlib.Path(flags.out).expanduser().resolve()
  (out / "data").mkdir(parents=True, exist_ok=True)
  with np.load(flags.data) as arrays:
    train, test = arrays["train_labels"], arrays["test_labels"]
  rows = stratified(train, min(TRAINING, len(train) * 2 // 3))
  rest = np.setdiff1d(np.arange(len(train)), rows)
  h = pathlib.Path(flags.features).expanduser()
  inputs = Inputs(loaded(h / "views"), loaded(h / "train"))
  k = 1 + int(train.max())
  for stage in STAGES if flags.stage == "all" else (flags.stage,):
    if stage == "search":
      held_out = Asked(
        loaded(h / "held_out"), scores.Labels(train[rows], train[rest], k)
      )
      for method in BASE:
        search(method, functools.partial(held_out_row, inputs, held_out, out))
    elif stage == "train":
      for seed in SEEDS:
        for method in BASE:
          trained(inputs, best(out, method), seed, out)
    else:
      score(
        inputs,
        Asked(loaded(h / "test"), scores.Labels(train[rows], test, k)),
        out,
      )
      print("\n".join(tables(out / "data")))


@dataclasses.dataclass(frozen=True)
class Inputs:
  """What projectors are trained on.

  Attributes:
    views: [N, VIEWS, F] features of random views, float16.
    h: [N, F] features of the images themselves.
  """

  views: np.ndarray
  h: np.ndarray

  @functools.cached_property
  def neighbours(self) -> np.ndarray:
    """[N, 10] the nearest other images by cosine."""
    h = scores.unit(np.asarray(self.h, np.float32))
    found = []
    for start in range(0, len(h), 2000):
      near = h[start : start + 2000] @ h.T
      near[np.arange(len(near)), start + np.arange(len(near))] = -2
      found.append(np.argpartition(-near, 10, axis=1)[:, :10])
    return np.concatenate(found)

  @functools.cached_property
  def moments(self) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each feature, [F]."""
    h = np.asarray(self.h, np.float32)
    return h.mean(0), h.std(0) + 1e-3


@dataclasses.dataclass(frozen=True)
class Asked:
  """Images that are scored, and the labels of training images and of these."""

  h: np.ndarray
  labels: scores.Labels


def ready(inputs: Inputs, made: Recipe, h: np.ndarray) -> jax.Array:
  """What the projector sees of features."""
  x = jnp.asarray(h, jnp.float32)
  if made.standardised:
    mean, deviation = inputs.moments
    x = (x - mean) / deviation
  return x


def pairs(inputs: Inputs, made: Recipe, seed: int, epoch: int) -> np.ndarray:
  """All pairs of an epoch, [steps, batch, 2, F] float16; the same for all methods."""
  rng = np.random.default_rng([seed, epoch])
  n = len(inputs.views)
  steps = n // BATCH
  rows = rng.permutation(n)[: steps * BATCH]
  first = rng.integers(VIEWS, size=len(rows))
  second = (first + rng.integers(1, VIEWS, size=len(rows))) % VIEWS
  other = rows
  if made.neighbours:
    near = inputs.neighbours[rows, rng.integers(10, size=len(rows))]
    other = np.where(rng.random(len(rows)) < made.neighbours, near, rows)
  both = np.stack([inputs.views[rows, first], inputs.views[other, second]], axis=1)
  return both.reshape(steps, BATCH, 2, -1)


def fit(inputs: Inputs, made: Recipe, seed: int, params: Any) -> tuple[Any, float]:
  """Trains a projector; returns it and the mean loss of its last epoch."""
  steps = len(inputs.views) // BATCH
  optimizer = optimizers.adamw(
    optimizers.warmup_cosine(
      made.rate, warmup_steps=2 * steps, total_steps=made.epochs * steps
    ),
    weight_decay=1e-4,
  )
  state = optimizer.init(params)
  update = functools.partial(_update, made, optimizer)
  loss = jnp.nan
  for epoch in range(made.epochs):
    found = []
    for pair in pairs(inputs, made, seed, epoch):
      params, state, loss = update(params, state, ready(inputs, made, pair))
      found.append(loss)
    loss = np.mean(jax.device_get(found))
  return params, float(loss)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _update(made, optimizer, params, state, pair):
  n = len(pair)

  def objective(params):
    h = pair.reshape(2 * n, -1)
    f = transformed(made, made.projector.apply(params, h)).reshape(n, 2, -1)
    loss = jnp.mean(losses.nt_xent(f, temperature=TEMPERATURE))
    if made.columns:
      columns = numerics.l2_normalize(f).transpose(2, 1, 0)
      loss += made.columns * jnp.mean(losses.nt_xent(columns, temperature=1.0))
    return loss

  loss, gradient = jax.value_and_grad(objective)(params)
  updates, state = optimizer.update(gradient, state, params)
  return jax.tree.map(jnp.add, params, updates), state, loss


def transformed(made: Recipe, z: jax.Array) -> jax.Array:
  """f before it is scaled to unit length."""
  f = nonneg.apply(z, made.transform)
  return f**2 if made.squared else f


def embedded(inputs: Inputs, made: Recipe, params: Any, h: np.ndarray) -> np.ndarray:
  """f of features, [N, out], rows of unit length."""
  z = made.projector.apply(params, ready(inputs, made, h))
  return np.asarray(features.embed(transformed(made, z), "identity"))


def trained(inputs: Inputs, made: Recipe, seed: int, out: pathlib.Path) -> Any:
  """The parameters of a run, trained if they are not there yet."""
  name = "-".join(str(v) for v in dataclasses.astuple(made)) + f"-seed{seed}.npz"
  file = out / name
  empty = made.projector.init(jax.random.key(seed), jnp.zeros((2, inputs.h.shape[1])))
  leaves, tree = jax.tree.flatten(empty)
  if not file.exists():
    start = empty
    if made.start:
      start = start_from_cl(inputs, made, seed, out)
    params, loss = fit(inputs, made, seed, start)
    draft = file.with_suffix(".draft.npz")
    np.savez(draft, *jax.tree.leaves(params))
    draft.replace(file)
    row = dataclasses.asdict(made) | {"seed": seed, "loss": loss}
    jsonl.append(out / "data" / "runs.jsonl", row)
  with np.load(file) as arrays:
    return jax.tree.unflatten(tree, [arrays[f"arr_{i}"] for i in range(len(leaves))])


def start_from_cl(inputs: Inputs, made: Recipe, seed: int, out: pathlib.Path) -> Any:
  """CL's projector of the same shape, or its clusters as the last layer."""
  same: dict[str, Any] = {"hidden": made.hidden, "standardised": made.standardised}
  if made.start == "cl":
    same["out"] = made.out
  cl = dataclasses.replace(BASE["cl"], **same)
  params = trained(inputs, cl, seed, out)
  if made.start == "cl":
    return params
  from sklearn.cluster import MiniBatchKMeans

  z = np.asarray(cl.projector.apply(params, ready(inputs, cl, inputs.h)))
  model = MiniBatchKMeans(made.out, random_state=seed, n_init=3, batch_size=4096)
  centres = scores.unit(model.fit(scores.unit(z)).cluster_centers_)
  size = float(np.linalg.norm(z, axis=1).mean())
  near = z @ centres.T / size
  # As many clusters of an image stay above zero as NCL has active dimensions.
  offset = float(np.quantile(near, 1 - ACTIVE / made.out))
  last = f"linear{cl.projector.depth}"
  layer = params["params"][last]
  changed = {
    "kernel": layer["kernel"] @ centres.T / size,
    "bias": layer["bias"] @ centres.T / size - offset,
  }
  changed = {name: jnp.asarray(value, jnp.float32) for name, value in changed.items()}
  return {"params": params["params"] | {last: changed}}


def post_hoc(f: scores.Features, seed: int) -> dict[str, scores.Features]:
  """The methods applied after CL."""
  codes = {
    f"k-means, {n}": rivals.kmeans(f.train, n, ACTIVE, seed) for n in CLUSTERS
  } | {
    f"varimax, {share:.0%}": rivals.varimax(f.train, share) for share in (0.95, 0.99)
  }
  return {name: scores.made(encode, f) for name, encode in codes.items()}


def namings(f: scores.Features, labels: scores.Labels) -> tuple[float, float]:
  """Naming accuracy with one sign and with both."""
  arguments = (f.train, labels.train, f.test, labels.test, labels.num_classes)
  one, both = (
    float(metrics.naming_accuracy(*arguments, signed=signed))
    for signed in (False, True)
  )
  return one, both


def held_out_row(
  inputs: Inputs,
  held_out: Asked,
  out: pathlib.Path,
  method: str,
  names: tuple[str, ...],
) -> dict[str, Any]:
  """The row of a recipe in the search, made if it is not there yet."""
  file = out / "data" / "search.jsonl"
  for row in jsonl.read(file):
    if row["method"] == method and row["ideas"] == list(names):
      return row
  made = recipe(method, names)
  params = trained(inputs, made, TUNING_SEED, out)
  f = scores.Features(
    *(embedded(inputs, made, params, h) for h in (inputs.h, held_out.h))
  )
  labels = held_out.labels
  row = {"method": method, "ideas": list(names), "naming": max(namings(f, labels))}
  if method == "cl":
    found = post_hoc(f, TUNING_SEED)
    row["post_hoc"] = {name: max(namings(code, labels)) for name, code in found.items()}
  guess = metrics.knn_predict(f.train, labels.train, f.test, labels.num_classes)
  row["neighbours"] = float(np.mean(np.asarray(guess) == labels.test))
  row["active"] = float((np.abs(f.test) > 1e-5).sum(1).mean())
  jsonl.append(file, row)
  logging.info("%s", row)
  return row


def value(row: dict[str, Any]) -> float:
  """What a search raises: NCL's own naming, or the best made of CL's features."""
  return max(row["post_hoc"].values()) if "post_hoc" in row else row["naming"]


def search(
  method: str, row: Callable[[str, tuple[str, ...]], dict[str, Any]]
) -> tuple[str, ...]:
  """Each idea, then those that help together.

  Args:
    method: "cl" or "ncl".
    row: makes the row of a method and some ideas.

  Returns:
    The ideas of the best row.
  """
  base = value(row(method, ()))
  alone = {name: value(row(method, (name,))) for name in ideas(method)}
  helpful = [name for name in alone if alone[name] >= base + WORTH]
  helpful.sort(key=lambda name: -alone[name])
  if not helpful:
    return max(((), *((name,) for name in alone)), key=lambda n: value(row(method, n)))
  chosen: tuple[str, ...] = (helpful[0],)
  highest = alone[helpful[0]]
  for name in sorted(helpful[1:], key=lambda name: name == "long"):
    found = value(row(method, (*chosen, name)))
    if found > highest:
      chosen, highest = (*chosen, name), found
  return chosen


def best(out: pathlib.Path, method: str) -> Recipe:
  """The recipe that the search chose."""
  rows = [r for r in jsonl.read(out / "data" / "search.jsonl") if r["method"] == method]
  return recipe(method, tuple(max(rows, key=value)["ideas"]))


def score(inputs: Inputs, test: Asked, out: pathlib.Path) -> None:
  """The measures of the runs that count; of the post-hoc methods the naming alone."""
  rows = []
  for seed in SEEDS:
    for method in BASE:
      made = best(out, method)
      params = trained(inputs, made, seed, out)
      f = scores.Features(
        *(embedded(inputs, made, params, h) for h in (inputs.h, test.h))
      )
      row = {"features": method.upper(), "seed": seed, "dimensions": made.out}
      rows.append(row | scores.measured(f, test.labels, seed))
      for name, code in (post_hoc(f, seed) if method == "cl" else {}).items():
        one, both = namings(code, test.labels)
        row = {"features": name, "seed": seed, "dimensions": code.test.shape[1]}
        rows.append(row | {"naming": both, "naming_one_sign": one})
    jsonl.write(out / "data" / "scores.jsonl", rows)
  recipes = {method: dataclasses.asdict(best(out, method)) for method in BASE}
  (out / "data" / "recipes.json").write_text(json.dumps(recipes, indent=1) + "\n")


def tables(folder: pathlib.Path) -> list[str]:
  """The README's tables and the verdict, from the data."""
  searched = jsonl.read(folder / "search.jsonl")
  lines = [
    "| ideas | NCL: naming | neighbours on f | active | CL: naming | best post hoc | "
    "neighbours on f |",
    "|---|--:|--:|--:|--:|--:|--:|",
  ]
  for names in dict.fromkeys(tuple(row["ideas"]) for row in searched):
    of = {row["method"]: row for row in searched if tuple(row["ideas"]) == names}
    cells = ["–"] * 6
    if "ncl" in of:
      row = of["ncl"]
      cells[:3] = [
        f"{100 * row['naming']:.1f}",
        f"{100 * row['neighbours']:.1f}",
        f"{row['active']:.0f}",
      ]
    if "cl" in of:
      row = of["cl"]
      name = max(row["post_hoc"], key=row["post_hoc"].get)
      cells[3:] = [
        f"{100 * row['naming']:.1f}",
        f"{100 * value(row):.1f} ({name})",
        f"{100 * row['neighbours']:.1f}",
      ]
    lines.append(f"| {' + '.join(names) or 'base'} | " + " | ".join(cells) + " |")
  made = ["\n".join(lines), "", found(searched)]
  rows = jsonl.read(folder / "scores.jsonl")
  return [*made, "", scored(rows), "", verdict(rows)] if rows else made


def found(searched: list[dict[str, Any]]) -> str:
  """Both best rows of the search, in a sentence."""
  named = {}
  for method in BASE:
    row = max((row for row in searched if row["method"] == method), key=value)
    named[method] = f"{100 * value(row):.1f} % ({' + '.join(row['ideas']) or 'base'})"
  return f"Best on held-out images: NCL {named['ncl']}, post hoc {named['cl']}."


SCORED = {
  key: scores.COLUMNS[key]
  for key in ("naming", "naming_one_sign", "axis_gain", "ewp", "neighbours", "l0")
}


def scored(rows: list[dict[str, Any]]) -> str:
  """Means over seeds on the test images, as Markdown."""
  lines = [
    "| f | dimensions | " + " | ".join(SCORED.values()) + " |",
    "|---|" + "--:|" * (1 + len(SCORED)),
  ]
  for name in dict.fromkeys(row["features"] for row in rows):
    mine = [row for row in rows if row["features"] == name]
    cells = [f"{np.mean([row['dimensions'] for row in mine]):.0f}"]
    for key in SCORED:
      if key not in mine[0]:
        cells.append("–")
        continue
      mean = np.mean([row[key] for row in mine])
      cells.append(f"{mean:.1f}" if key == "l0" else f"{100 * mean:.1f}")
    lines.append(f"| {name} | " + " | ".join(cells) + " |")
  return "\n".join(lines)


def verdict(rows: list[dict[str, Any]]) -> str:
  """The preregistered sentence."""

  def values(name, key):
    found = {row["seed"]: row[key] for row in rows if row["features"] == name}
    return [found[seed] for seed in sorted(found)]

  names = {row["features"] for row in rows} - {"CL", "NCL"}
  rival, key = max(
    ((name, key) for name in sorted(names) for key in ("naming", "naming_one_sign")),
    key=lambda which: float(np.mean(values(*which))),
  )
  difference = scores.paired(values("NCL", "naming"), values(rival, key))
  word = "undecided"
  if difference.interval:
    low, high = difference.interval
    if difference.mean >= GOAL and low > 0:
      word = "reached"
    elif high < GOAL:
      word = "refuted"
  return (
    f"{100 * GOAL:g} points above the best post-hoc method ({rival}): {word}. NCL "
    f"minus rival {scores.points(difference)}."
  )


if __name__ == "__main__":
  main()
