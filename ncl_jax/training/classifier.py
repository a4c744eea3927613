"""The classifier of supervised training: its weights, its loss, mixed images.

CE and NCE are the same program: the scores are `scale map(z) . map(w_k) + b_k`, with
the transform "identity" and the bias for CE, without a bias for any other transform.
"""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import losses, nonneg, numerics
from ncl_jax.data.source import Source


def init(config: ConfigDict, source: Source) -> dict[str, Any]:
  """The class weights before the first step: torch's Linear, uniform in +-D^-1/2.

  Args:
    config: resolved settings; its seed determines the draw.
    source: for the number of classes.

  Returns:
    {"classifier": {"prototypes": [K, D], "bias": [K]}}, to join the parameters, the
    bias with the transform "identity" only; {} for losses without class weights. The
    weights are the same for every transform.
  """
  if config.loss.name != "cross_entropy":
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


def _mapped(
  config: ConfigDict, weights: Any, z: jax.typing.ArrayLike
) -> dict[str, Any]:
  """The arguments that the loss and the scores share."""
  return {
    "features": nonneg.apply(z, config.loss.transform),
    "prototypes": nonneg.apply(weights["prototypes"], config.loss.transform),
    "bias": weights.get("bias"),
    "scale": config.loss.logit_scale,
  }


def scores(config: ConfigDict, weights: Any, z: jax.typing.ArrayLike) -> jax.Array:
  """The classes' scores of raw features.

  Args:
    config: for the transform and the scale.
    weights: `params["classifier"]`.
    z: [N, D] features before the transform.

  Returns:
    [N, K].
  """
  return losses.scores(**_mapped(config, weights, z))


def loss(
  config: ConfigDict, weights: Any, z: jax.Array, target: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
  """The mean loss over what is labelled.

  Args:
    config: resolved settings.
    weights: `params["classifier"]`.
    z: [N, D] features before the transform.
    target: [N, K] the classes' shares; a row of zeros is unlabelled.

  Returns:
    (loss, metrics): "accuracy", the share of the target that the highest scores hit,
    and "unlabelled", how many rows were left out.
  """
  given = _mapped(config, weights, z)
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


def shares(config: ConfigDict, key: jax.Array, n: int) -> jax.Array:
  """How much of itself each image keeps where images are mixed: one draw a batch.

  Args:
    config: for `loss.mixup`, a of Beta(a, a).
    key: random key.
    n: images.

  Returns:
    [n] float32, all the same.

  Reference: Zhang et al. 2017 (arXiv:1710.09412).
  """
  alpha = config.loss.mixup
  return jnp.full(n, jax.random.beta(key, alpha, alpha, dtype=jnp.float32))


def mix(x: jax.Array, share: jax.Array) -> jax.Array:
  """`share x_n + (1 - share) x_{N-1-n}`: each row with its opposite in the batch.

  Args:
    x: [N, ...].
    share: [N].

  Returns:
    As x.

  >>> mix(jnp.array([[0.0], [8.0]]), jnp.array([0.75, 0.75])).tolist()
  [[2.0], [6.0]]
  """
  share = share.reshape(-1, *(1,) * (x.ndim - 1)).astype(x.dtype)
  return share * x + (1 - share) * x[::-1]
