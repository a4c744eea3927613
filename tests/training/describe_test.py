"""What a run's log says at its start."""

import logging as python_logging

import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax.runtime import sharding
from ncl_jax.training import describe


@pytest.mark.parametrize(
  ("backbone", "slices", "layers"),
  [("resnet10", 1, 0), ("resnet10", 2, 12), ("vit_tiny", 2, 0)],
)
def test_several_slices_are_told_their_cost(
  backbone, slices, layers, monkeypatch, caplog
):
  """A ResNet-10: the stem's, two for each of four blocks, three shortcuts'."""
  source, config = tiny.source(), tiny.config()
  config.model.backbone, config.model.width = backbone, 4
  monkeypatch.setattr(sharding, "slices", lambda mesh: slices)
  mesh, config = sharding.make_mesh(), config_lib.resolve(config, source)
  with caplog.at_level(python_logging.WARNING, logger="absl"):
    describe.run(config, source, mesh, total=1)
  said = f"2 TPU slices: the statistics of {layers} BatchNorm layers"
  assert (said in caplog.text) == bool(layers)
  assert ("TPU slices" in caplog.text) == bool(layers)
