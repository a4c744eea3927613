"""Statistics of features during training: of a batch, and of a whole epoch.

A dimension that is zero for every image is dead. One that has the same value for every
image is constant. An image whose features are all zero has no gradient. One batch is
too small to show this; every step updates the statistics of its epoch.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ncl_jax import metrics
from ncl_jax.numerics import l2_normalize

# A warning is given beyond these fractions; runs of configs/digits.py stay below.
DEAD, CONSTANT, EMPTY = 0.5, 0.5, 0.01


def start(width: int) -> dict[str, jax.Array]:
  """Empty statistics: {"low": [D], "high": [D], "empty": [], "rows": []}."""
  return {
    "low": jnp.full(width, jnp.inf, jnp.float32),
    "high": jnp.full(width, -jnp.inf, jnp.float32),
    "empty": jnp.zeros((), jnp.int32),
    "rows": jnp.zeros((), jnp.int32),
  }


def fold(record: dict[str, Any], z: jax.Array, fresh: jax.Array) -> dict[str, Any]:
  """Adds a batch z [N, V, D], after the transform; `fresh` starts anew with it."""
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
  """Summarises an epoch.

  Args:
    record: from `fold`, after the epoch's last step.
    threshold: |f| below it counts as zero; so does a smaller difference.

  Returns:
    Scalars: "epoch_active_dimensions"; "epoch_constant_dimensions", of those;
    "epoch_zero_rows", the fraction of all-zero views.
  """
  live = jnp.maximum(jnp.abs(record["low"]), jnp.abs(record["high"])) > threshold
  constant = live & (record["high"] - record["low"] < threshold)
  return {
    "epoch_active_dimensions": live.sum(),
    "epoch_constant_dimensions": constant.sum(),
    "epoch_zero_rows": record["empty"] / jnp.maximum(record["rows"], 1),
  }


def warnings(values: dict[str, Any], width: int, transform: str) -> dict[str, str]:
  """Warnings about an epoch by "dead", "constant" and "empty", each with a remedy."""
  lines = {}
  dead = width - int(values["epoch_active_dimensions"])
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


@functools.partial(jax.jit, static_argnums=(2, 3))
def batch_statistics(
  z: jax.Array, labels: jax.Array, num_classes: int, threshold: float
) -> dict[str, jax.Array]:
  """Statistics of a batch z [N, V, D], as in the released code's log.

  A program of its own, run only for logged steps.

  Returns:
    Scalars: fraction of zeros, active dimensions, all-zero rows and, unless
    `num_classes` is 0, the mean class consistency of the active dimensions.
  """
  f = l2_normalize(z).reshape(-1, z.shape[-1])
  labels = jnp.repeat(labels, z.shape[1])
  values = {
    "sparsity": metrics.sparsity(f, threshold),
    "active_dimensions": metrics.active_dimensions(f, threshold).sum(),
    "zero_rows": metrics.num_zero_rows(f),
  }
  if num_classes:
    rate, _ = metrics.class_consistency(f, labels, num_classes, threshold=threshold)
    values["class_consistency"] = jnp.nanmean(rate)
  return values


@jax.jit
def effective_rank(z: jax.Array) -> jax.Array:
  """The effective rank of a batch's features, for the log.

  Once an epoch: accelerators are slow at the decomposition behind it.
  """
  return metrics.effective_rank(l2_normalize(z).reshape(-1, z.shape[-1]))
