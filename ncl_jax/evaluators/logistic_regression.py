"""Multinomial logistic regression with an L2 penalty, to its optimum by L-BFGS."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ncl_jax import checks
from ncl_jax.evaluators import supervised

Array = jax.Array | np.ndarray

# Of the mean loss, for features of unit root mean square.
REGULARIZATIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
HELD_OUT = 0.2
MAX_ITERATIONS = 2000
# Of the loss: half the Newton decrement, which is what a quadratic model expects to
# gain (Boyd and Vandenberghe 2004, section 9.5.1). It does not depend on scales.
TOLERANCE = 1e-7


def probe(
  train_x: np.ndarray,
  train_labels: np.ndarray,
  test_x: np.ndarray,
  test_labels: np.ndarray,
  *,
  num_classes: int,
  seed: int = 0,
) -> dict[str, Any]:
  """Chooses the penalty, fits, scores.

  Args:
    train_x: [N, F] features.
    train_labels: [N] in [0, K); -1 is left out.
    test_x: [M, F].
    test_labels: [M]; -1 is left out.
    seed: of the held-out part.

  Returns:
    accuracy and train_accuracy in [0, 1], the chosen regularization, its accuracy on
    the held-out part, iterations of the last fit, and whether all fits converged.
  """
  head, found = choose(train_x, train_labels, num_classes=num_classes, seed=seed)
  return {
    "accuracy": supervised.accuracy(head, test_x, test_labels),
    "train_accuracy": supervised.accuracy(head, train_x, train_labels),
    **found,
  }


def choose(
  train_x: np.ndarray, train_labels: np.ndarray, *, num_classes: int, seed: int = 0
) -> tuple[dict[str, jax.Array], dict[str, Any]]:
  """Fits a probe with the penalty that does best on a held-out fifth, then on all.

  Returns:
    {"kernel" [F, K], "bias" [K]}, and of what `probe` gives all but the accuracies.
  """
  checks.finite("train_x", train_x)
  # One common scale: the penalties mean the same for every layer, zeros stay zero.
  scale = root_mean_square(train_x)
  x = jnp.asarray(train_x / scale)
  known = train_labels >= 0
  held = np.random.default_rng([seed, 0]).random(len(known)) < HELD_OUT
  # Masks, not subsets: all fits share one compiled program.
  fitting = jnp.asarray(known & ~held, x.dtype)
  targets = jnp.asarray(np.where(known, train_labels, 0))
  along = principal(x, fitting)
  start = None
  fits, scores = {}, []
  # From strong to weak, each start from the last solution.
  for strength in sorted(REGULARIZATIONS, reverse=True):
    fits[strength] = fit(along, targets, fitting, strength, num_classes, start)
    start = fits[strength].head
    scores.append((supervised.accuracy(start, x, train_labels, held), strength))
  # Of equal ones the stronger penalty: the simpler probe.
  best, strength = max(scores)
  everything = jnp.asarray(known, x.dtype)
  start = fits[strength].head
  last = fit(along, targets, everything, strength, num_classes, start)
  return {"kernel": last.head["kernel"] / scale, "bias": last.head["bias"]}, {
    "regularization": strength,
    "held_out_accuracy": best,
    "iterations": int(last.iterations),
    "converged": all(bool(found.converged) for found in (*fits.values(), last)),
  }


def root_mean_square(x: np.ndarray) -> float:
  """Of all entries; 1 if they are all 0."""
  return float(np.sqrt(np.mean(np.square(x, dtype=np.float64)))) or 1.0


class Fit(NamedTuple):
  """What `fit` found."""

  head: dict[str, jax.Array]  # {"kernel" [F, K], "bias" [K]}
  iterations: jax.Array
  converged: jax.typing.ArrayLike  # whether no more than `TOLERANCE` was left to gain


class Principal(NamedTuple):
  """Features and their principal axes, along which the problem is well conditioned."""

  rows: Array  # [F, N] features, a row a feature
  mean: Array  # [F] of the features
  axes: jax.Array  # [F, F] orthogonal, an axis a column
  variance: jax.Array  # [F] along each axis


@jax.jit
def principal(x: Array, weights: Array) -> Principal:
  """Principal axes of rows [N, F] with weights [N], for any number of fits to them."""
  weights = weights / weights.sum()
  with jax.default_matmul_precision("float32"):
    mean = weights @ x
    centred = x - mean[None]
    covariance = (centred * weights[:, None]).T @ centred
    variance, axes = jnp.linalg.eigh(covariance)
    return Principal(x.T, mean, axes, jnp.maximum(variance, 0))


def fit(
  x: Array | Principal,
  labels: Array,
  weights: Array,
  regularization: float,
  num_classes: int,
  start: dict[str, jax.Array] | None = None,
) -> Fit:
  """Minimises `sum_i w_i CE(x_i W + b, y_i) / sum_i w_i + l2/2 |W|^2` by L-BFGS.

  L-BFGS works along the principal axes, each divided by the root of its curvature at
  the start, and the result is turned back: the problem stays the same and needs fewer
  iterations.

  Args:
    x: [N, F] features, or `principal` of them, whatever its weights.
    labels: [N] in [0, K).
    weights: [N] weight of each row, 0 leaves it out.
    regularization: l2, above 0; the bias is not penalised.
    start: parameters to start from; zeros if None.

  Reference: Liu and Nocedal 1989, "On the limited memory BFGS method".
  """
  along = x if isinstance(x, Principal) else principal(x, weights)
  width, dtype = along.rows.shape[0], along.rows.dtype
  if start is None:
    start = {
      "kernel": jnp.zeros((width, num_classes), dtype),
      "bias": jnp.zeros(num_classes, dtype),
    }
  strength = jnp.asarray(regularization, dtype)
  return _fit(along, labels, weights, strength, start, MAX_ITERATIONS)


@jax.jit
def _fit(along, labels, weights, regularization, start, most):
  weights = weights / weights.sum()
  rows, mean, axes, variance = along
  classes = start["bias"].shape[0]
  # Of equal scores, p (1 - p) is the same for every row.
  curvature = (classes - 1) / classes**2
  scale = {
    "kernel": jax.lax.rsqrt(curvature * variance + regularization)[:, None],
    "bias": curvature**-0.5,
  }
  # A CPU multiplies a wide matrix by a few rows three to four times as fast as a tall
  # one by a few columns; without the barrier XLA would multiply by the tall one again.
  wide = jax.lax.optimization_barrier(rows)

  def head(params):
    # Turns the small matrix back, not the rows.
    kernel = axes @ (scale["kernel"] * params["kernel"])
    return {"kernel": kernel, "bias": scale["bias"] * params["bias"] - mean @ kernel}

  def objective(params):
    with jax.default_matmul_precision("float32"):
      kernel, bias = (head(params)[name] for name in ("kernel", "bias"))
      logits = kernel.T @ wide + bias[:, None]
    ce = optax.softmax_cross_entropy_with_integer_labels(logits, labels, axis=0)
    return weights @ ce + 0.5 * regularization * jnp.sum(kernel**2)

  solver = optax.lbfgs()
  value_and_grad = optax.value_and_grad_from_state(objective)

  def more(carry):
    *_, gain, iteration = carry
    return (iteration < most) & (gain > TOLERANCE)

  def iterate(carry):
    params, state, _, iteration = carry
    value, grad = value_and_grad(params, state=state)
    updates, state = solver.update(
      grad, state, params, value=value, grad=grad, value_fn=objective
    )
    # The line search multiplies the quasi-Newton step by its learning rate.
    rate = optax.tree.get(state, "learning_rate")
    gain = jnp.where(rate > 0, -optax.tree.vdot(grad, updates) / (2 * rate), jnp.inf)
    return optax.apply_updates(params, updates), state, gain, iteration + 1

  with jax.default_matmul_precision("float32"):
    turned = {
      "kernel": axes.T @ start["kernel"] / scale["kernel"],
      "bias": (start["bias"] + mean @ start["kernel"]) / scale["bias"],
    }
    begin = (turned, solver.init(turned), jnp.inf, jnp.zeros((), jnp.int32))
    params, _, gain, iterations = jax.lax.while_loop(more, iterate, begin)
    return Fit(head(params), iterations, gain <= TOLERANCE)
