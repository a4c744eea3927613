"""Turns frozen embeddings into sparse non-negative codes, without a config."""

from ncl_jax.encoder.estimator import NonNegativeEncoder
from ncl_jax.encoder.search import InvertedIndex, nearest, recall

__all__ = ["InvertedIndex", "NonNegativeEncoder", "nearest", "recall"]
