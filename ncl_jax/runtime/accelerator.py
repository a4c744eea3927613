"""Accelerators: refuse to run without the requested one, and say what it changes."""

import os

import jax

from ncl_jax.errors import Failed


def require() -> None:
  """Starts the platform that JAX_PLATFORMS names first, unless that is the CPU.

  Without JAX_PLATFORMS, JAX falls back to the CPU when an accelerator does not start.

  Raises:
    Failed: if it does not start.
  """
  platform = (jax.config.values["jax_platforms"] or "cpu").split(",")[0]
  if platform == "cpu":
    return
  try:
    jax.devices()
  except RuntimeError as error:
    raise Failed(
      f"JAX_PLATFORMS requests {platform}, which did not start. Check that no other "
      "process holds the devices, that the driver runs and that the matching JAX is "
      f"installed (docs/scaling.md). ({error})"
    ) from error


def differences(dtype: str, platform: str) -> list[str]:
  """Sentences on how results differ from a CPU's, by `model.dtype` and the platform."""
  found = []
  precision = jax.config.values["jax_default_matmul_precision"]
  if platform != "cpu" and dtype == "float32" and not precision:
    found.append(
      "model.dtype=float32: the device rounds the factors of each product to "
      f"{'bfloat16' if platform == 'tpu' else 'TF32'}. Set "
      "JAX_DEFAULT_MATMUL_PRECISION=highest for full float32, which is slower"
    )
  flags = os.environ.get("XLA_FLAGS", "")
  if platform == "gpu" and "xla_gpu_deterministic_ops" not in flags:
    found.append(
      "a GPU adds in varying order: two equal runs differ in the last bits. Set "
      "XLA_FLAGS=--xla_gpu_deterministic_ops=true for equal results"
    )
  return found
