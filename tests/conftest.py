"""Eight simulated devices and strict shapes for every test."""

import gc
import os
import pathlib

# Before jax is imported: a user's accelerator is left alone, TensorFlow keeps quiet.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The same small programs are built by many tests, and by programs that they start:
# compiled once. A folder for each worker, as none may read what another is writing.
os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
  pathlib.Path(__file__).parent.parent
  / ".pytest_cache"
  / f"compiled-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
)

import jax
import pytest

from ncl_jax.runtime import compile_cache

if not hasattr(jax, "enable_x64"):  # JAX 0.7
  jax.enable_x64 = jax.experimental.enable_x64
jax.config.update("jax_num_cpu_devices", 8)
compile_cache.set_up()
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
  """Compiled programs end with their module: kept, they fill gigabytes."""
  yield
  jax.clear_caches()
  gc.collect()


@pytest.fixture(scope="module")
def two_blocks():
  """Two blocks for a ResNet-10's four: every kind of layer in half the compile time."""
  from ncl_jax import models

  def small(stem, width, dtype):
    return models.ResNet((1, 1), models.BasicBlock, stem, width, dtype)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(models, "resnet10", small)
    yield


@pytest.fixture(scope="module")
def quick_to_compile():
  """For programs that run for milliseconds: their compilation is the whole cost."""
  jax.config.update("jax_disable_most_optimizations", True)
  yield
  jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def x64():
  """Float64 for one test."""
  with jax.enable_x64(True):
    yield
