"""Recipes of a projector on frozen features, and its training."""

import dataclasses
import functools
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax import features, losses, models, nonneg, numerics, optimizers
from ncl_jax.runtime import jsonl
from studies import scores
from studies.frozen.run import BATCH, TEMPERATURE, VIEWS

ACTIVE = 15  # clusters that stay of an image: as many as NCL's dimensions


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
