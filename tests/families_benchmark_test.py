"""benchmarks/families.py: what counts as learnt, which rate is chosen, whose budget."""

import json
import types

import jax.numpy as jnp
import pytest

from benchmarks import families, family_tables
from ncl_jax import config as config_lib
from ncl_jax import losses, pair_loss
from ncl_jax.config import validation

FLAGS = types.SimpleNamespace(
  source="", examples=64, image_size=8, width=2, batch=16, epochs=4, momentum=0.9
)


@pytest.mark.parametrize("cell", [*families.METHODS, *families.PLACES])
def test_cells_differ_by_the_method_and_the_place_alone(cell):
  config = families.base(cell, FLAGS)
  config_lib.validate(config)
  validation.check_map(config)
  usual = families.base("ncl", FLAGS)
  changed = set(config_lib.overrides(usual, config))
  own = {"method", "loss.name", "loss.map", "loss.temperature", "loss.prototypes"}
  own |= {"model.projector_batch_norm", "model.projector_layers", "loss.momentum"}
  own |= set(families.PLACES.get(cell, {}))
  assert changed <= own
  assert config_lib.widths(config) == config_lib.widths(usual)


@pytest.mark.parametrize("cell", families.METHODS)
def test_the_loss_of_collapsed_features(cell):
  """All images alike, and of unit length."""
  config = families.base(cell, FLAGS)
  f = jnp.zeros((16, 2, families.WIDTH)).at[..., 0].set(1.0)
  if config.loss.name == "dino":
    loss = losses.dino(jnp.zeros((16, 2, families.WIDTH)), f * 0, f[0, 0] * 0).mean()
  else:
    loss = pair_loss.pair_loss(config, f, f, None, config.loss.temperature, None)
  expected = families.collapsed_loss(config)
  assert config.loss.weight * float(loss) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_learnt_is_above_the_untrained_network_and_above_pixels():
  row = {"untrained, few": 50.0, "pixels, few": 60.0}
  accuracies = {60.1: True, 60.0: False, 52.0: False}
  assert {
    h: family_tables.learns({"h, few": h, **row}) for h in accuracies
  } == accuracies
  row["pixels, few"] = 40.0
  accuracies = {53.0: True, 52.9: False}
  assert {
    h: family_tables.learns({"h, few": h, **row}) for h in accuracies
  } == accuracies
  assert not family_tables.learns({"diverged": True})


def test_the_tables_show_runs_that_diverged_and_cells_that_are_not_there(tmp_path):
  row = dict.fromkeys(("h, few", "untrained, few", "pixels, few"), 50.0)
  rows = [
    {
      "cell": "cl",
      "seed": 1,
      **row,
      "rank, f": 3.0,
      "live, f": 9,
      "live, by epoch": [200, 3, 4],
    },
    {"cell": "byol", "seed": 1, "diverged": True},
  ]
  tried = [{"cell": row["cell"], "learning rate": 0.1, "h, few": 9.0} for row in rows]
  for name, found in {"families": rows, "tuning": tried}.items():
    (tmp_path / f"{name}.json").write_text(json.dumps({"rows": found}))
  lines = families.tables(tmp_path)
  shown = {word.strip() for word in next(x for x in lines if "byol" in x).split("|")}
  assert shown == {"", "byol", "–", "no"}
  (heading,) = [x for x in lines if "half dead from epoch" in x]
  column = heading.split(" | ").index("half dead from epoch")
  assert lines[lines.index(heading) + 2].split(" | ")[column] == "2"


def test_the_state_at_the_end():
  def row(rank, live):
    return {"rank, f": rank, "live, f": live}

  assert family_tables.state([row(1.9, 256), row(1.0, 0)]) == "collapsed"
  assert family_tables.state([row(1.9, 127), row(2.0, 127)]) == "half dead"
  assert family_tables.state([row(1.9, 127), row(2.0, 128)]) == "alive"
  assert family_tables.state([{"diverged": True}, row(9.0, 256)]) == "diverged"


def test_the_best_rate_is_never_one_that_diverged():
  rows = [
    {"cell": "cl", "learning rate": 0.1, "h, few": 60.0},
    {"cell": "cl", "learning rate": 0.2, "h, few": 61.0},
    {"cell": "cl", "learning rate": 0.3, "h, few": None},
    {"cell": "byol", "learning rate": 0.3, "h, few": None},
    {"cell": "byol", "learning rate": 0.2, "h, few": 30.0},
  ]
  assert family_tables.best(rows) == {"cl": 0.2, "byol": 0.2}
