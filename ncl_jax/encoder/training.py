"""Trains a projector on fixed embeddings, with one compiled program per epoch."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ncl_jax import losses, models, nonneg, numerics, optimizers
from ncl_jax.checks import divergence
from ncl_jax.models.layers import Linear

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Network:
  """The network from an embedding to its code; hashable, for static arguments.

  Attributes:
    out: D, dimensions of a code.
    hidden: width of a hidden layer; 0 = a linear projector.
    active: largest number of active dimensions in a code; 0 = all.
    transform: see `nonneg.NAMES`.
  """

  out: int
  hidden: int
  active: int
  transform: str

  @property
  def projector(self) -> models.Projector | Linear:
    """The layers from embeddings to z."""
    return models.Projector(self.hidden, self.out) if self.hidden else Linear(self.out)

  def codes(self, params: Any, x: Array) -> Array:
    """[.., E] -> [.., D]."""
    z = jnp.asarray(self.projector.apply({"params": params}, x))
    return code(z, self.transform, self.active)


@dataclasses.dataclass(frozen=True)
class Recipe:
  """The settings of training; hashable, for static arguments.

  They are explained in `NonNegativeEncoder`. `steps` is the number of updates;
  `labelled` makes rows with the same label positives.
  """

  network: Network
  temperature: float
  noise: float
  dropout: float
  reconstruction: float
  learning_rate: float
  weight_decay: float
  steps: int
  labelled: bool

  @property
  def optimizer(self) -> optax.GradientTransformation:
    """AdamW with warm-up over a tenth of the steps, then cosine decay to 0."""
    schedule = optimizers.warmup_cosine(
      self.learning_rate,
      warmup_steps=self.steps // 10,
      total_steps=max(1, self.steps),
      start=0.0,
    )
    return optimizers.adamw(schedule, weight_decay=self.weight_decay)


def code(z: Array, transform: str, active: int) -> Array:
  """`f = g / |g|`, where g keeps the `active` largest entries of the transform of z.

  Args:
    z: [.., D] projector outputs.
    transform: see `nonneg.NAMES`.
    active: number of entries kept, the first of tied ones; 0, D or more = all.

  Returns:
    [.., D], rows of unit length or all zero.

  >>> code(jnp.array([[4.0, 1.0, 3.0, -9.0]]), "relu", 2).round(1).tolist()
  [[0.800000011920929, 0.0, 0.6000000238418579, 0.0]]
  """
  f = nonneg.apply(z, transform)
  if 0 < active < f.shape[-1]:
    rows = f.reshape(-1, f.shape[-1])
    values, columns = jax.lax.top_k(rows, active)
    # By position instead of value, because ties at the edge would make codes too long.
    number = jnp.arange(len(rows))[:, None]
    f = jnp.zeros_like(rows).at[number, columns].set(values).reshape(f.shape)
  return numerics.l2_normalize(f)


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


def loss(params: Any, key: Array, batch: dict[str, Array], recipe: Recipe) -> Array:
  """NT-Xent of the codes of two views, plus the weighted reconstruction error.

  The error is `mean |u - f W - b|^2`, where u is the clean embedding at unit length. A
  decoder that knows nothing has error 1, so errors are of the same order as the loss.

  Args:
    params: {"projector"} and, with a reconstruction, {"decoder"}.
    key: of the views.
    batch: "x" [N, 2, E], "deviation" [E], and "labels" [N] if they are used.
    recipe: the settings.
  """
  x = batch["x"]
  seen = views(key, x, batch["deviation"], recipe)
  f = recipe.network.codes(params["projector"], seen)
  if recipe.labelled:
    rows = losses.sup_con(f, batch["labels"], temperature=recipe.temperature)
  else:
    rows = losses.nt_xent(f, temperature=recipe.temperature)
  value = rows.mean()
  if recipe.reconstruction:
    decoder = Linear(x.shape[-1])
    decoded = jnp.asarray(decoder.apply({"params": params["decoder"]}, f))
    error = jnp.sum((numerics.l2_normalize(x) - decoded) ** 2, axis=-1)
    value += recipe.reconstruction * error.mean()
  return value


@functools.partial(jax.jit, static_argnums=(1, 2))
def start(key: Array, width: int, recipe: Recipe) -> tuple[Any, Any]:
  """Initial parameters and optimizer state for embeddings of a width."""
  keys = jax.random.split(key)
  params = {"projector": recipe.network.projector.init(keys[0], jnp.zeros((1, width)))}
  if recipe.reconstruction:
    params["decoder"] = Linear(width).init(keys[1], jnp.zeros((1, recipe.network.out)))
  params = {name: part["params"] for name, part in params.items()}
  return params, recipe.optimizer.init(params)


@functools.partial(jax.jit, static_argnums=5, donate_argnums=0)
def epoch(
  state: Any,
  key: Array,
  first: Array,
  data: dict[str, Array],
  order: Array,
  recipe: Recipe,
) -> tuple[Any, Array, Array]:
  """Makes an update for each row of `order`.

  Args:
    state: from `start` or an earlier epoch; donated.
    key: the same for all epochs.
    first: [] number of earlier updates.
    data: "x" [N, E], "deviation" [E]; "other" [N, E] if there are pairs; "labels" [N]
      if they are used.
    order: [steps, batch] rows of the data.
    recipe: the settings.

  Returns:
    (state, losses [steps], `divergence.mark` of each step [steps]).
  """

  def step(carry, rows):
    (params, opt_state), done = carry
    one = data["x"][rows]
    other = data["other"][rows] if "other" in data else one
    batch = {"x": jnp.stack([one, other], 1), "deviation": data["deviation"]}
    if recipe.labelled:
      batch["labels"] = data["labels"][rows]
    value, gradients = jax.value_and_grad(loss)(
      params, jax.random.fold_in(key, done), batch, recipe
    )
    updates, opt_state = recipe.optimizer.update(gradients, opt_state, params)
    params = optax.apply_updates(params, updates)
    fault = divergence.mark(value, gradients, params)
    return ((params, opt_state), done + 1), (value, fault)

  # A loop is fine on CPU, because dense layers have no slow convolution gradients.
  (state, _), (values, faults) = jax.lax.scan(step, (state, first), order)
  return state, values, faults


def train(
  data: dict[str, np.ndarray],
  recipe: Recipe,
  *,
  epochs: int,
  batch_size: int,
  seed: int,
) -> tuple[Any, np.ndarray]:
  """Trains a projector.

  Args:
    data: as in `epoch`, on the host.
    recipe: the settings.
    epochs: passes over the rows, without incomplete batches.
    batch_size: rows in a batch.
    seed: of initialisation, order and views.

  Returns:
    (the projector's parameters as numpy arrays, mean loss of each epoch).

  Raises:
    FloatingPointError: if the loss, the gradient or a parameter is no longer finite;
      names the step.
  """
  keys = jax.random.split(numerics.key(seed))
  count, width = data["x"].shape
  state = start(keys[0], width, recipe)
  on_device = jax.device_put(data)
  steps = count // batch_size
  curve = []
  for number in range(epochs):
    rows = np.random.default_rng([seed, number]).permutation(count)
    order = rows[: steps * batch_size].reshape(steps, batch_size).astype(np.int32)
    first = jnp.int32(number * steps)
    state, values, faults = epoch(state, keys[1], first, on_device, order, recipe)
    divergence.check(np.asarray(faults), (number + 1) * steps)
    curve.append(float(np.mean(values)))
  return jax.device_get(state[0]["projector"]), np.asarray(curve)


@functools.partial(jax.jit, static_argnums=2)
def encode(params: Any, x: Array, network: Network) -> Array:
  """Codes [N, D] of centred embeddings [N, E], with a trained projector."""
  # Accelerators would otherwise multiply in lower precision, which changes neighbours.
  with jax.default_matmul_precision("float32"):
    return network.codes(params, x)
