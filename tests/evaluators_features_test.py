"""The programs on cached features: what they report, against a second derivation."""

import jax
import numpy as np
import pytest
import tiny

from ncl_jax import augment, features, metrics, writer
from ncl_jax import config as config_lib
from ncl_jax import sharding as sharding_lib
from ncl_jax import step as step_lib
from ncl_jax.errors import InputError
from ncl_jax.evaluators import program, sepin


@pytest.fixture(scope="module")
def run(tmp_path_factory, two_blocks):
  """A network before training: as good as any to compare two computations."""
  source = tiny.source(train=64, test=45)
  config = config_lib.resolve(tiny.config(), source)
  mesh = sharding_lib.make_mesh()
  variables = step_lib.build(lambda: step_lib.init_variables(config, source), mesh)
  path = tmp_path_factory.mktemp("run")
  return program.Run(config, variables, 0, source, mesh, path)


def evaluate(run, evaluator, source=None, **options):
  source = source or run.source
  return evaluator.evaluate(run.config, run.variables, source, run.mesh, **options)


def two_views(run, mesh=None, batch_size=16, seed=0):
  return features.extract_two_views(
    config_lib.model(run.config),
    run.variables,
    run.source,
    "test",
    view=config_lib.augmentation(run.config),
    mesh=mesh or run.mesh,
    batch_size=batch_size,
    seed=seed,
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


def test_sepin_ranks_on_one_half_and_scores_on_the_other(run):
  result = evaluate(run, sepin)
  settings, values = result["settings"], result["f"]
  assert settings["temperature"] == run.config.loss.temperature == 0.2
  assert (settings["negatives"], settings["batches"], settings["images"]) == (21, 2, 44)
  f_a, f_b = (view.layer("f", "rep_relu") for view in two_views(run))
  order = np.random.default_rng([0, 1]).permutation(45)[:44]
  first, second = (
    np.asarray(metrics.sepin(f_a[rows], f_b[rows], temperature=0.2))
    for rows in (order[:22], order[22:])
  )
  best = [first[np.argmax(second)], second[np.argmax(first)]]
  assert values["sepin@1"] == pytest.approx(np.mean(best), abs=1e-6)
  assert values["sepin@1_std"] == pytest.approx(np.std(best, ddof=1), abs=1e-6)
  lucky = np.mean([first.max(), second.max()])
  assert values["sepin@1_lucky"] == pytest.approx(lucky, abs=1e-6)
  assert values["sepin@all"] == pytest.approx(np.mean([first, second]), abs=1e-6)
  assert "sepin@10" not in values  # of 8 dimensions
  assert {row["temperature"] for row in values["curve"]} == set(sepin.TEMPERATURES)
  at_training = next(row for row in values["curve"] if row["temperature"] == 0.2)
  assert at_training["sepin@1"] == values["sepin@1"]
  assert values["noise_sepin@1"] < values["noise_sepin@1_lucky"]


@pytest.mark.parametrize(
  "images, shape", [(4, (2, 1, 2)), (45, (2, 1, 22)), (1030, (2, 2, 257))]
)
def test_sepin_uses_each_image_once_in_batches_of_one_size(images, shape):
  batches = sepin._batches(images, 0)
  assert batches.shape == shape
  assert len(np.unique(batches)) == batches.size > images - 4


def test_sepin_finds_planted_information_and_none_in_noise():
  """Dimension d of the first 4 names a part of the images; the rest is noise."""
  rng = np.random.default_rng(0)
  code = np.eye(4)[rng.integers(0, 4, 200)]
  one, other = (
    np.hstack([code, rng.normal(scale=0.1, size=(200, 12))]).astype(np.float32)
    for _ in range(2)
  )
  batches = sepin._batches(200, 0)
  values = sepin.statistics(one, other, batches, 0.2)
  assert values["sepin@1"] > 0.05
  unrelated = sepin.statistics(one, rng.permutation(other), batches, 0.2)
  assert unrelated["sepin@1"] < 0.1 * values["sepin@1"]


def test_sepin_needs_images(run):
  with pytest.raises(InputError, match="at least 4"):
    evaluate(run, sepin, tiny.source(train=64, test=3))


@pytest.mark.parametrize("evaluator, options", [(sepin, {})])
def test_a_program_writes_a_line(run, monkeypatch, evaluator, options):
  monkeypatch.setattr(program, "open_run", lambda *_: run)
  row = program.run(evaluator, run.path, **options)
  name = evaluator.__name__.rsplit(".", 1)[-1]
  assert writer.read(run.path / "eval" / f"{name}.jsonl") == [writer.to_json(row)]
