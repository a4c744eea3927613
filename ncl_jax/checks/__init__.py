"""Checks of arguments, and of values that are no longer finite."""

from ncl_jax.checks.arguments import (
  array,
  choice,
  features,
  finite,
  identities,
  labels,
  mask,
  pixels,
  positive,
  real,
  same_width,
  whole,
)

__all__ = [
  "array",
  "choice",
  "features",
  "finite",
  "identities",
  "labels",
  "mask",
  "pixels",
  "positive",
  "real",
  "same_width",
  "whole",
]
