"""Features: of any batch and any devices, and of the views that training makes."""

import dataclasses

import jax
import numpy as np
import pytest

from ncl_jax import augment, features
from ncl_jax import config as config_lib
from ncl_jax.evaluators.run import Run
from ncl_jax.runtime import sharding as sharding_lib


def two_views(run, mesh=None, batch_size=16, seed=0):
  network = dataclasses.replace(
    run.network(), mesh=mesh or run.mesh, batch_size=batch_size
  )
  return features.extract_two_views(
    run.variables, run.source, "test", network, seed=seed
  )


@pytest.mark.parametrize("batch_size, devices", [(7, 1), (45, 8)])
def test_two_views_do_not_depend_on_batch_or_devices(run, batch_size, devices):
  expected = two_views(run)
  mesh = sharding_lib.make_mesh(jax.devices()[:devices])
  seen = two_views(run, mesh, batch_size)
  for one, other in zip(seen, expected, strict=True):
    np.testing.assert_array_equal(one.ids, np.arange(45))
    np.testing.assert_array_equal(one.labels, run.source.split("test").labels)
    scale = np.abs(other.z).max()
    np.testing.assert_allclose(one.z, other.z, atol=1e-5 * scale)
    np.testing.assert_allclose(one.h, other.h, atol=1e-5 * np.abs(other.h).max())


@pytest.mark.parametrize("batch_size", [7, 45])
def test_two_views_do_not_depend_on_the_random_numbers_that_jax_prefers(
  run, batch_size
):
  expected = two_views(run)[0].z
  with jax.default_prng_impl("rbg"):
    seen = two_views(run, batch_size=batch_size)[0].z
  np.testing.assert_allclose(seen, expected, atol=1e-5 * np.abs(expected).max())


def test_two_views_are_the_augmentations(run):
  """An image's views by hand: its own key, the recipe, the network."""
  one, other = two_views(run, seed=3)
  image = run.source.split("test").images[20:21]
  key = jax.random.fold_in(jax.random.key(3), 20)
  make = jax.jit(augment.two_views, static_argnums=2)
  views = make(key, image, config_lib.augmentation(run.config))
  params = {k: v for k, v in run.variables["params"].items() if k != "probe"}
  variables = {"params": params, "batch_stats": run.variables["batch_stats"]}
  model = config_lib.model(run.config)
  _, _, z = jax.jit(lambda v, x: model.apply(v, x, method="embed"))(variables, views[0])
  np.testing.assert_allclose([one.z[20], other.z[20]], z, rtol=1e-4, atol=1e-5)
  assert np.abs(one.z - other.z).max() > 1e-3
  assert np.abs(one.z - two_views(run, seed=4)[0].z).max() > 1e-3


def test_features_do_not_depend_on_devices(run):
  alone = sharding_lib.make_mesh(jax.devices()[:1])
  seen = Run(run.config, run.variables, run.source, alone).extract("test")
  np.testing.assert_array_equal(seen.ids, np.arange(45))
  for name in ("h", "hidden", "z"):
    expected = getattr(run.extract("test"), name)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(getattr(seen, name), expected, atol=1e-5 * scale)
