"""Eight simulated devices and strict shapes for every test."""

import os

# Before jax is imported: a user's accelerator is left alone, TensorFlow keeps quiet.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
  """Float64 for one test."""
  with jax.enable_x64(True):
    yield
