"""Evaluators: from a checkpoint to numbers, one module each with its `evaluate`."""
