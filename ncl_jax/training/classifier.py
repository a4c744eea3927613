"""The classifier of supervised training: its weights, its loss, mixed images.

CE and NCE are the same program: the scores are `scale t(z) . t(w_k) + b_k`, where t is
the transform. With "identity" it is CE; any other transform has no bias.
"""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import losses, methods, nonneg, numerics
from ncl_jax.data.source import Source


def init(config: ConfigDict, source: Source) -> dict[str, Any]:
  """The class weights before the first step: torch's Linear, uniform in +-D^-1/2.

  Returns:
    {"classifier": {"prototypes": [K, D], "bias": [K]}}, to join the parameters, the
    bias with the transform "identity" only; {} for losses without class weights. The
    weights are the same for every transform.
  """
  if not methods.of(config).classifier:
    return {}
  classes, width = source.num_classes, config_lib.widths(config)["z"]
  # A key of its own: the network's are drawn from the seed's key itself.
  key = jax.random.fold_in(numerics.key(config.seed), 0)
  bound = width**-0.5
  shape = (classes, width + 1)
  both = jax.random.uniform(key, shape, minval=-bound, maxval=bound)
  weights = {"prototypes": both[:, :-1]}
  if config.loss.transform == "identity":
    weights["bias"] = both[:, -1]
  return {"classifier": weights}


def _transformed(
  config: ConfigDict, weights: Any, z: jax.typing.ArrayLike
) -> dict[str, Any]:
  """The arguments of both the loss and the scores."""
  return {
    "features": nonneg.apply(z, config.loss.transform),
    "prototypes": nonneg.apply(weights["prototypes"], config.loss.transform),
    "bias": weights.get("bias"),
    "scale": config.loss.logit_scale,
  }


def scores(config: ConfigDict, weights: Any, z: jax.typing.ArrayLike) -> jax.Array:
  """The classes' scores [N, K] of features [N, D] before the transform."""
  return losses.scores(**_transformed(config, weights, z))


def loss(
  config: ConfigDict, weights: Any, z: jax.Array, target: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The mean loss over what is labelled, by class probabilities `target` [N, K].

  Returns:
    (loss, metrics): "accuracy", the mean probability of the predicted class, and
    "unlabelled", how many rows were left out, as they are all zero.
  """
  given = _transformed(config, weights, z)
  each = losses.cross_entropy(
    labels=target, label_smoothing=config.loss.label_smoothing, **given
  )
  mass = target.sum(-1)
  total = jnp.where(mass.sum() > 0, mass.sum(), 1)
  best = jax.nn.one_hot(losses.scores(**given).argmax(-1), target.shape[1])
  values = {
    "accuracy": jnp.sum(best * target) / total,
    "unlabelled": jnp.sum(mass == 0),
  }
  return each.sum() / total, values


def mixing_weights(config: ConfigDict, key: jax.Array, n: int) -> jax.Array:
  """Mixup's weight [n], all the same, from Beta(a, a) with a = `loss.mixup`.

  Reference: Zhang et al. 2017 (arXiv:1710.09412).
  """
  alpha = config.loss.mixup
  return jnp.full(n, jax.random.beta(key, alpha, alpha, dtype=jnp.float32))


def mix(x: jax.Array, weight: jax.Array) -> jax.Array:
  """`weight x_n + (1 - weight) x_{N-1-n}`: each row with its opposite in the batch.

  Args:
    x: [N, ...].
    weight: [N], in [0, 1].

  >>> mix(jnp.array([[0.0], [8.0]]), jnp.array([0.75, 0.75])).tolist()
  [[2.0], [6.0]]
  """
  weight = weight.reshape(-1, *(1,) * (x.ndim - 1)).astype(x.dtype)
  return weight * x + (1 - weight) * x[::-1]
