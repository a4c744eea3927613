"""Training methods, one record each: its loss, its needs, its settings, its recipe.

Code elsewhere asks the record (`methods.of(config).momentum_encoder`) and never
compares `loss.name`. To add a method, add its record to a list of this package and its
loss to `ncl_jax/losses`.
"""

from ncl_jax.methods.record import LossInputs, Method, Setting
from ncl_jax.methods.registry import (
  BY_NAME,
  BY_VARIANT,
  METHODS,
  VARIANTS,
  WITH_TRANSFORM,
  check,
  of,
  published,
  set_up,
  settings,
)

__all__ = [
  "BY_NAME",
  "BY_VARIANT",
  "METHODS",
  "VARIANTS",
  "WITH_TRANSFORM",
  "LossInputs",
  "Method",
  "Setting",
  "check",
  "of",
  "published",
  "set_up",
  "settings",
]
