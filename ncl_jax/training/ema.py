"""The momentum encoder: an exponential moving average (EMA) of the network.

It is part of the train state and is saved, resumed and sharded with it. The optimiser
never sees it and no gradient reaches it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ncl_jax import losses, methods

PARTS = ("backbone", "projector", "prototypes")


def init(config: ConfigDict, variables: Any) -> dict[str, Any] | None:
  """The momentum encoder before the first step: a copy of the network.

  Returns:
    {"params", "batch_stats"}, with prototypes also {"centre": [K]}; None for methods
    without a momentum encoder.
  """
  method = methods.of(config)
  if not method.momentum_encoder:
    return None
  # Copies: the state is donated, and no buffer can be given twice.
  encoder: dict[str, Any] = {
    kind: {name: jax.tree.map(jnp.copy, tree[name]) for name in PARTS if name in tree}
    for kind, tree in variables.items()
  }
  if method.prototypes:
    encoder["centre"] = jnp.zeros(config.loss.prototypes)
  return encoder


def decay(base: float, step: jax.typing.ArrayLike, total: int) -> jax.Array:
  """The EMA's decay: `1 - (1 - base) (1 + cos(pi step / total)) / 2`.

  Args:
    base: at the first step, in [0, 1).

  Returns:
    [], from base up to 1.

  Source: Grill et al. 2020 (arXiv:2006.07733), Section 3.2.

  >>> [round(float(decay(0.9, step, 4)), 3) for step in (0, 2, 4)]
  [0.9, 0.95, 1.0]
  """
  left = 1 - jnp.asarray(step, float) / total
  # (1 + cos(pi p)) / 2 = sin(pi (1 - p) / 2)^2, which keeps its digits near the end.
  return 1 - (1 - base) * jnp.sin(jnp.pi / 2 * jnp.clip(left, 0, 1)) ** 2


def move(
  config: ConfigDict, before: Any, params: Any, seen: Any, step: jax.Array, total: int
) -> Any:
  """The momentum encoder after a step: `rate before + (1 - rate) params`.

  Args:
    before: from `init` or `move`; None stays None.
    params: of the network after the step.
    seen: {"batch_stats"} of its forward pass, with prototypes {"scores": [N, 2, K]}.
  """
  if before is None:
    return None
  rate = decay(config.loss.ema_decay, step, total)
  after = {
    "params": jax.tree.map(
      lambda old, new: (old + (1 - rate) * (new - old)).astype(old.dtype),
      before["params"],
      {name: params[name] for name in before["params"]},
    ),
    "batch_stats": seen["batch_stats"],
  }
  if "centre" in before:
    moved = losses.dino_centre(
      before["centre"], seen["scores"], config.loss.centre_momentum
    )
    after["centre"] = moved.astype(before["centre"].dtype)
  return after
