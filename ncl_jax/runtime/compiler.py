"""Compiler options."""

from typing import Any

import jax
from jax.sharding import Mesh

from ncl_jax.runtime import sharding as sharding_lib


def cpu_effort(level: int, mesh: Mesh | None = None) -> dict[str, Any] | None:
  """Returns options that set the optimization level of XLA's CPU backend; else None.

  JAX_DISABLE_MOST_OPTIMIZATIONS, if set, stands.
  """
  disabled = jax.config.values["jax_disable_most_optimizations"]
  if disabled or sharding_lib.platform(mesh) != "cpu":
    return None
  return {"xla_backend_optimization_level": level}
