"""Diverged training: the first bad step is named, and nothing of it is saved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ncl_jax import interop, optimizers
from ncl_jax.checks import divergence
from ncl_jax.config import supervised_recipe
from ncl_jax.encoder import NonNegativeEncoder
from ncl_jax.errors import InputError
from ncl_jax.evaluators import supervised
from ncl_jax.evaluators.run import Run
from ncl_jax.runtime import checkpoint, jsonl
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import frozen_backbone, loop, update
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib
from ncl_jax.training import update as update_lib
from studies.latent import fit, space

BAD = 5  # the step at which something goes wrong


def spoil(tree, when, value):
  """A tree whose first tensor holds one entry `value`, if `when`."""
  leaves, structure = jax.tree.flatten(tree)
  spoilt = leaves[0].ravel().at[0].set(value).reshape(leaves[0].shape)
  leaves[0] = jnp.where(when, spoilt, leaves[0])
  return structure.unflatten(leaves)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_each_part_has_its_bit_and_its_name(bad):
  given = [
    jnp.float32(1.0),
    {"a": jnp.ones(3)},
    {"b": jnp.ones((2, 2)), "c": jnp.ones(2, jnp.bfloat16)},
    {"d": jnp.zeros(2)},
    {"e": jnp.zeros(1)},
  ]
  assert divergence.mark(*given) == 0
  assert divergence.mark(1.0, given[1], given[2], {}, None) == 0
  for bit, name in enumerate(divergence.PARTS):
    spoilt = list(given)
    spoilt[bit] = spoil(given[bit], True, bad)
    found = np.asarray(jax.jit(divergence.mark)(*spoilt))
    assert found == 1 << bit
    with pytest.raises(FloatingPointError, match=f"^step 7: {name} is not finite"):
      divergence.check(np.array([0, 0, found, 31]), 8)
  divergence.check(np.zeros(4, np.int32), 8)


@pytest.fixture
def rate(monkeypatch):
  """Every trainer's learning rate: infinite in step `BAD`, and from there on."""

  def schedule(*_, **__):
    return lambda step: jnp.where(step < BAD - 1, 1e-3, jnp.inf)

  for name in ("warmup_cosine", "step_decay"):
    monkeypatch.setattr(optimizers, name, schedule)
  monkeypatch.setattr(fit.optax, "cosine_decay_schedule", schedule)


def config_of(method="ncl", **settings):
  config = tiny.config(method)
  config.train.update(checkpoint_every_epochs=1, log_every_steps=100, **settings)
  return config


def is_kept_whole(path, step):
  """Whether the newest checkpoint is that of a step, loadable, and all is finite."""
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  model, found = checkpoint.load_model(path, None, sharding)
  text = "".join(file.read_text() for file in path.glob("*.json*"))
  return (
    found == step
    and all(np.isfinite(x).all() for x in jax.tree.leaves(model))
    and not any(word in text for word in ("NaN", "Infinity", "null"))
  )


@pytest.mark.parametrize("per_call", [1, 3])
def test_training_stops_at_the_first_bad_step(tmp_path, rate, per_call):
  config = config_of(steps_per_call=per_call)
  with pytest.raises(FloatingPointError, match=f"^step {BAD}: a parameter is not"):
    loop.train(config, tmp_path / "run", tiny.source())
  assert is_kept_whole(tmp_path / "run", 3)


@pytest.mark.parametrize(
  ("method", "part"),
  [("ncl", "the loss, the gradient"), ("moco_v3", "the momentum encoder")],
)
def test_whatever_is_not_finite_is_named(tmp_path, monkeypatch, method, part):
  make_update, move = update_lib.make_update, update.ema.move

  def no_number(*given):
    go = make_update(*given)

    def changed(state, views, labels):
      params = spoil(state.params, state.step == BAD - 1, jnp.nan)
      return go(state.replace(params=params), views, labels)

    return changed

  def no_copy(config, before, params, seen, step, total):
    return spoil(
      move(config, before, params, seen, step, total), step == BAD - 1, jnp.inf
    )

  if method == "ncl":
    monkeypatch.setattr(step_lib, "make_update", no_number)
  else:
    monkeypatch.setattr(update.ema, "move", no_copy)
  with pytest.raises(FloatingPointError, match=f"^step {BAD}: {part}.* not finite"):
    loop.train(config_of(method), tmp_path / "run", tiny.source())
  assert is_kept_whole(tmp_path / "run", 3)


