"""Eight simulated devices and strict shapes for every test."""

import os

# Before jax is imported: a user's accelerator is left alone, TensorFlow keeps quiet.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module")
def two_blocks():
  """Two blocks for a ResNet-10's four: every kind of layer in half the compile time."""
  from ncl_jax import models

  def small(stem, width, dtype):
    return models.ResNet((1, 1), models.BasicBlock, stem, width, dtype)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(models, "resnet10", small)
    yield


@pytest.fixture
def x64():
  """Float64 for one test."""
  with jax.enable_x64(True):
    yield
