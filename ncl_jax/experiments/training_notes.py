"""Notes for a report on runs that are hardly trained, unfinished or shortened."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from ncl_jax import methods
from ncl_jax.config import recipes

TENTHS = 10
NEAR = 0.1  # share of the loss of guessing; less below it is near
STEEP = 0.5  # of the mean fall of a tenth


def of(
  label: str, curve: Sequence[dict[str, Any]], config: ConfigDict
) -> tuple[str, ...]:
  """Sentences about a run that has hardly learnt, or was still learning at its end.

  Args:
    curve: rows of metrics.jsonl, of which "loss" is read.
  """
  losses = [row["loss"] for row in curve if row.get("loss") is not None]
  if not losses:
    return ()
  tenths = [part.mean() for part in np.array_split(losses, min(TENTHS, len(losses)))]
  last = tenths[-1]
  # Among how many the loss asks for the right one; 0 where it does not ask so.
  count = methods.of(config).candidates(config.train.batch_size)
  guessing = math.log(max(1, count))
  if guessing and last > (1 - NEAR) * guessing:
    return (
      f"{label} is hardly trained: its loss is {last:.2f} at the end, and guessing "
      f"among {count} candidates costs ln {count} = {guessing:.2f}. "
      "More epochs, larger batches or another learning rate may be needed.",
    )
  if len(tenths) >= 4:
    fall = tenths[-2] - last
    mean = (tenths[0] - last) / (len(tenths) - 1)
    if mean > 0 and fall > STEEP * mean:
      return (
        f"{label} is not trained to the end: in the last of {len(tenths)} parts of its "
        f"training the loss still fell by {fall:.2g}, {fall / mean:.0%} of the mean "
        "fall of a part. Longer training may change the results.",
      )
  return ()


def shortened(config: ConfigDict) -> tuple[str, ...]:
  """A sentence about a run of fewer epochs than the recipe of its name has."""
  own = (recipes.load(name) for name in recipes.names() if config.name)
  named = (recipe for recipe in own if recipe.get("name") == config.name)
  epochs = next((recipe.train.epochs for recipe in named), 0)
  if config.train.epochs >= epochs:
    return ()
  return (
    f"Both were trained for {config.train.epochs:g} of the recipe's {epochs:g} epochs. "
    "Longer training may change the results.",
  )
