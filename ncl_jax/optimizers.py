"""Optimizers and learning-rate schedules, as optax transformations."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ncl_jax import checks
from ncl_jax.numerics import at_least_float32


def decay_mask(params: Any) -> Any:
  """True for each parameter that weight decay applies to: those of 2-D or higher.

  Biases and the scales of normalisation layers are 1-D and are not decayed.

  >>> decay_mask({"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)})
  {'bias': False, 'kernel': True}
  """
  return jax.tree.map(lambda p: jnp.ndim(p) > 1, params)


def warmup_cosine(
  base: float,
  *,
  warmup_steps: int,
  total_steps: int,
  start: float = 3e-5,
  end: float = 0.0,
) -> optax.Schedule:
  """Linear warm-up from `start` to `base`, then half a cosine down to `end`.

  With W warm-up and T total steps, step t counted from 0:
  `start + (base - start) t / (W - 1)` for t < W, then
  `end + (base - end) (1 + cos(pi (t - W) / (T - W))) / 2`. Steps W - 1 and W both use
  `base`. The last step, T - 1, is just above `end`; later steps use `end`. With W = 1
  step 0 uses `start` and step 1 `base`. With W = 0 step 0 uses `base`.

  Args:
    base: highest learning rate, above 0.
    warmup_steps: W, 0..T.
    total_steps: T, at least 1.
    start: learning rate of step 0, at least 0.
    end: learning rate after the last step, at least 0.

  Returns:
    Function from the step (an int, also a traced one) to the learning rate, float32;
    float64 where jax has it enabled.

  Raises:
    InputError: a value out of range.

  >>> schedule = warmup_cosine(1.0, warmup_steps=3, total_steps=7, start=0.0)
  >>> [round(float(schedule(t)), 3) for t in range(8)]
  [0.0, 0.5, 1.0, 1.0, 0.854, 0.5, 0.146, 0.0]

  Reference: the schedule of the released code (lightning-bolts), per step.
  """
  base = checks.positive("base", base)
  checks.whole("total_steps", total_steps, 1)
  checks.whole("warmup_steps", warmup_steps, 0, total_steps)
  start, end = checks.number("start", start, 0), checks.number("end", end, 0)

  def schedule(step: jax.typing.ArrayLike) -> jax.Array:
    step = jnp.asarray(step, float)
    rising = start + (base - start) * step / max(warmup_steps - 1, 1)
    # (1 + cos(pi p)) / 2 = sin(pi (1 - p) / 2)^2, which keeps its digits near the end.
    left = (total_steps - step) / max(total_steps - warmup_steps, 1)
    falling = end + (base - end) * jnp.sin(jnp.pi / 2 * jnp.clip(left, 0, 1)) ** 2
    return jnp.where(step < warmup_steps, rising, falling)

  return schedule


def step_decay(
  base: float, *, milestones: Sequence[int], factor: float = 0.1
) -> optax.Schedule:
  """A learning rate that drops at milestones: `base factor^(milestones passed)`.

  Args:
    base: the first learning rate, above 0.
    milestones: the first steps, counted from 0, that use a lower rate.
    factor: of the rate at each milestone, above 0.

  Returns:
    Function from the step (an int, also a traced one) to the learning rate, float32;
    float64 where jax has it enabled.

  Raises:
    InputError: a value out of range.

  >>> schedule = step_decay(1.0, milestones=(2, 3))
  >>> [round(float(schedule(t)), 3) for t in range(4)]
  [1.0, 1.0, 0.1, 0.01]
  """
  base = checks.positive("base", base)
  factor = checks.positive("factor", factor)
  for milestone in milestones:
    checks.whole("milestone", milestone, 0)

  def schedule(step: jax.typing.ArrayLike) -> jax.Array:
    step = jnp.asarray(step)
    rate = jnp.asarray(base, float)
    for milestone in milestones:
      rate = jnp.where(step >= milestone, factor * rate, rate)
    return rate

  return schedule


class LarsState(NamedTuple):
  """State of `lars`: steps taken (int32), and the momentum of each parameter."""

  step: jax.Array
  momentum: Any


def lars(
  learning_rate: float | optax.Schedule,
  *,
  weight_decay: float,
  momentum: float = 0.9,
  trust_coefficient: float = 0.001,
  clip: bool = False,
  exclude_1d: bool = True,
) -> optax.GradientTransformation:
  """LARS as in the released code: each tensor's step is scaled to its norm.

  For a tensor p with gradient g, both of non-zero norm,
  `r = trust_coefficient |p| / (|g| + weight_decay |p| + 1e-8)`, with `clip`
  `r = min(r / learning_rate, 1)`, and `d = r (g + weight_decay p)`. If either norm is
  0, or for a 1-D tensor under `exclude_1d`, `d = g`, without scaling or decay. Then
  `m = momentum m + d` and `p -= learning_rate m`.

  `optax.lars` differs: it cannot clip, and its momentum includes the learning rate.

  Args:
    learning_rate: a number, or a schedule of the step counted from 0.
    weight_decay: at least 0.
    momentum: in [0, 1).
    trust_coefficient: eta, above 0.
    clip: never step further than plain SGD would.
    exclude_1d: treat biases and normalisation scales as plain SGD does.

  Returns:
    An optax transformation with a `LarsState`; its `update` needs the parameters.

  Raises:
    InputError: a value out of range.

  References: You et al. 2017 (arXiv:1708.03888); clip and the zero-norm rule as in the
  released code.
  """
  learning_rate, weight_decay, momentum = _settings(
    learning_rate, weight_decay, momentum
  )
  trust_coefficient = checks.positive("trust_coefficient", trust_coefficient)

  def init(params: Any) -> LarsState:
    return LarsState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

  def update(updates: Any, state: LarsState, params: Any = None) -> tuple:
    if params is None:
      raise ValueError("lars needs the parameters: update(gradients, state, params)")
    rate = learning_rate(state.step) if callable(learning_rate) else learning_rate
    rate = jnp.asarray(rate)

    def scaled(g: jax.Array, p: jax.Array) -> jax.Array:
      if exclude_1d and p.ndim == 1:
        return g
      size, slope = (_norm(at_least_float32(a)) for a in (p, g))
      ratio = trust_coefficient * size / (slope + weight_decay * size + 1e-8)
      if clip:
        # Equivalent to ratio / rate > 1, but defined for a rate of 0.
        ratio = jnp.where(rate < ratio, 1, ratio / jnp.where(rate > 0, rate, 1))
      alive = (size > 0) & (slope > 0)
      return jnp.where(alive, ratio * (g + weight_decay * p), g).astype(g.dtype)

    step = jax.tree.map(scaled, updates, params)
    moved = jax.tree.map(lambda m, d: momentum * m + d, state.momentum, step)
    updates = jax.tree.map(lambda m: (-rate * m).astype(m.dtype), moved)
    return updates, LarsState(state.step + 1, moved)

  return optax.GradientTransformation(init, update)


def _settings(
  learning_rate: float | optax.Schedule, weight_decay: float, momentum: float = 0
) -> tuple[float | optax.Schedule, float, float]:
  """The settings as Python's numbers, or an InputError; a schedule as it is."""
  if not callable(learning_rate):
    learning_rate = checks.number("learning_rate", learning_rate, 0)
  momentum = checks.number("momentum", momentum, 0, below=1)
  return learning_rate, checks.number("weight_decay", weight_decay, 0), momentum


def _norm(a: jax.Array) -> jax.Array:
  # Same as `jnp.linalg.norm`, which takes three times as long to trace.
  return jnp.sqrt(jnp.sum(a * a))


def sgd(
  learning_rate: float | optax.Schedule,
  *,
  weight_decay: float = 0.0,
  momentum: float = 0.9,
) -> optax.GradientTransformation:
  """Momentum SGD: `m = momentum m + g + weight_decay p`, `p -= learning_rate m`.

  Args:
    learning_rate: a number, or a schedule of the step counted from 0.
    weight_decay: at least 0; 1-D parameters are not decayed.
    momentum: in [0, 1).

  Raises:
    InputError: a value out of range.
  """
  learning_rate, weight_decay, momentum = _settings(
    learning_rate, weight_decay, momentum
  )
  decay = optax.add_decayed_weights(weight_decay, mask=decay_mask)
  return optax.chain(decay, optax.sgd(learning_rate, momentum))


def adamw(
  learning_rate: float | optax.Schedule, *, weight_decay: float = 1e-4
) -> optax.GradientTransformation:
  """Adam with decoupled weight decay, optax's defaults.

  Args:
    learning_rate: a number, or a schedule of the step counted from 0.
    weight_decay: at least 0; 1-D parameters are not decayed.

  Raises:
    InputError: a value out of range.

  Reference: Loshchilov & Hutter 2019 (arXiv:1711.05101).
  """
  learning_rate, weight_decay, _ = _settings(learning_rate, weight_decay)
  optimizer = optax.adamw(learning_rate, weight_decay=weight_decay, mask=decay_mask)
  return standard_promotion(optimizer)


def standard_promotion(
  optimizer: optax.GradientTransformation,
) -> optax.GradientTransformation:
  """The same optimizer where a user forbids JAX to mix dtypes.

  optax's Adam multiplies its floats by whole numbers, which raises under
  `JAX_NUMPY_DTYPE_PROMOTION=strict`.
  """

  def update(updates: Any, state: Any, params: Any = None) -> tuple:
    with jax.numpy_dtype_promotion("standard"):
      return optimizer.update(updates, state, params)

  return optax.GradientTransformation(optimizer.init, update)


LARGEST_SCALE = 100.0  # of 1/T; as in CLIP
SCALE_RATE = 1e-3


def log_scale(
  schedule: Callable[[jax.Array], jax.Array],
) -> optax.GradientTransformation:
  """Adam for a learned temperature's log(1/T), capped at `log(LARGEST_SCALE)`.

  Without a bound, ever lower temperatures would keep lowering a contrastive loss. There
  is no weight decay. A step changes the logarithm by at most about `SCALE_RATE`.

  Args:
    schedule: from the step to a factor of `SCALE_RATE`.

  Returns:
    An optax transformation; its `update` needs the parameters.

  Source: the cap of Radford et al. 2021 (arXiv:2103.00020), Section 2.5.
  """
  adam = standard_promotion(optax.adam(lambda step: SCALE_RATE * schedule(step)))
  highest = math.log(LARGEST_SCALE)

  def update(updates: Any, state: Any, params: Any = None) -> tuple:
    updates, state = adam.update(updates, state)
    capped = jax.tree.map(lambda u, p: jnp.minimum(p + u, highest) - p, updates, params)
    return capped, state

  return optax.GradientTransformation(adam.init, update)


def partition(
  encoder: optax.GradientTransformation,
  probe: optax.GradientTransformation,
  loss: optax.GradientTransformation | None = None,
) -> optax.GradientTransformation:
  """Separate transformations for parts of the parameters.

  Args:
    encoder: for all sub-trees without a transformation of their own.
    probe: for `params["probe"]`, the online linear probe.
    loss: for `params["loss"]`, a learned temperature; None if there is none.
  """
  own = {"probe": probe} | ({"loss": loss} if loss else {})
  return optax.partition(
    {"encoder": encoder, **own},
    lambda params: {n: n if n in own else "encoder" for n in params},
  )


def layerwise(
  make: Callable[[float], optax.GradientTransformation], depths: Any, decay: float
) -> optax.GradientTransformation:
  """One transformation per depth: `make(decay^(top - depth))`, top = largest depth.

  Args:
    make: takes a factor of the learning rate and returns the transformation.
    depths: ints, a tree like the parameters or a prefix of it.
    decay: in (0, 1]; 1 makes one transformation for all.

  Raises:
    InputError: a decay out of range.

  Reference: layer-wise learning-rate decay, Clark et al. 2020 (arXiv:2003.10555).
  """
  decay = checks.number("decay", decay, high=1, above=0)
  if decay == 1:
    return make(1.0)
  found = sorted(set(jax.tree.leaves(depths)))
  return optax.partition({d: make(decay ** (found[-1] - d)) for d in found}, depths)
