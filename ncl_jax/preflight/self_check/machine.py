"""What is installed, and which devices there are."""

import glob
import importlib.metadata
import os
import platform

import jax

import ncl_jax
from ncl_jax.host import resources
from ncl_jax.preflight.self_check.result import Result


def versions() -> Result:
  """What is installed."""
  packages = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
  found = [f"ncl_jax {ncl_jax.__version__}", f"python {platform.python_version()}"]
  found += [f"{name} {importlib.metadata.version(name)}" for name in packages]
  return Result("versions", True, ", ".join(found))


def devices() -> Result:
  """What JAX found, and whether it overlooked an accelerator."""
  first = jax.local_devices()[0]
  limit = (first.memory_stats() or {}).get("bytes_limit")
  memory = f"{limit / 2**30:.1f} GiB each" if limit else "memory unknown"
  detail = (
    f"{jax.device_count()} x {first.platform} ({first.device_kind}), {memory}, "
    f"{jax.process_count()} process(es), {resources.cores()} CPU cores here"
  )
  unused = {
    "NVIDIA GPU": ("cuda13", "/dev/nvidia[0-9]*"),
    "TPU": ("tpu", "/dev/accel[0-9]*"),
  }
  for name, (extra, pattern) in unused.items():
    if first.platform == "cpu" and glob.glob(pattern):
      asked = os.environ.get("JAX_PLATFORMS")
      why = (
        f"JAX_PLATFORMS is {asked}"
        if asked
        else f'its plug-in is absent or failed: pip install -U "jax[{extra}]"'
      )
      return Result("devices", None, f"{detail}; a {name} is here, but {why}")
  return Result("devices", True, detail)
