"""Watches a whole epoch for dimensions that mean nothing: dead, constant; empty rows.

A dimension that stays at zero for every image is dead, one that gives every image the
same value is constant; an image whose features are all zero has no gradient. One batch
cannot tell; an epoch of training features, folded up step by step, can at no cost.
"""

from typing import Any

import jax
import jax.numpy as jnp

from ncl_jax import metrics
from ncl_jax.numerics import l2_normalize

# A warning is given beyond these shares; runs of configs/digits.py stay below.
DEAD, CONSTANT, EMPTY = 0.5, 0.5, 0.01


def start(width: int) -> dict[str, jax.Array]:
  """The record of no features yet.

  Args:
    width: D.

  Returns:
    {"low": [D], "high": [D], "empty": [], "rows": []}.
  """
  return {
    "low": jnp.full(width, jnp.inf, jnp.float32),
    "high": jnp.full(width, -jnp.inf, jnp.float32),
    "empty": jnp.zeros((), jnp.int32),
    "rows": jnp.zeros((), jnp.int32),
  }


def fold(record: dict[str, Any], z: jax.Array, fresh: jax.Array) -> dict[str, Any]:
  """Adds a batch to the record.

  Args:
    record: from `start` or `fold`.
    z: [N, V, D] features after the transform, not normalised.
    fresh: bool, True to begin a new record with this batch.

  Returns:
    The new record.
  """
  f = l2_normalize(z).reshape(-1, z.shape[-1])
  before = jax.tree.map(
    lambda new, old: jnp.where(fresh, new, old), start(f.shape[-1]), record
  )
  return {
    "low": jnp.minimum(before["low"], f.min(0)).astype(record["low"].dtype),
    "high": jnp.maximum(before["high"], f.max(0)).astype(record["high"].dtype),
    "empty": before["empty"] + metrics.num_zero_rows(f),
    "rows": before["rows"] + f.shape[0],
  }


def summary(record: dict[str, Any], threshold: float) -> dict[str, jax.Array]:
  """What the epoch showed.

  Args:
    record: of its steps.
    threshold: |f| below it counts as zero; differences below it as none.

  Returns:
    Scalars: "epoch_live_dimensions"; "epoch_constant_dimensions", of those;
    "epoch_zero_rows", the share of views without any feature.
  """
  live = jnp.maximum(jnp.abs(record["low"]), jnp.abs(record["high"])) > threshold
  constant = live & (record["high"] - record["low"] < threshold)
  return {
    "epoch_live_dimensions": live.sum(),
    "epoch_constant_dimensions": constant.sum(),
    "epoch_zero_rows": record["empty"] / jnp.maximum(record["rows"], 1),
  }


def warnings(values: dict[str, Any], width: int, transform: str) -> dict[str, str]:
  """What to tell the user after an epoch, with the remedy.

  Args:
    values: from `summary`.
    width: D.
    transform: the run's transform.

  Returns:
    What is wrong ("dead", "constant", "empty") -> the line; {} if all is well.
  """
  lines = {}
  dead = width - int(values["epoch_live_dimensions"])
  constant = int(values["epoch_constant_dimensions"])
  empty = float(values["epoch_zero_rows"])
  gentle = "a lower learning rate or a longer warm-up"
  if transform not in ("identity", "rep_relu"):
    gentle = (
      f"--config.loss.transform=rep_relu, whose dead dimensions can come back, {gentle}"
    )
  if dead > DEAD * width:
    lines["dead"] = (
      f"{dead} of {width} dimensions are zero for every image; try {gentle}"
    )
  if constant > CONSTANT * width:
    lines["constant"] = (
      f"{constant} of {width} dimensions have the same value for every image, the "
      "features have collapsed; try a lower learning rate, a longer warm-up, or "
      "--config.model.batch_norm=per_view if it is not"
    )
  if empty > EMPTY:
    lines["empty"] = (
      f"{empty:.1%} of the views have no feature and so no gradient; try {gentle}"
    )
  return lines
