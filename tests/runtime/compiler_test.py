"""Compiler options."""

import jax
import pytest

from ncl_jax.runtime import compiler


@pytest.mark.parametrize(
  ("disabled", "options"),
  [(False, {"xla_backend_optimization_level": 1}), (True, None)],
)
def test_jaxs_flag_against_optimizations_stands(disabled, options):
  name = "jax_disable_most_optimizations"
  before = jax.config.values[name]
  jax.config.update(name, disabled)
  try:
    assert compiler.cpu_effort(1) == options
  finally:
    jax.config.update(name, before)
