"""Two towers: tokens, padding, one and eight devices, resuming, wrong settings."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ncl_jax import augment, models
from ncl_jax import config as config_lib
from ncl_jax.data import texts
from ncl_jax.data.source import Source, Split
from ncl_jax.errors import InputError
from ncl_jax.evaluators import pairs
from ncl_jax.evaluators.run import open_run
from ncl_jax.experiments import explorer as explorer_lib
from ncl_jax.models import byte_tokenizer
from ncl_jax.runtime import checkpoint, jsonl, sharding
from ncl_jax.training import input_pipeline, loop, workdir
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import step as step_lib

WORDS = np.array(["upper", "the lower half", "über", "x"])


def source(train=32, test=12):
  made = tiny.source(train, test)
  splits = {
    name: dataclasses.replace(split, captions=WORDS[np.arange(len(split)) % 4])
    for name, split in made.splits.items()
  }
  return dataclasses.replace(made, splits=splits)


def config(method="ncl"):
  c = tiny.config(method)
  c.loss.name = "clip"
  c.loss.learn_temperature = True
  c.text.update(length=12, width=8, layers=1, heads=2)
  c.optimizer.name = "adamw"
  c.optimizer.learning_rate = 1e-2
  c.train.epochs = 2
  c.train.checkpoint_every_epochs = 1
  return c


def test_tokens_are_bytes():
  texts = ["", "a", "zoë 😀", "cut off here"]
  tokens = byte_tokenizer.encode(texts, 8)
  assert tokens.shape == (4, 8) and tokens.dtype == np.int32
  for row, text in zip(tokens, texts, strict=True):
    expected = [b + 1 for b in text.encode()][:8]
    assert row.tolist() == expected + [0] * (8 - len(expected))
  with pytest.raises(InputError, match="length = 0"):
    byte_tokenizer.encode(texts, 0)


def numpy_tower(params, tokens, heads):
  """One text, no padding, by the definition."""

  def norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return (
      centred
      / np.sqrt((x**2).mean(-1, keepdims=True) - x.mean(-1, keepdims=True) ** 2 + 1e-6)
      * p["scale"]
      + p["bias"]
    )

  x = params["tokens"][tokens] + params["places"][: len(tokens)]
  block = params["block0"]
  y, mixed = norm(x, block["norm1"]), 0
  for head in range(heads):
    q, k, v = (
      y @ block["attention"][n]["kernel"][:, head] + block["attention"][n]["bias"][head]
      for n in ("query", "key", "value")
    )
    scores = np.exp(q @ k.T / np.sqrt(q.shape[1]))
    share = scores / scores.sum(1, keepdims=True)
    mixed = mixed + share @ v @ block["attention"]["out"]["kernel"][head]
  x = x + mixed + block["attention"]["out"]["bias"]
  y = norm(x, block["norm2"]) @ block["linear1"]["kernel"] + block["linear1"]["bias"]
  y = np.asarray(jax.nn.gelu(y))
  x = x + y @ block["linear2"]["kernel"] + block["linear2"]["bias"]
  return norm(x, params["norm"]).mean(0)


def test_the_text_tower_is_its_definition_and_padding_changes_nothing():
  tower = models.TextTransformer(length=10, width=8, layers=1, heads=2)
  long = byte_tokenizer.encode(["a longer t", "abc", ""], 10)
  variables = jax.jit(tower.init)(jax.random.key(0), long)
  # Far from its start, where attention is nearly even.
  variables = jax.tree.map(lambda x: 3 * x + 0.1, variables)
  seen = np.asarray(jax.jit(tower.apply)(variables, long))
  params = jax.tree.map(np.float64, variables["params"])
  for row, text in zip(seen, ["a longer t", "abc"], strict=False):
    tokens = byte_tokenizer.encode([text], len(text))[0]
    np.testing.assert_allclose(row, numpy_tower(params, tokens, 2), atol=2e-4)
  np.testing.assert_allclose(
    jax.jit(tower.apply)(variables, long[1:2, :3])[0], seen[1], atol=1e-5
  )
  assert np.all(seen[2] == 0)
  with pytest.raises(InputError, match="11 tokens a text; allowed: 10"):
    tower.apply(variables, jnp.zeros((1, 11), jnp.int32))


def one_step(mesh, before):
  data, settings = source(), config()
  # Large steps that are linear in the gradient.
  settings.optimizer.update(name="sgd", learning_rate=1.0, warmup_epochs=0.0)
  settings = config_lib.resolve(settings, data)
  optimizer, rate = optimizer_lib.make_optimizer(settings, 2)
  if before is None:
    before = state_lib.build(
      lambda: state_lib.init_state(settings, data, optimizer), mesh
    )
    before = jax.device_get(before)
  state = jax.device_put(before, sharding.replicated(mesh))
  step = step_lib.make_step(settings, data, mesh, optimizer, rate)
  given = input_pipeline.open_feed(data, settings, mesh, 0, on_device=False)
  batch = given.at(0)
  given.close()
  tokens = jax.device_get(batch["tokens"])
  state, values, z = step(state, batch)
  return before, tokens, jax.device_get((state.items()["model"], values, z))


@pytest.fixture(scope="module")
def steps():
  made, before = {}, None
  for n in (1, 8):
    made[n] = one_step(sharding.make_mesh(jax.devices()[:n]), before)
    before = made[n][0]
  return made


def test_one_and_eight_devices_make_the_same_step(steps):
  (_, tokens, one), (_, _, eight) = steps[1], steps[8]
  # In the order of the batch, and not of the set.
  order = np.random.default_rng([0, 0]).permutation(32)[:16]
  np.testing.assert_array_equal(tokens, byte_tokenizer.encode(WORDS[order % 4], 12))
  # The same from data that lie on the devices.
  data, mesh = source(), sharding.make_mesh()
  settings = config_lib.resolve(config(), data)
  given = input_pipeline.open_feed(data, settings, mesh, 0, on_device=True)
  batch = input_pipeline.batch_of(given.at(0), 0, 16, mesh, data.image_shape)
  np.testing.assert_array_equal(batch["tokens"], tokens)

  def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)

  jax.tree.map(close, one, eight)
  names = {"backbone", "projector", "text", "text_projector", "probe", "loss"}
  assert one[0]["params"].keys() == names


def test_the_step_is_clips_loss_of_both_towers(steps):
  before, tokens, (after, values, z) = steps[1]
  assert z.shape == (16, 2, 8) and z.min() == 0 and (z == 0).mean() > 0.1
  a, b = (
    x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-30)
    for x in (z[:, 0], z[:, 1])
  )
  s = np.float64(a @ b.T) / 0.2
  expected = (np.log(np.exp(s).sum(0)) + np.log(np.exp(s).sum(1))) / 2 - np.diag(s)
  np.testing.assert_allclose(values["loss"], expected.mean(), rtol=1e-5)
  np.testing.assert_allclose(values["temperature"], 0.2, rtol=1e-6)
  settings = config_lib.resolve(config(), source())
  model = config_lib.model(settings)
  before = before.items()["model"]
  embed = jax.jit(functools.partial(model.apply, method="embed_text"))
  text = embed(before, tokens)[2]
  np.testing.assert_allclose(np.maximum(text, 0), z[:, 1], rtol=1e-4, atol=1e-5)
  moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), before, after)["params"]
  for name in ("backbone", "projector", "text", "text_projector", "loss"):
    assert max(jax.tree.leaves(moved[name])) > 1e-5, name


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path):
  data = source()
  whole = loop.train(config(), tmp_path / "whole", data)
  parts = shutil.copytree(whole, tmp_path / "parts")
  shutil.rmtree(parts / "checkpoints" / "4")
  loop.train(config(), parts, data)
  models = [
    checkpoint.load_model(
      run, None, jax.sharding.SingleDeviceSharding(jax.devices()[0])
    )
    for run in (whole, parts)
  ]
  (a, step), (b, other) = models
  assert step == other == 4 and "text" in a["params"]
  jax.tree.map(np.testing.assert_array_equal, a, b)
  assert (parts / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
  rows = jsonl.read(whole / "metrics.jsonl")
  assert {"temperature", "epoch_active_dimensions", "probe_loss"} <= rows[-1].keys()
  assert workdir.read_config(whole).text.length == 12


def texts_source(train=32, test=12):
  """Pairs of texts: a word and its letters apart."""
  splits = {}
  for name, n in (("train", train), ("test", test)):
    words = WORDS[np.arange(n) % 4]
    labels = (np.arange(n) % 2).astype(np.int32)
    captions = np.array([" ".join(word) for word in words])
    splits[name] = Split(texts.as_pictures(words), labels, captions=captions)
  return Source("words", splits, ("upper", "lower"), texts=True)


def texts_config():
  c = config()
  c.model.backbone = "text"
  whole = (1.0, 1.0)
  c.augment.update(crop_scale=whole, crop_ratio=whole, flip=0.0, jitter=0.0)
  c.augment.update(grayscale=0.0, blur=0.0)
  return c


def test_a_text_passes_the_views_unchanged():
  data = texts_source()
  settings = config_lib.resolve(texts_config(), data)
  view = config_lib.augmentation(settings)
  images = data.split("train").images[:4]
  drawn = augment.view_parameters(jax.random.key(3), 4, 1)
  seen = jax.jit(augment.make_views, static_argnames="config")(drawn, images, view)
  tower = models.PixelText(models.TextTransformer(12, 8, 1, 2))
  variables = jax.jit(tower.init)(jax.random.key(0), seen[:, 0])
  tokens = byte_tokenizer.encode(WORDS, 12)  # "the lower half" is cut
  inner = {"params": variables["params"]["text"]}
  expected = jax.jit(tower.text.apply)(inner, tokens)
  for x in (seen[:, 0], augment.eval_view(images, view)):
    np.testing.assert_allclose(x.reshape(4, 16), images.reshape(4, 16), atol=0.01)
    np.testing.assert_allclose(jax.jit(tower.apply)(variables, x), expected, atol=1e-6)
  assert np.abs(np.diff(expected, axis=0)).max(1).min() > 1e-3


def test_two_text_towers_learn_and_are_evaluated(tmp_path, monkeypatch):
  data, settings = texts_source(), texts_config()
  settings.train.epochs, settings.model.projector_hidden = 30, 32
  settings.train.checkpoint_every_epochs = 30
  run = loop.train(settings, tmp_path / "run", data)
  opened = open_run(run, source=data)
  params = opened.variables["params"]
  assert params["backbone"]["text"].keys() == params["text"].keys()
  found = pairs.evaluate(opened)
  # Four words, each at three of the twelve: known ones, so they find each other.
  assert (
    found["recall"]["text_to_caption@1"] > 0.9 < found["recall"]["caption_to_text@1"]
  )
  assert {"text", "caption", "zero_shot"} <= found.keys() and "image" not in found
  f = opened.layer("f", "test")
  assert found["text"]["sparsity"] == pytest.approx((f < 1e-5).mean(), abs=1e-6)
  for row in found["dimensions"]:
    assert row["texts"] == [WORDS[n % 4] for n in row["images"]]
  assert f"| {found['dimensions'][0]['texts'][0]}" in pairs.text(found)
  monkeypatch.setattr(explorer_lib, "open_run", lambda *args: opened)
  page = explorer_lib.explore(run).read_text("utf-8")
  shown = ", ".join(f'"{word}"' for word in (*WORDS, WORDS[0])).replace("ü", "\\u00fc")
  assert f'"texts": [{shown}' in page


def test_texts_and_images_have_their_own_towers():
  with pytest.raises(
    InputError, match="backbone is resnet_tiny and words holds texts: .*text"
  ):
    config_lib.resolve(config(), texts_source())
  with pytest.raises(
    InputError, match="backbone is text and tiny holds images: .*resnet"
  ):
    config_lib.resolve(texts_config(), source())
  for change, says in (
    ({"flip": 0.5}, "augment.flip is 0.5 and words holds texts: allowed is 0.0"),
    (
      {"crop_scale": (0.5, 1.0)},
      "augment.crop_scale is .*0.5, 1.0.* allowed is .1.0, 1.0",
    ),
    ({"size": 3}, "augment.size is 3 and words holds texts: allowed is 0"),
  ):
    settings = texts_config()
    settings.augment.update(**change)
    with pytest.raises(InputError, match=says):
      config_lib.resolve(settings, texts_source())
  settings = texts_config()
  settings.loss.update(name="nt_xent")
  with pytest.raises(InputError, match="loss.name is nt_xent and .* allowed is clip"):
    config_lib.resolve(settings, texts_source())
  once = config_lib.resolve(texts_config(), texts_source())
  assert config_lib.resolve(once, texts_source()) == once


def test_wrong_settings():
  with pytest.raises(InputError, match="tiny has no captions"):
    config_lib.resolve(config(), tiny.source())
  c = config()
  c.text.heads = 3
  with pytest.raises(InputError, match="text.width is 8: .* text.heads, 3"):
    config_lib.validate(c)
  c.text.update(heads=2, layers=0)
  with pytest.raises(InputError, match="text.layers is 0"):
    config_lib.validate(c)
