"""Trains a sparse autoencoder on fixed embeddings, one compiled program per epoch."""

import contextlib
import dataclasses
import functools
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.utils import gen_batches

from ncl_jax import losses, numerics, optimizers
from ncl_jax.checks import divergence
from ncl_jax.encoder import autoencoder, stopping
from ncl_jax.encoder.coding import Params
from ncl_jax.encoder.scaling import Scaling

Array = jax.Array
# What training needs to continue, besides the parameters, on the host: "moments.N", the
# leaves of the optimizer's state; "silent" [D], updates since a unit was in a code;
# "done", the number of updates; and "seed".
Progress = dict[str, np.ndarray]
# Rows that are read, scaled and moved to the device at a time.
HELD = 2**15
OBJECTIVES = ("csr", "contrastive", "reconstruction")


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The settings of training; hashable, for static arguments.

  They are explained in `NonNegativeEncoder`. `labelled` makes rows with the same label
  positives; `steps` is the number of updates, None if the end is unknown.
  """

  network: autoencoder.Autoencoder
  objective: str
  beta: float
  gamma: float
  temperature: float
  noise: float
  dropout: float
  learning_rate: float
  weight_decay: float
  labelled: bool
  steps: int | None = None

  @property
  def optimizer(self) -> optax.GradientTransformation:
    """AdamW; if steps are known, with warm-up over a tenth of them and cosine decay."""
    if self.steps is None:
      return optimizers.adamw(self.learning_rate, weight_decay=self.weight_decay)
    schedule = optimizers.warmup_cosine(
      self.learning_rate,
      warmup_steps=self.steps // 10,
      total_steps=max(1, self.steps),
      start=0.0,
    )
    return optimizers.adamw(schedule, weight_decay=self.weight_decay)

  @property
  def views(self) -> int:
    """Views of a row: 1 where both are the row itself."""
    return 2 if self.noise or self.dropout else 1


def views(key: Array, x: Array, deviation: Array, recipe: Recipe) -> Array:
  """Random views of centred embeddings [N, V, E]; `deviation` [E] of each column."""
  dropped, noisy = jax.random.split(key)
  if recipe.dropout:
    keep = jax.random.bernoulli(dropped, 1 - recipe.dropout, x.shape)
    x = jnp.where(keep, x / (1 - recipe.dropout), 0)
  if recipe.noise:
    scale = recipe.noise * deviation[None, None]
    x = x + scale * jax.random.normal(noisy, x.shape, x.dtype)
  return x


def loss(
  params: Any, key: Array, batch: dict[str, Array], silent: Array, recipe: Recipe
) -> tuple[Array, Array]:
  """The loss of a batch, and how often each unit is in a code.

  - "reconstruction": `L_k + L_4k / 8 + beta L_auxiliary`, see
    `autoencoder.reconstruction`. Codes of views reconstruct the clean embedding.
  - "contrastive": NT-Xent of the codes of two views, or SupCon if rows have labels.
  - "csr": the first, plus gamma times the second.

  `batch` is from `Data.batches`, without its first axis; `silent` [D] are the updates
  since a unit was last in a code.

  Returns:
    (loss [], number of the batch's codes in which a unit is active [D]).

  Source: Wen et al. 2025 (arXiv:2503.01776), Section 3.
  """
  x = batch["x"]
  seen = views(key, x, batch["deviation"], recipe)
  scores = recipe.network.scores(params, seen.reshape(-1, x.shape[2]))
  value = jnp.zeros(())
  if recipe.objective == "contrastive":
    (z,) = autoencoder.top_k(scores, (recipe.network.active,))
  else:
    parts, z = autoencoder.reconstruction(
      recipe.network, params, x.reshape(-1, x.shape[2]), scores, silent
    )
    value += parts["k"] + parts["4k"] / 8 + recipe.beta * parts["auxiliary"]
  if recipe.objective != "reconstruction":
    f = z.reshape(*x.shape[:2], -1)
    f = jnp.concatenate([f, f], axis=1) if x.shape[1] == 1 else f
    if recipe.labelled:
      rows = losses.sup_con(f, batch["labels"], temperature=recipe.temperature)
    else:
      rows = losses.nt_xent(f, temperature=recipe.temperature)
    value += (recipe.gamma if recipe.objective == "csr" else 1) * rows.mean()
  return value, jnp.sum(z > 0, axis=0)


@functools.partial(jax.jit, static_argnums=2)
def start(key: Array, live: Array, recipe: Recipe) -> tuple[Any, Any, Array]:
  """Initial parameters, optimizer state, and updates since units were in a code."""
  params = recipe.network.init(key, live)
  silent = jnp.zeros(recipe.network.out, jnp.int32)
  return params, recipe.optimizer.init(params), silent


@functools.partial(jax.jit, static_argnums=4, donate_argnums=0)
def updates(
  state: Any, key: Array, first: Array, data: dict[str, Array], recipe: Recipe
) -> tuple[Any, Array, Array]:
  """Makes an update for each of S batches.

  `state` is from `start` or earlier updates, of which there were `first` [], and is
  donated. `key` is the same for all; `data` is from `Data.batches`.

  Returns:
    (state, losses [S], `divergence.mark` of each step [S]).
  """
  deviation = data["deviation"]

  def step(carry, batch):
    (params, opt_state, silent), done = carry
    noisy = jax.random.fold_in(key, done)
    batch = batch | {"deviation": deviation}
    (value, used), gradients = jax.value_and_grad(loss, has_aux=True)(
      params, noisy, batch, silent, recipe
    )
    change, opt_state = recipe.optimizer.update(gradients, opt_state, params)
    params = optax.apply_updates(params, change)
    fault = divergence.mark(value, gradients, params)
    silent = jnp.where(used > 0, 0, silent + 1)
    return ((params, opt_state, silent), done + 1), (value, fault)

  batches = {name: part for name, part in data.items() if name != "deviation"}
  # A loop is fine on CPU, because dense layers have no slow convolution gradients.
  (state, _), (values, faults) = jax.lax.scan(step, (state, first), batches)
  return state, values, faults


@dataclasses.dataclass(frozen=True, eq=False)
class Data:
  """The training rows, which may lie in a memory-mapped file.

  Attributes:
    parts: X [N, E], and the partners [N, E] if there are pairs.
    scaling: applied to rows as they are read.
    labels: [N] int32, or None.
  """

  parts: Sequence[np.ndarray]
  scaling: Scaling
  labels: np.ndarray | None = None

  def batches(self, rows: np.ndarray, views: int) -> dict[str, np.ndarray]:
    """S batches of N rows [S, N], each `views` times or with its partner.

    Returns:
      "x" [S, N, V, E], where V = 1 stands for two views that are the row itself;
      "deviation" [E]; and "labels" [S, N] if they are used.
    """
    # In the order of the file, if they lie in one.
    asked, places = np.unique(rows, return_inverse=True)
    parts = [self.scaling(part[asked])[places.ravel()] for part in self.parts]
    x = np.stack(parts if len(parts) > 1 else parts * views, axis=1)
    found = {"x": x.reshape(*rows.shape, *x.shape[1:])}
    if self.labels is not None:
      found["labels"] = self.labels[rows]
    return found | {"deviation": self.scaling.unit()}


def divided(rows: int, batch_size: int) -> tuple[int, int]:
  """(number of calls of `updates` in an epoch, batches in each).

  A call takes about `HELD` rows, all calls equally many. The rows left over wait for an
  epoch in another order.

  >>> divided(1000, 100)
  (1, 10)
  """
  steps = rows // batch_size
  calls = min(steps, -(-steps * batch_size // HELD))
  return calls, steps // calls


def begin(seed: int, live: np.ndarray, recipe: Recipe) -> tuple[Params, Progress]:
  """Initial parameters and progress; `live` [E]: whether columns are not constant."""
  key = jax.random.split(numerics.key(seed))[0]
  return _paused(start(key, jnp.asarray(live), recipe), 0, seed)


def advance(
  params: Params, progress: Progress, data: Data, recipe: Recipe, batch_size: int
) -> tuple[Params, Progress, float]:
  """One pass over the rows in their order; changes none of its arguments.

  Rows after the last full batch are a smaller batch, and a single one joins the batch
  before.

  Returns:
    (parameters, progress, mean loss of the batches).

  Raises:
    FloatingPointError: as `train`.
  """
  leaves, tree = jax.tree.flatten(jax.eval_shape(recipe.optimizer.init, params))
  leaves = [progress[f"moments.{n}"] for n in range(len(leaves))]
  silent = np.int32(progress["silent"])
  # Copies, because `updates` overwrites its state.
  state = jax.tree.map(jnp.array, (params, jax.tree.unflatten(tree, leaves), silent))
  seed, done = int(progress["seed"]), int(progress["done"])
  key = jax.random.split(numerics.key(seed))[1]
  rows, seen = np.arange(len(data.parts[0])), []
  # One batch a call: no chunk of another length needs another program.
  for part in gen_batches(len(rows), batch_size, min_batch_size=2):
    batch = data.batches(rows[None, part], recipe.views)
    state, value, faults = updates(state, key, jnp.int32(done), batch, recipe)
    done += 1
    divergence.check(np.asarray(faults), done)
    seen.append(float(value[0]))
  return *_paused(state, done, seed), float(np.mean(seen))


def _paused(state: Any, done: int, seed: int) -> tuple[Params, Progress]:
  params, moments, silent = jax.device_get(state)
  leaves = {f"moments.{n}": leaf for n, leaf in enumerate(jax.tree.leaves(moments))}
  # Counts as floats, exactly: a file may hold whole numbers only without axes.
  counts = {"silent": np.float64(silent), "done": done, "seed": seed}
  return params, {name: np.asarray(x) for name, x in (leaves | counts).items()}


def train(
  data: Data,
  recipe: Recipe,
  *,
  epochs: int,
  batch_size: int,
  seed: int,
  patience: int | None,
) -> tuple[Params, np.ndarray, np.ndarray]:
  """Trains the network on shuffled rows, without incomplete batches.

  Unless `patience` is None, some rows are held out, and training ends after so many
  epochs without a higher recall of them, with the parameters of the highest.

  Returns:
    (parameters as numpy arrays, mean loss of each epoch, recall after each epoch).

  Raises:
    InputError: if too few rows could be held out.
    FloatingPointError: if the loss, the gradient or a parameter is no longer finite;
      names the step.
  """
  X, watch = data.parts[0], None
  seen = np.arange(len(X))
  if patience is not None:
    held = stopping.held_out(len(X), seed)
    seen = np.delete(seen, held)
    watch = stopping.Stopping(X, seen, held, data.scaling, patience)
  size = min(batch_size, len(seen))
  calls, steps = divided(len(seen), size)
  recipe = dataclasses.replace(recipe, steps=calls * steps * epochs)
  keys = jax.random.split(numerics.key(seed))
  state = start(keys[0], jnp.asarray(data.scaling.deviation > 0), recipe)
  curve, done = [], 0
  with random_access(data.parts):
    for number in range(epochs):
      order = np.random.default_rng([seed, number]).permutation(len(seen))
      order = order[: calls * steps * size].reshape(calls, steps, size)
      epoch = []
      for part in order:
        batches = data.batches(seen[part], recipe.views)
        first = jnp.int32(done)
        state, values, faults = updates(state, keys[1], first, batches, recipe)
        done += steps
        divergence.check(np.asarray(faults), done)
        epoch.append(np.mean(values))
      curve.append(float(np.mean(epoch)))
      if watch and watch.ends(state[0], recipe.network):
        break
  scores = watch.scores if watch else []
  params = watch.best if watch and scores else jax.device_get(state[0])
  return params, np.asarray(curve), np.asarray(scores)


@contextlib.contextmanager
def random_access(parts: Sequence[np.ndarray]) -> Iterator[None]:
  """Tells the kernel that rows of memory-mapped arrays are read in random order.

  Otherwise it reads 128 KiB from the disk for each row.
  """
  mapped: list[mmap.mmap] = []
  for part in parts:
    base: Any = part
    while isinstance(base, np.ndarray):  # to what holds its memory
      base = base.base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_RANDOM"):  # not on Windows
      mapped.append(base)
  for file in mapped:
    file.madvise(mmap.MADV_RANDOM)
  try:
    yield
  finally:
    for file in mapped:
      file.madvise(mmap.MADV_NORMAL)
