"""Frozen embeddings in, sparse non-negative codes out, for those who want no config."""

from ncl_jax.encoder.estimator import NonNegativeEncoder
from ncl_jax.encoder.search import InvertedIndex, nearest, recall

__all__ = ["InvertedIndex", "NonNegativeEncoder", "nearest", "recall"]
