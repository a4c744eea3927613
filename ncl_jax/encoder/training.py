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

from ncl_jax import losses, numerics, optimizers
from ncl_jax.checks import divergence
from ncl_jax.encoder import autoencoder
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.encoder.stopping import Stopping

Array = jax.Array
# Rows that are read, scaled and moved to the device at a time.
HELD = 2**15
OBJECTIVES = ("csr", "contrastive", "reconstruction")


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The settings of training; hashable, for static arguments.

  They are explained in `NonNegativeEncoder`. `steps` is the number of updates, None if
  the end is unknown; `labelled` makes rows with the same label positives.
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
  steps: int | None
  labelled: bool

  @property
  def optimizer(self) -> optax.GradientTransformation:
    """AdamW with warm-up over a tenth of the steps, then cosine decay to 0.

    The rate is constant if the number of steps is unknown.
    """
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
  """Random views of centred embeddings [N, V, E], by dropout of columns and noise.

  `deviation` [E] is the standard deviation of each column.
  """
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

  Args:
    params: of the network.
    key: of the views.
    batch: "x" [N, V, E] with V = 2, or 1 where both views are the row itself;
      "deviation" [E]; "labels" [N] if they are used.
    silent: [D] updates since a unit was last in a code.
    recipe: the settings.

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
  """Initial parameters, optimizer state, and updates since units were in a code.

  `live` [E] tells which columns of the embeddings are not constant.
  """
  params = recipe.network.init(key, live)
  silent = jnp.zeros(recipe.network.out, jnp.int32)
  return params, recipe.optimizer.init(params), silent


@functools.partial(jax.jit, static_argnums=4, donate_argnums=0)
def updates(
  state: Any, key: Array, first: Array, data: dict[str, Array], recipe: Recipe
) -> tuple[Any, Array, Array]:
  """Makes an update for each batch.

  Args:
    state: from `start` or earlier updates; donated.
    key: the same for all updates.
    first: [] number of earlier updates.
    data: "x" [S, N, V, E] and, if they are used, "labels" [S, N]: S batches, see
      `loss`; "deviation" [E].
    recipe: the settings.

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
    held: [M] rows that training does not see, or None.
  """

  parts: Sequence[np.ndarray]
  scaling: Scaling
  labels: np.ndarray | None = None
  held: np.ndarray | None = None

  @functools.cached_property
  def rows(self) -> np.ndarray:
    """The rows that training sees."""
    rows = np.arange(len(self.parts[0]))
    return rows if self.held is None else np.delete(rows, self.held)

  def batches(self, rows: np.ndarray, views: int) -> dict[str, np.ndarray]:
    """The data of `updates` for rows [S, N], each `views` times or with its partner."""
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


def train(
  data: Data,
  recipe: Recipe,
  *,
  epochs: int,
  batch_size: int,
  seed: int,
  patience: int | None = None,
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
  """Trains the network.

  Args:
    data: on the host.
    recipe: the settings.
    epochs: passes over the rows, without incomplete batches.
    batch_size: rows in a batch.
    seed: of initialisation, order and views.
    patience: ends training after this many epochs without a higher recall of
      `data.held`, and returns the parameters of the highest; None: never.

  Returns:
    (parameters as numpy arrays, mean loss of each epoch, recall after each epoch).

  Raises:
    FloatingPointError: if the loss, the gradient or a parameter is no longer finite;
      names the step.
  """
  keys = jax.random.split(numerics.key(seed))
  calls, steps = divided(len(data.rows), batch_size)
  state = start(keys[0], jnp.asarray(data.scaling.deviation > 0), recipe)
  stopping = None
  if patience is not None and data.held is not None:
    rows = data.parts[0]
    stopping = Stopping.of(rows, data.rows, data.held, data.scaling, patience)
  curve, done = [], 0
  with random_access(data.parts):
    for number in range(epochs):
      order = np.random.default_rng([seed, number]).permutation(len(data.rows))
      order = order[: calls * steps * batch_size].reshape(calls, steps, batch_size)
      seen = []
      for rows in order:
        batches = data.batches(data.rows[rows], recipe.views)
        state, values, faults = updates(
          state, keys[1], jnp.int32(done), batches, recipe
        )
        done += steps
        divergence.check(np.asarray(faults), done)
        seen.append(np.mean(values))
      curve.append(float(np.mean(seen)))
      if stopping and stopping.ends(state[0], recipe.network):
        break
  params = stopping.best if stopping and stopping.scores else jax.device_get(state[0])
  scores = stopping.scores if stopping else []
  return params, np.asarray(curve), np.asarray(scores)


@contextlib.contextmanager
def random_access(parts: Sequence[np.ndarray]) -> Iterator[int]:
  """Tells the kernel that rows of memory-mapped arrays are read in random order.

  Otherwise it reads 128 KiB from the disk for each row. Yields how many are mapped.
  """
  mapped = [base for base in map(_base, parts) if isinstance(base, mmap.mmap)]
  known = hasattr(mmap, "MADV_RANDOM")  # not on Windows
  for file in mapped if known else ():
    file.madvise(mmap.MADV_RANDOM)
  try:
    yield len(mapped)
  finally:
    for file in mapped if known else ():
      file.madvise(mmap.MADV_NORMAL)


def _base(x: Any) -> Any:
  """What holds an array's memory."""
  while isinstance(x, np.ndarray):
    x = x.base
  return x
