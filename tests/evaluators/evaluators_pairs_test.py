"""The evaluator of pairs: on planted features, and on a network of two towers."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny

from ncl_jax import config as config_lib
from ncl_jax import features, nonneg, numerics
from ncl_jax.errors import InputError
from ncl_jax.evaluators import embedding, pairs
from ncl_jax.evaluators.run import Run
from ncl_jax.models import byte_tokenizer
from ncl_jax.runtime import sharding
from ncl_jax.training import state as state_lib

THINGS = ("cat", "dog", "bus")


def config():
  c = tiny.config("ncl")
  c.loss.name = "clip"
  c.train.batch_size = 8
  c.text.update(length=12, width=8, layers=1, heads=2)
  return c


def source(partners=False):
  """Twelve images of three things, drawn bright or dark; labels are the things."""
  n = np.arange(12)
  images = np.zeros((12, 8, 8, 1), np.uint8) + n[:, None, None, None].astype(np.uint8)
  captions = np.array([f"{THINGS[i % 3]} {'bright' if i < 6 else 'dark'}" for i in n])
  light = np.where(n < 2, -1, n // 6)  # of two images unknown
  give = (lambda rows, rng: images[rows][:, ::-1]) if partners else None
  split = tiny.Split(images, (n % 3).astype(np.int32), {"light": light}, give, captions)
  return tiny.Source(
    "things",
    {"train": split, "test": split},
    THINGS,
    level_names={"light": ("bright", "dark")},
  )


def planted(texts):
  """A dimension a thing, one for "bright", none for "dark"; the last is dead."""
  rows = np.array(
    [[float(w in text.split()) for w in (*THINGS, "bright")] + [0.0] for text in texts]
  )
  return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def test_planted_features(monkeypatch):
  data = source()
  monkeypatch.setattr(pairs, "embed_texts", lambda run, texts: planted(texts))
  captions = data.split("test").captions
  monkeypatch.setattr(Run, "layer", lambda *args: planted(captions))
  found = pairs.evaluate(config_lib.resolve(config(), data), None, data, None)
  # Each caption stands at two images; the six captions differ.
  assert found["recall"]["image_to_text@1"] == 1 == found["recall"]["text_to_image@5"]
  assert found["zero_shot"]["classes"] == 1
  assert found["zero_shot"]["classes_largest"] == pytest.approx(1 / 3)
  # "dark" has no dimension: its images are as far from both names.
  assert found["zero_shot"]["light"] == pytest.approx((4 + 6 / 2) / 10)
  assert found["zero_shot"]["light_largest"] == pytest.approx(6 / 10)
  assert found["zero_shot"]["light_mean"] == pytest.approx((1 + 1 / 2) / 2)
  assert found["zero_shot"]["light_chance"] == 1 / 2
  assert found["both"] == {"active_dimensions": 4}
  for side in ("image", "text"):
    assert found[side]["active_dimensions"] == 4
    assert found[side]["sparsity"] == pytest.approx(1 - (6 * 2 + 6) / 60)
  # "bright" is active most; the means by hand.
  assert [row["dimension"] for row in found["dimensions"]] == [3, 0, 1, 2]
  half = 0.5**0.5
  means = [row["mean"] for row in found["dimensions"]]
  np.testing.assert_allclose(means, [6 * half / 12] + [(2 * half + 2) / 12] * 3)
  by_dimension = {row["dimension"]: row for row in found["dimensions"]}
  assert by_dimension[1]["words"] == ["dog"]
  # Dark dogs have nothing else; both bright ones come after them.
  assert by_dimension[1]["images"] == [7, 10, 1, 4]
  assert by_dimension[1]["captions"] == ["dog dark"] * 2 + ["dog bright"] * 2
  shown = pairs.text(found)
  assert "12 test pairs" in shown and "dog | dog dark / dog dark / dog bright" in shown


@pytest.fixture(scope="module")
def network():
  data = source()
  settings = config_lib.resolve(config(), data)
  settings.unlock()
  settings.eval.batch_size = 8
  mesh = sharding.make_mesh(jax.devices()[:1])
  return (
    settings,
    state_lib.build(lambda: state_lib.init_variables(settings, data), mesh),
    mesh,
  )


def test_a_network_of_two_towers(network):
  settings, variables, mesh = network
  data = source()
  found = pairs.evaluate(settings, variables, data, mesh)
  captions = data.split("test").captions
  # All at once, by hand.
  tokens = byte_tokenizer.encode(captions, 12)
  model = config_lib.model(settings)

  @jax.jit
  def embed(variables, tokens):
    z = model.apply(variables, tokens, method="embed_text")[2]
    return numerics.l2_normalize(nonneg.relu(z))

  g = embed(variables, tokens)
  run = Run(settings, variables, data, mesh)
  np.testing.assert_allclose(embedding.embed_texts(run, captions), g, atol=1e-6)
  f = run.extract("test").layer("f", "rep_relu")
  assert isinstance(f, np.ndarray) and f.shape == g.shape
  s = np.asarray(f @ np.asarray(g).T)
  # Images differ by a constant alone: no two of them tie.
  hit = [
    captions[row.argmax()] == caption for row, caption in zip(s, captions, strict=True)
  ]
  ties = [np.sum(row == row.max()) for row in s]
  assert max(ties) == 2 or found["recall"]["image_to_text@1"] == np.mean(hit)
  assert set(found) >= {"recall", "zero_shot", "image", "text", "both", "dimensions"}
  assert found["image"]["dimensions"] == 8


def test_pairs_of_images(monkeypatch):
  data = source(partners=True)
  settings = config()
  settings.loss.name = "nt_xent"

  def extract(run, split):
    pixels = run.source.split(split).images.reshape(12, -1)[:, :4] + np.eye(12, 4)
    return features.Features(*[pixels] * 3, *[np.zeros(12, np.int32)] * 2)

  monkeypatch.setattr(Run, "_extract", extract)
  found = pairs.evaluate(config_lib.resolve(settings, data), None, data, None)
  assert {"image_to_partner@1", "partner_to_image@10"} <= found["recall"].keys()
  assert "zero_shot" not in found and "words" not in found["dimensions"][0]
  # The partner is the image upside down, and these are all of one value: the same.
  assert found["recall"]["image_to_partner@10"] >= 10 / 12
  with pytest.raises(InputError, match="things with loss.name=nt_xent has no pairs"):
    pairs.evaluate(settings, None, source(), None)


def test_labels_without_names_are_not_asked_for_by_name(network):
  settings, variables, _ = network
  data = dataclasses.replace(source(), class_names=("0", "1", "2"), level_names={})
  f = np.ones((data.num_examples("test"), settings.model.projector_out), np.float32)
  assert pairs._zero_shot(Run(settings, variables, data, None), f) == {}
