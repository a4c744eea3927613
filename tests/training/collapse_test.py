"""The watch over an epoch: what it counts, when it begins anew, when it warns."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ncl_jax.runtime import jsonl
from ncl_jax.training import collapse, loop, metric_logger
from ncl_jax.training import state as state_lib

THRESHOLD = 1e-5


def features(seed, n=6, width=5):
  """Dimension 0 is dead, 1 is constant where active; some rows are all zero."""
  z = np.random.default_rng(seed).exponential(size=(n, 2, width)).astype(np.float32)
  z[..., 0] = 0
  z[..., 1] = 0
  z[0, 1] = 0
  return z


def test_an_epoch_is_counted_as_if_it_were_one_batch():
  batches = [features(seed) for seed in range(4)]
  record = collapse.start(5)
  fold = jax.jit(collapse.fold)
  # What came before the first step of an epoch does not count.
  record = fold(record, jnp.ones((6, 2, 5)), True)
  for i, z in enumerate(batches):
    record = fold(record, z, i == 0)
  rows = np.concatenate(batches).reshape(-1, 5).astype(np.float64)
  norm = np.linalg.norm(rows, axis=1, keepdims=True)
  f = np.divide(rows, norm, out=np.zeros_like(rows), where=norm > 0)
  values = collapse.summary(record, THRESHOLD)
  assert values["epoch_active_dimensions"] == np.sum(np.abs(f).max(0) > THRESHOLD) == 3
  assert values["epoch_constant_dimensions"] == 0
  assert values["epoch_zero_rows"] == pytest.approx(np.mean(norm == 0))
  np.testing.assert_allclose(record["low"], f.min(0), atol=1e-6)
  np.testing.assert_allclose(record["high"], f.max(0), atol=1e-6)


def test_constant_dimensions_and_negative_ones():
  record = collapse.fold(collapse.start(2), jnp.full((3, 2, 2), -1.0), jnp.bool_(True))
  values = collapse.summary(record, THRESHOLD)
  assert values["epoch_active_dimensions"] == values["epoch_constant_dimensions"] == 2
  assert values["epoch_zero_rows"] == 0


@pytest.mark.parametrize(
  ("live", "constant", "empty", "says"),
  [
    (10, 0, 0.0, []),
    (5, 5, 0.01, []),
    (4, 0, 0.0, ["6 of 10 dimensions are zero for every image"]),
    (10, 6, 0.0, ["6 of 10 dimensions have the same value"]),
    (10, 0, 0.02, ["2.0% of the views have no feature"]),
    (0, 0, 1.0, ["10 of 10 dimensions are zero", "100.0% of the views"]),
  ],
)
def test_warnings(live, constant, empty, says):
  values = {
    "epoch_active_dimensions": live,
    "epoch_constant_dimensions": constant,
    "epoch_zero_rows": empty,
  }
  lines = list(collapse.warnings(values, 10, "relu").values())
  assert len(lines) == len(says)
  assert all(line.startswith(start) for line, start in zip(lines, says, strict=True))
  for line in lines:
    assert "a longer warm-up" in line
  # The transform that cures dead dimensions is not advised to those who have it.
  assert "rep_relu" not in "".join(collapse.warnings(values, 10, "rep_relu").values())


def test_a_projector_that_is_dead_is_told_in_the_first_epoch(tmp_path, monkeypatch):
  config, source = tiny.config(), tiny.source()
  config.loss.transform = "relu"
  config.train.epochs = 2
  initial = state_lib.init_variables

  def dead(config, source):
    variables = initial(config, source)
    last = variables["params"]["projector"]["linear2"]
    last["bias"] = jnp.full_like(last["bias"], -10)
    return variables

  said = []
  monkeypatch.setattr(state_lib, "init_variables", dead)
  log = types.SimpleNamespace(
    info=lambda *_: None, warning=lambda text, *values: said.append(text % values)
  )
  monkeypatch.setattr(metric_logger, "logging", log)
  path = loop.train(config, tmp_path / "run", source)
  first = said[0]
  assert first.startswith("epoch 1: 8 of 8 dimensions are zero for every image")
  assert "--config.loss.transform=rep_relu" in first
  assert "100.0% of the views" in said[1]
  assert len(said) == 2, "said once, not every epoch"
  rows = jsonl.read(path / "metrics.jsonl")
  assert rows[-1]["epoch_active_dimensions"] == 0 and rows[-1]["epoch_zero_rows"] == 1
  # The loss of no features at all: every other row is as near as the positive.
  assert all(row["loss"] == pytest.approx(np.log(2 * 16 - 1)) for row in rows)


def test_what_grows_worse_is_told_too(tmp_path, monkeypatch):
  said = []
  log = types.SimpleNamespace(warning=lambda text, *values: said.append(text % values))
  monkeypatch.setattr(metric_logger, "logging", log)
  kept = metric_logger.Recorder(tmp_path / "metrics.jsonl", None, 1, tiny.config())
  for epoch, (live, empty) in enumerate([(8, 0.5), (1, 0.5), (8, 0.0), (1, 0.0)], 1):
    values = {"epoch_active_dimensions": live, "epoch_zero_rows": empty}
    kept._warn(epoch, values | {"epoch_constant_dimensions": 0})
  assert [line.split(" of ")[0] for line in said] == [
    "epoch 1: 50.0%",
    "epoch 2: 7",
    "epoch 4: 7",
  ]
