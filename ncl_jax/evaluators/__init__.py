"""Separate jitted programs on checkpoints: one module each, `evaluate(...) -> dict`."""
