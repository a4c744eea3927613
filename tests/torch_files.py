"""Files of networks under torch's names."""

import jax
import numpy as np
import tiny

from ncl_jax import config as config_lib
from ncl_jax import interop


def tiny_state(seed=0, classes=2, **sizes):
  """The torch state of the tiny config's ResNet-10, drawn at random."""
  config = config_lib.resolve(tiny.config(backbone="resnet10"), tiny.source())
  for key, value in sizes.items():
    with config.unlocked():
      config.model[key] = value
  shapes = jax.eval_shape(
    lambda: config_lib.model(config).init(
      jax.random.key(0), np.zeros((1, 8, 8, 1), np.float32)
    )
  )
  rng = np.random.default_rng(seed)
  draw = lambda s: rng.uniform(0.1, 1, s.shape).astype(np.float32)  # noqa: E731
  variables = jax.tree.map(draw, shapes)
  if classes:
    width = config_lib.model(config).backbone.num_features
    variables["params"]["probe"] = {
      "kernel": rng.normal(size=(width, classes)).astype(np.float32),
      "bias": rng.normal(size=classes).astype(np.float32),
    }
  return interop.to_torch(variables)


def save(path, state):
  path.write_bytes(interop.tensors_to_bytes(state, {}))
  return path
