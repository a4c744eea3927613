"""A finished run, for programs that are called wrongly."""

import jax
import numpy as np
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax.runtime import checkpoint
from ncl_jax.training import state as state_lib


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A work directory as training leaves it, with zeros as weights: nothing compiles."""
  place = tmp_path_factory.mktemp("run")
  config, path = tiny.config(), place / "R"
  path.mkdir()
  config.data.source = f"arrays:{tiny.npz(place / 'tiny.npz')}"
  config = config_lib.resolve(config, tiny.source())
  (path / "config.json").write_text(config_lib.to_json(config))
  shapes = jax.eval_shape(lambda: state_lib.init_variables(config, tiny.source()))
  zeros = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes)
  with checkpoint.Checkpoints(path) as checkpoints:
    checkpoints.save(12, model=zeros, train={"step": np.int32(12)})
  return place
