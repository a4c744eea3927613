"""An encoder that several modules test; those that change it copy it first."""

import numpy as np
import pytest

from ncl_jax.encoder import NonNegativeEncoder


@pytest.fixture(scope="package")
def x():
  """[300, 6], of which column 2 is constant and column 4 far from 0."""
  x = np.random.default_rng(0).normal(size=(300, 6))
  x[:, 2] = 0.1
  x[:, 4] += 1000
  return x


@pytest.fixture(scope="package")
def fitted(x):
  settings = {"n_active": 3, "epochs": 2, "batch_size": 64, "random_state": 0}
  return NonNegativeEncoder(16, **settings).fit(x)
