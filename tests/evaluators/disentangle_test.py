"""`launch.disentangle`'s evaluator on a small run of dSprites, and its parts."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import tiny
from configs_by_name import get

from ncl_jax import config as config_lib
from ncl_jax import data
from ncl_jax.data import dsprites
from ncl_jax.errors import InputError
from ncl_jax.evaluators import disentangle
from ncl_jax.runtime import sharding
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib


@pytest.fixture(scope="module")
def source():
  whole = dsprites.load(16, ("orientation",))
  return data.subset(whole, train=200, test=240)


@pytest.fixture(scope="module")
def config(source):
  c = get("dsprites")
  c.model.backbone, c.model.width = "resnet_tiny", 2
  c.model.projector_hidden, c.model.projector_out = 16, 8
  c.train.batch_size = 16
  return config_lib.resolve(c, source)


def test_a_run_and_what_needs_no_training(config, source):
  mesh = sharding.make_mesh()
  variables = state_lib.build(lambda: state_lib.init_variables(config, source), mesh)
  result = disentangle.evaluate(config, variables, source, mesh)
  settings = result["settings"]
  assert settings["factors"] == ["shape", "scale", "x", "y"]
  assert settings["left_out"] == ["orientation"]
  assert (settings["images"], settings["dimensions"]) == (240, 8)
  # These variables are the untrained ones.
  assert result["f"] == result["untrained"]
  # Position is linear in no pixel, but components tell of it; shuffled ones do not.
  read, chance = (result[k]["dci_informativeness"] for k in ("pca", "shuffled"))
  assert read > chance + 0.1
  assert result["pca"]["active_dimensions"] == 8
  table = disentangle.table({k: result[k] for k in ("f", "pca")})
  assert [line.count("|") for line in table.splitlines()] == [11] * 4


@pytest.mark.parametrize(
  ("changes", "expected"),
  [
    ({}, ("shape", "scale", "x", "y")),
    ({"data.pair_factors": ("x", "y")}, ("shape", "scale", "orientation")),
    ({"augment.flip": 0.5}, ("shape", "scale", "y")),
    (
      {"augment.crop_scale": (0.5, 1.0), "data.pair_factors": ()},
      ("shape", "orientation"),
    ),
  ],
)
def test_only_what_pairs_share_is_scored(config, source, changes, expected):
  c = config.copy_and_resolve_references()
  c.update_from_flattened_dict(changes)
  assert disentangle.scored(c, source) == expected


def test_refuses_data_without_factors(config):
  with pytest.raises(InputError, match="the factors none"):
    disentangle.scored(config, tiny.source())
  c = config.copy_and_resolve_references()
  c.data.pair_factors = ("shape", "scale", "x", "y")
  with pytest.raises(InputError, match="share orientation: disentangle needs"):
    disentangle.scored(c, dsprites.load(16))


def test_factors_of_one_value_are_no_factors(config, source):
  """Of two factors one was constant, and every score NaN."""
  split = source.split("test")
  levels = split.levels | {k: np.zeros_like(split.labels) for k in ("scale", "x", "y")}
  test = dataclasses.replace(split, levels=levels)
  flat = dataclasses.replace(source, splits=source.splits | {"test": test})
  with pytest.raises(
    InputError, match="scale, x, y have one value.* needs 2 that vary"
  ):
    disentangle.evaluate(config, None, flat, None)


def test_principal_components_are_those_of_the_covariance(source):
  found = disentangle.principal(source, 3, seed=0)
  train, test = (
    source.split(s).images[np.arange(source.num_examples(s))].reshape(-1, 256) / 1.0
    for s in ("train", "test")
  )
  values, vectors = np.linalg.eigh(np.cov(train.T))
  expected = (test - train.mean(0)) @ vectors[:, ::-1][:, :3]
  for one, other in zip(found.T, expected.T, strict=True):
    assert abs(np.corrcoef(one, other)[0, 1]) > 0.99


def test_a_step_of_pairs_is_the_step_of_their_images(config, source):
  """The trainer takes images [N, 2, H, W, C] as the two views."""
  batches = source.train_batches(0, 0, 16, pairs=True)
  batch = next(batches)
  batches.close()
  assert batch["image"].shape == (16, 2, 16, 16, 1)
  mesh = sharding.make_mesh()
  optimizer, rate = optimizer_lib.make_optimizer(config, 10)
  step = step_lib.make_step(config, source, mesh, optimizer, rate)
  state = state_lib.build(lambda: state_lib.init_state(config, source, optimizer), mesh)
  given = sharding.to_global(mesh, {k: batch[k] for k in ("image", "label")})
  before = jax.tree.map(np.asarray, {"params": state.params, "s": state.batch_stats})
  _, values, z = step(state, given)
  assert np.isfinite(float(values["loss"])) and z.shape == (16, 2, 8)
  # Without augmentation the views are the images, normalised.
  mean, std = config.augment.mean[0], config.augment.std[0]
  views = (batch["image"] / np.float32(255) - mean) / std
  model = config_lib.model(config)
  apply = functools.partial(model.apply, train=True, views=2, mutable=["batch_stats"])
  (_, expected), _ = jax.jit(apply)(
    {"params": before["params"], "batch_stats": before["s"]},
    views.reshape(32, 16, 16, 1).astype(np.float32),
  )
  np.testing.assert_allclose(
    np.asarray(z).reshape(32, 8), np.maximum(expected, 0), atol=1e-3
  )
