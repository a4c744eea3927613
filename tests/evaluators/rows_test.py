"""Every row that an evaluator declares leads to a number of its result.

And nothing on the way to it is NaN, of healthy features with a dimension that is dead.
"""

import evaluators_pairs_test as two_towers
import jax
import numpy as np
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax.data import corruptions
from ncl_jax.evaluators import registry, robustness, selection, supervised
from ncl_jax.evaluators.run import LAYERS, Run
from ncl_jax.report.sweep import number
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import state as state_lib


def untrained(config, source):
  config = config_lib.resolve(config, source)
  mesh = sharding_lib.make_mesh()
  variables = state_lib.build(lambda: state_lib.init_variables(config, source), mesh)
  variables = jax.tree.map(np.array, variables)
  variables["params"]["projector"]["linear2"]["bias"][0] = -1e3  # dead
  return Run(config, variables, source, mesh)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """Another set for the transfer and for shifted images, of classes by number."""
  path = tmp_path_factory.mktemp("other") / "other.npz"
  config = tiny.config()
  config.eval.transfer = f"arrays:{tiny.npz(path, train=24, test=24)}"
  config.eval.ood = (config.eval.transfer,)
  source = tiny.source(train=24, test=24)
  object.__setattr__(source, "class_names", ("0", "1"))
  return untrained(config, source)


@pytest.fixture
def quick(run, monkeypatch):
  monkeypatch.setattr(corruptions, "SEVERITIES", (2,))
  monkeypatch.setattr(corruptions, "names", lambda channels: ("contrast",))
  monkeypatch.setattr(robustness, "LABEL_NOISE", (0.4,))
  monkeypatch.setattr(robustness, "SHOTS", (3,))
  monkeypatch.setattr(selection, "SHARES", (1 / 4, 1))
  monkeypatch.setattr(selection, "DRAWS", 2)

  def trained(*args, **kwargs):
    """In place of a training, which adds no key."""
    width = {layer: run.layer(layer, "test").shape[1] for layer in LAYERS}
    heads = {
      layer: {"kernel": np.zeros((n, 2), np.float32), "bias": np.zeros(2, np.float32)}
      for layer, n in width.items()
    }
    params = {k: v for k, v in run.variables["params"].items() if k != "probe"}
    return supervised.Trained(run.variables | {"params": params}, heads, settings={})

  monkeypatch.setattr(supervised, "train", trained)


@pytest.mark.parametrize("name", registry.registered())
def test_rows_lead_to_numbers(name, run, quick):
  if name == "pairs":
    run = untrained(two_towers.config(), two_towers.source())
  evaluator = registry.registered()[name]
  options = {"other": run} if evaluator.two_runs else {}
  with jax.debug_nans(True):
    result = evaluator(run, **options)
  rows = evaluator.rows(run.config, run.source)
  assert rows
  for row in rows:
    # Not one of 10 or 100 dimensions where there are 8.
    if row.key not in ("sepin_10", "sepin_100"):
      assert np.isfinite(number(result, row.where)), row.key
    if row.chance and row.chance not in (registry.SAME_CLASS, registry.LARGEST_CLASS):
      chance = number(result, row.chance)
      assert np.isfinite(chance) or row.key in ("sepin_10", "sepin_100"), row.key