def test_a_batch_statistic_alone(tmp_path):
  """The loss and the gradient of training do not depend on a running variance."""
  config, source = config_of(), tiny.source()
  mesh = sharding_lib.make_mesh(jax.devices()[:1])
  config = loop.config_lib.resolve(config, source)
  optimizer, learning_rate = optimizer_lib.make_optimizer(config, 3)
  state = tiny.drawn(
    jax.eval_shape(lambda: state_lib.init_state(config, source, optimizer))
  )
  leaves, structure = jax.tree.flatten_with_path(state.batch_stats)
  state = state.replace(
    batch_stats=structure.unflatten(
      np.full_like(x, np.inf) if path[-1].key == "var" else x for path, x in leaves
    )
  )
  step = step_lib.make_step(config, source, mesh, optimizer, learning_rate)
  batch = {
    k: v[:16] for k, v in zip(("image", "label"), tiny.images(0, 16), strict=True)
  }
  _, values, _ = step(state, sharding_lib.to_global(mesh, batch))
  assert values["fault"] == 1 << divergence.PARTS.index("a batch statistic")


def test_the_best_classifier_is_none_that_diverged(tmp_path, rate):
  config = config_of("ce")
  config.eval.test_every_epochs = 1
  with pytest.raises(FloatingPointError, match=f"^step {BAD}: "):
    loop.train(config, tmp_path / "run", tiny.source())
  assert is_kept_whole(tmp_path / "run", 3) and is_kept_whole(tmp_path / "run/best", 3)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_finetuning_and_the_probe_by_sgd(tmp_path, rate, is_frozen):
  source = tiny.source()
  config = loop.config_lib.resolve(config_of(), source)
  mesh = sharding_lib.make_mesh(jax.devices()[:1])
  variables = jax.device_put(
    tiny.drawn(state_lib.shapes(config, source)), sharding_lib.replicated(mesh)
  )
  how = supervised_recipe.Recipe(epochs=4, batch_size=16, warmup_epochs=1.0)
  with pytest.raises(FloatingPointError, match=f"^step {BAD}: a parameter is not"):
    supervised.train(
      how, Run(config, variables, source, mesh), frozen=is_frozen, folder=tmp_path
    )
  (folder,) = tmp_path.iterdir()
  assert is_kept_whole(folder, 3)


def test_a_projector_on_a_backbone(tmp_path, rate, monkeypatch):
  source = tiny.source(train=32)
  backbone = tiny.as_trained(tiny.config(), tmp_path / "backbone", source)
  # No network of its name is known by its weights.
  monkeypatch.setattr(frozen_backbone.restore, "check_fit", lambda *_: None)
  with pytest.raises(FloatingPointError, match=f"^step {BAD}: a parameter is not"):
    frozen_backbone.train_projector(
      tiny.config(),
      backbone,
      tmp_path / "new",
      views=2,
      epochs=4,
      source=source,
    )
  assert not checkpoint.steps(tmp_path / "new")
  rows = jsonl.read(tmp_path / "new" / "metrics.jsonl")
  assert [row["step"] for row in rows] == [2, 4]


def test_an_encoder_is_not_fitted_and_not_written(tmp_path, rate):
  x = np.random.default_rng(0).normal(size=(40, 6))
  encoder = NonNegativeEncoder(n_components=4, n_active=2, batch_size=20, epochs=5)
  with pytest.raises(FloatingPointError, match=f"^step {BAD}: a parameter is not"):
    encoder.fit(x)
  with pytest.raises(ValueError, match="not fitted"):
    encoder.transform(x)
  with pytest.raises(ValueError, match="not fitted"):
    encoder.save(tmp_path / "encoder.safetensors")
  assert not list(tmp_path.iterdir())


def test_codes_of_embeddings_beyond_float32_are_refused():
  x = np.random.default_rng(0).normal(size=(40, 6))
  encoder = NonNegativeEncoder(n_components=3, n_active=2, batch_size=20, epochs=1)
  encoder.fit(x)
  x[7] = 1e300
  with pytest.raises(InputError, match="1 of 40 codes hold NaN or infinity"):
    encoder.transform(x)


@pytest.mark.parametrize("loss", fit.LOSSES)
def test_features_of_a_sample_space(rate, loss):
  samples = space.make("one_hot", 3, 3)
  with pytest.raises(FloatingPointError, match=f"^step {BAD}: "):
    fit.fit(samples, fit.Model(loss, "relu", width=3), seeds=2, steps=7)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nothing_that_is_not_finite_is_written(tmp_path, bad):
  good = {"params": {"w": np.ones(3, np.float32)}, "batch_stats": {}}
  spoilt = {"params": {"w": np.array([1, bad], np.float32)}, "batch_stats": {}}
  rest = {"step": np.int32(1), "epoch": {"low": np.array([np.inf], np.float32)}}
  with checkpoint.Checkpoints(tmp_path) as checkpoints:
    checkpoints.save(1, model=good, train=rest)
    for model, train_ in (
      (spoilt, rest),
      (good, rest | {"opt_state": spoilt}),
      (good, rest | {"momentum": spoilt}),
    ):
      with pytest.raises(FloatingPointError, match=r"step 2 .*params/w"):
        checkpoints.save(2, model=model, train=train_)
  assert checkpoint.steps(tmp_path) == [1]
  with pytest.raises(FloatingPointError, match="not written: 1 of 1 tensors .*: w"):
    interop.tensors_to_bytes({"w": spoilt["params"]["w"]}, {})
