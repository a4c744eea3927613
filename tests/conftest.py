"""Eight simulated devices and strict shapes for every test."""

import ctypes
import gc
import os
import pathlib

# Before jax is imported: a user's accelerator is left alone, TensorFlow keeps quiet.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# A core for each worker: threads of OpenBLAS and OpenMP would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Test programs run for milliseconds, so compilation is their cost: a fifth of the time
# without optimizations and with XLA's older code generator. A tenth less if it does not
# divide programs among threads. Inherited by subprocesses.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault(
  "XLA_FLAGS",
  "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)
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


def pytest_collection_finish():
  # What is imported by now stays: no collection need look at it.
  gc.collect()
  gc.freeze()


# Compiled programs end with their module, or before they fill so many bytes.
MEMORY = 1.5 * 2**30


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
  if nextitem and nextitem.path == item.path and resident() < MEMORY:
    return
  jax.clear_caches()
  gc.collect()
  # glibc keeps what was freed, more than a gigabyte, until it is asked.
  if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
    trim(0)


def resident():
  """Bytes of this process in memory; 0 where the system is not Linux."""
  statm = pathlib.Path("/proc/self/statm")
  if not statm.exists():
    return 0
  return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def optimized():
  """For programs that run longer than they compile."""
  name = "jax_disable_most_optimizations"
  before = jax.config.values[name]
  jax.config.update(name, False)
  yield
  jax.config.update(name, before)


@pytest.fixture
def x64():
  """Float64 for one test."""
  with jax.enable_x64(True):
    yield
