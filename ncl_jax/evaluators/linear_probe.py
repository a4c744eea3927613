"""Linear probe: multinomial logistic regression on frozen features, by L-BFGS.

The backbone runs once, in evaluation mode; only the probe is fitted.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax.data.source import Source
from ncl_jax.evaluators import program

# Of the mean loss, for features of unit root mean square.
REGULARIZATIONS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
HELD_OUT = 0.2
MAX_ITERATIONS = 300
TOLERANCE = 1e-4


def evaluate(
  config: ConfigDict, variables: Any, source: Source, mesh: Mesh
) -> dict[str, Any]:
  """Top-1 accuracy on the test split of a probe on `h` and one on `f`.

  The strength of the L2 penalty is chosen on a held-out fifth of the training split;
  the probe is then fitted to all of it.

  Args:
    config: resolved settings.
    variables: {"params", "batch_stats"}.
    source: labelled data.
    mesh: for the forward passes.

  Returns:
    {"settings", "h": {"accuracy", "regularization", ...}, "f": {...}}.

  Raises:
    InputError: if the data have no labels.
  """
  program.need_labels(source, "linear_probe")
  train = program.extract(config, variables, source, "train", mesh)
  test = program.extract(config, variables, source, "test", mesh)
  result: dict[str, Any] = {
    "settings": program.describe(
      config,
      source,
      split="test",
      fitted_on="train",
      protocol="lbfgs",
      regularizations=list(REGULARIZATIONS),
      held_out=HELD_OUT,
      max_iterations=MAX_ITERATIONS,
      tolerance=TOLERANCE,
      images=len(test.labels),
    )
  }
  for layer in program.LAYERS:
    result[layer] = probe(
      train.layer(layer, config.loss.map),
      train.labels,
      test.layer(layer, config.loss.map),
      test.labels,
      num_classes=source.num_classes,
      seed=config.seed,
    )
  return result


def probe(
  train_x: np.ndarray,
  train_labels: np.ndarray,
  test_x: np.ndarray,
  test_labels: np.ndarray,
  *,
  num_classes: int,
  seed: int = 0,
) -> dict[str, float]:
  """Chooses the penalty, fits, scores.

  Args:
    train_x: [N, F] features.
    train_labels: [N] in [0, K); -1 is left out.
    test_x: [M, F].
    test_labels: [M]; -1 is left out.
    num_classes: K.
    seed: of the held-out part.

  Returns:
    accuracy and train_accuracy in [0, 1], the chosen regularization, its accuracy on
    the held-out part, and iterations of the last fit.
  """
  # One common scale: the penalties mean the same for every layer, zeros stay zero.
  scale = float(np.sqrt(np.mean(np.square(train_x, dtype=np.float64)))) or 1.0
  x = jnp.asarray(train_x / scale)
  known = train_labels >= 0
  held = np.random.default_rng([seed, 0]).random(len(known)) < HELD_OUT
  # Masks, not subsets: all fits share one compiled program.
  fitting = jnp.asarray(known & ~held, x.dtype)
  targets = jnp.asarray(np.where(known, train_labels, 0))
  weights = None
  scores = []
  # From strong to weak, each start from the last solution.
  for strength in sorted(REGULARIZATIONS, reverse=True):
    weights, _ = fit(x, targets, fitting, strength, num_classes, weights)
    scores.append((_accuracy(weights, x, train_labels, held), strength))
  # Of equal ones the stronger penalty: the simpler probe.
  best, strength = max(scores)
  everything = jnp.asarray(known, x.dtype)
  weights, iterations = fit(x, targets, everything, strength, num_classes, None)
  return {
    "accuracy": _accuracy(weights, jnp.asarray(test_x / scale), test_labels),
    "train_accuracy": _accuracy(weights, x, train_labels),
    "regularization": strength,
    "held_out_accuracy": best,
    "iterations": int(iterations),
  }


def fit(
  x: jax.Array,
  labels: jax.Array,
  weights: jax.Array,
  regularization: float,
  num_classes: int,
  start: dict[str, jax.Array] | None = None,
) -> tuple[dict[str, jax.Array], jax.Array]:
  """Minimises `sum_i w_i CE(x_i W + b, y_i) / sum_i w_i + l2/2 |W|^2` by L-BFGS.

  Args:
    x: [N, F] features.
    labels: [N] in [0, K).
    weights: [N] weight of each row, 0 leaves it out.
    regularization: l2; the bias is not penalised.
    num_classes: K.
    start: parameters to start from; zeros if None.

  Returns:
    ({"kernel" [F, K], "bias" [K]}, iterations).

  Reference: Liu and Nocedal 1989, "On the limited memory BFGS method".
  """
  if start is None:
    start = {
      "kernel": jnp.zeros((x.shape[1], num_classes), x.dtype),
      "bias": jnp.zeros(num_classes, x.dtype),
    }
  return _fit(x, labels, weights, jnp.asarray(regularization, x.dtype), start)


@jax.jit
def _fit(x, labels, weights, regularization, start):
  weights = weights / weights.sum()

  def objective(params):
    with jax.default_matmul_precision("float32"):
      logits = x @ params["kernel"] + params["bias"][None]
    ce = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    penalty = 0.5 * regularization * jnp.sum(params["kernel"] ** 2)
    return weights @ ce + penalty

  solver = optax.lbfgs()
  value_and_grad = optax.value_and_grad_from_state(objective)

  def more(carry):
    _, state, iteration = carry
    size = optax.tree.norm(optax.tree.get(state, "grad"))
    return (iteration == 0) | ((iteration < MAX_ITERATIONS) & (size > TOLERANCE))

  def iterate(carry):
    params, state, iteration = carry
    value, grad = value_and_grad(params, state=state)
    updates, state = solver.update(
      grad, state, params, value=value, grad=grad, value_fn=objective
    )
    return optax.apply_updates(params, updates), state, iteration + 1

  params, _, iterations = jax.lax.while_loop(
    more, iterate, (start, solver.init(start), jnp.zeros((), jnp.int32))
  )
  return params, iterations


def _accuracy(params, x, labels, where=True) -> float:
  """Share of labelled rows (among `where`) whose class scores highest."""
  with jax.default_matmul_precision("float32"):
    predicted = np.asarray((x @ params["kernel"] + params["bias"][None]).argmax(-1))
  counted = (labels >= 0) & where
  return float(np.mean(predicted[counted] == labels[counted]))
