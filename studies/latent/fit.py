"""Features of a sample space trained by a contrastive loss: a free table, or an MLP."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ncl_jax import checks, losses, nonneg, numerics, optimizers
from ncl_jax.checks import divergence
from studies.latent.space import Space

LOSSES = ("spectral", "nt_xent")
NETWORKS = ("table", "mlp")
INPUTS, HIDDEN = 32, 128
BATCH_SIZE, TEMPERATURE = 64, 0.2  # of NT-Xent
RATES = {"table": 0.02, "mlp": 0.003}  # of the first step


@dataclasses.dataclass(frozen=True)
class Model:
  """What is fitted.

  Attributes:
    loss: "spectral" or "nt_xent".
    transform: see `nonneg.NAMES`; "identity" is CL.
    width: D.
    network: "table": a free vector for each sample; "mlp": a network of one hidden
      layer, of a random normal vector for each sample.

  Raises:
    InputError: for another loss or network.
  """

  loss: str
  transform: str
  width: int
  network: str = "table"

  def __post_init__(self) -> None:
    """Checks the names."""
    checks.choice("loss", self.loss, LOSSES)
    checks.choice("network", self.network, NETWORKS)


def fit(space: Space, model: Model, *, seeds: int, steps: int = 1500) -> np.ndarray:
  """Trains features by Adam, a cosine schedule to 0, several seeds in one program.

  The spectral loss is that of the whole space, all pairs with their probabilities;
  NT-Xent is that of random batches of pairs, as there are no expectations in it.

  Args:
    space: the samples.
    model: what is fitted.
    seeds: how many independent starts, 0, 1, ...
    steps: updates.

  Returns:
    [seeds, M, D] float32 features after the transform, as the loss saw them; of NT-Xent
    their rows of unit length.

  Raises:
    FloatingPointError: if the gradient or a parameter of a seed stops being finite,
      naming the step.
  """
  arrays = [jnp.asarray(a, jnp.float32) for a in (space.prior, space.conditional)]
  keys = jax.vmap(numerics.key)(jnp.arange(seeds))
  found, faults = jax.device_get(_fit(model, steps, *arrays, keys))
  divergence.check(np.bitwise_or.reduce(faults, axis=0), steps)
  divergence.check_tree(found, f"features of {model.transform} after {steps} steps")
  return found


@functools.partial(jax.jit, static_argnums=(0, 1))
def _fit(model, steps, prior, conditional, keys):
  samples, width, network = len(conditional), model.width, model.network
  pairs = (conditional * prior[None]) @ conditional.T
  schedule = optax.cosine_decay_schedule(RATES[network], steps)
  optimizer = optimizers.standard_promotion(optax.adam(schedule))

  def features(params):
    z = params["table"] if network == "table" else _mlp(params)
    return nonneg.apply(z, model.transform)

  def value(params, key):
    f = features(params)
    if model.loss == "spectral":
      both = jnp.broadcast_to(f[:, None], (samples, samples, width))
      z = jnp.stack([both, both.swapaxes(0, 1)], axis=2)
      z = z.reshape(-1, 2, width)
      return losses.spectral(z, weights=pairs.reshape(-1))
    one, two, three = jax.random.split(key, 3)
    chosen = jax.random.categorical(one, jnp.log(prior), shape=(BATCH_SIZE,))
    log = jnp.log(conditional.T)[chosen]
    rows = [jax.random.categorical(key, log, axis=1) for key in (two, three)]
    z = f[jnp.stack(rows, axis=1)]
    return losses.nt_xent(z, temperature=TEMPERATURE).mean()

  def train(key):
    start, batches = jax.random.split(key)
    params = _init(start, network, samples, width)

    def step(state, key):
      params, opt_state = state
      gradient = jax.grad(value)(params, key)
      updates, opt_state = optimizer.update(gradient, opt_state, params)
      params = optax.apply_updates(params, updates)
      return (params, opt_state), divergence.mark((), gradient, params)

    state = (params, optimizer.init(params))
    (params, _), faults = jax.lax.scan(step, state, jax.random.split(batches, steps))
    f = features(params)
    return (losses.l2_normalize(f) if model.loss == "nt_xent" else f), faults

  return jax.vmap(train)(keys)


def _init(key, network, samples, width):
  if network == "table":
    # Small and rather positive: far below 0 a transform would let nothing pass.
    return {"table": 0.1 + 0.1 * jax.random.normal(key, (samples, width))}
  shapes = {"x": (samples, INPUTS), "one": (INPUTS, HIDDEN), "two": (HIDDEN, width)}
  keys = jax.random.split(key, len(shapes))
  params = {
    name: jax.random.normal(k, shape)
    for k, (name, shape) in zip(keys, shapes.items(), strict=True)
  }
  params["one"] *= (2 / INPUTS) ** 0.5
  params["two"] *= HIDDEN**-0.5
  return params | {"bias": jnp.zeros(HIDDEN), "shift": jnp.zeros(width)}


def _mlp(params):
  # The inputs are data: nothing is learnt there.
  x = jax.lax.stop_gradient(params["x"])
  hidden = jax.nn.relu(x @ params["one"] + params["bias"][None])
  return hidden @ params["two"] + params["shift"][None]
