"""The slow copy of the network that some methods compare with, and DINO's centre.

It lies in the train state and is saved, resumed and sharded like the rest. The
optimiser never sees it and no gradient reaches it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ncl_jax import losses
from ncl_jax.config import methods

PARTS = ("backbone", "projector", "prototypes")


def init(config: ConfigDict, variables: Any) -> dict[str, Any] | None:
  """The copy before the first step: the network itself.

  Args:
    config: settings.
    variables: {"params", "batch_stats"} of the network.

  Returns:
    {"params", "batch_stats"}, with DINO also {"centre": [K]}; None for methods that
    have no such copy.
  """
  if config.loss.name not in methods.MOMENTUM:
    return None
  # Copies: the state is donated, and no buffer can be given twice.
  copy: dict[str, Any] = {
    kind: {name: jax.tree.map(jnp.copy, tree[name]) for name in PARTS if name in tree}
    for kind, tree in variables.items()
  }
  if config.loss.name == "dino":
    copy["centre"] = jnp.zeros(config.loss.prototypes)
  return copy


def share(base: float, step: jax.typing.ArrayLike, total: int) -> jax.Array:
  """How much of the copy stays: `1 - (1 - base) (1 + cos(pi step / total)) / 2`.

  Args:
    base: at the first step, in [0, 1).
    step: steps done.
    total: steps of the training.

  Returns:
    [], from base up to 1.

  Source: Grill et al. 2020 (arXiv:2006.07733), Section 3.2.

  >>> [round(float(share(0.9, step, 4)), 3) for step in (0, 2, 4)]
  [0.9, 0.95, 1.0]
  """
  left = 1 - jnp.asarray(step, float) / total
  # (1 + cos(pi p)) / 2 = sin(pi (1 - p) / 2)^2, which keeps its digits near the end.
  return 1 - (1 - base) * jnp.sin(jnp.pi / 2 * jnp.clip(left, 0, 1)) ** 2


def follow(copy: Any, params: Any, kept: jax.Array) -> Any:
  """The copy's parameters after a step: `kept copy + (1 - kept) params`.

  Args:
    copy: its parameters, a tree.
    params: the network's, after the step; what the copy lacks is not looked at.
    kept: from `share`.
  """
  return jax.tree.map(
    lambda old, new: (old + (1 - kept) * (new - old)).astype(old.dtype),
    copy,
    {name: params[name] for name in copy},
  )


def move(
  config: ConfigDict, before: Any, params: Any, seen: Any, step: jax.Array, total: int
) -> Any:
  """The whole copy after a step.

  Args:
    config: settings.
    before: from `init` or `move`; None stays None.
    params: the network's parameters after the step.
    seen: {"batch_stats"} of its forward pass, with DINO {"scores": [N, 2, K]}.
    step: steps done before this one.
    total: steps of the training.
  """
  if before is None:
    return None
  kept = share(config.loss.ema_decay, step, total)
  after = {
    "params": follow(before["params"], params, kept),
    "batch_stats": seen["batch_stats"],
  }
  if "centre" in before:
    moved = losses.dino_centre(
      before["centre"], seen["scores"], config.loss.centre_momentum
    )
    after["centre"] = moved.astype(before["centre"].dtype)
  return after
