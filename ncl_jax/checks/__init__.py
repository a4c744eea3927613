"""Checks of arguments, and of values that are no longer finite."""

from ncl_jax.checks.arguments import (
  array,
  choice,
  features,
  finite,
  mask,
  number,
  pixels,
  positive,
  real,
  same_width,
  whole,
)
from ncl_jax.checks.labels import identities, labels

__all__ = [
  "array",
  "choice",
  "features",
  "finite",
  "identities",
  "labels",
  "mask",
  "number",
  "pixels",
  "positive",
  "real",
  "same_width",
  "whole",
]
