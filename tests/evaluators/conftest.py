"""A network that the tests of single evaluators share."""

import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax.evaluators.run import Run
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import state as state_lib


@pytest.fixture(scope="session")
def run(tmp_path_factory):
  """A network before training: as good as any to compare two computations."""
  source = tiny.source(train=64, test=45)
  config = config_lib.resolve(tiny.config(), source)
  mesh = sharding_lib.make_mesh()
  variables = state_lib.build(lambda: state_lib.init_variables(config, source), mesh)
  path = tmp_path_factory.mktemp("run")
  return Run(config, variables, source, mesh, path, 0)
