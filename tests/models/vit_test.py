"""Vision transformers: published sizes, a numpy attention, and training with one."""

import base64
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ncl_jax import augment
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.evaluators import knn
from ncl_jax.evaluators.run import open_run
from ncl_jax.experiments import explorer as explorer_lib
from ncl_jax.models import vit
from ncl_jax.runtime import jsonl
from ncl_jax.training import loop

CLASSIFIER = 1000  # ImageNet's, which the published counts include


def count(model, size=224):
  shapes = jax.eval_shape(
    lambda: model.init(jax.random.key(0), jnp.zeros((1, size, size, 3)))
  )
  return sum(x.size for x in jax.tree.leaves(shapes["params"]))


@pytest.mark.parametrize(
  # Parameters of DeiT-Tiny and DeiT-Small, classifier included.
  ("make", "published"),
  [(vit.vit_tiny, 5_717_416), (vit.vit_small, 22_050_664)],
)
def test_published_parameter_counts(make, published):
  model = make(224)
  width = model.num_features
  assert (model.patch, model.depth) == (16, 12)
  assert count(model) + CLASSIFIER * (width + 1) == published
  # Without its own positions and its token it has as many fewer.
  bare = make(224, pool="mean", positions="fixed")
  assert count(model) - count(bare) == (14 * 14 + 1 + 1) * width


def forward(model, x):
  variables = jax.jit(model.init)(jax.random.key(0), x)
  return variables["params"], np.asarray(jax.jit(model.apply)(variables, x))


attention = jax.jit(vit.attention, static_argnums=0)


def norm(x, p):
  mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
  return (x - mean) / np.sqrt(var + 1e-6) * p["scale"] + p["bias"]


def dense(x, p):
  return x @ p["kernel"] + p["bias"]


def by_hand(p, x, model):
  """The definition, one image, one patch and one head at a time; class token.

  Features h, and the shares of attention in the last block [B, heads, T, T].
  """
  from scipy.special import erf

  side, patch = model.size // model.patch, model.patch
  out, shares = [], []
  for image in x:
    tokens = [p["class_token"]]
    for i in range(side):
      for j in range(side):
        cut = image[i * patch : (i + 1) * patch, j * patch : (j + 1) * patch]
        tokens.append(dense(cut.ravel(), p["patches"]))
    t = np.stack(tokens) + p["positions"]
    for depth in range(model.depth):
      block = p[f"layer{depth + 1:02}"]
      y, heads, looks = norm(t, block["norm1"]), [], []
      q, k, v = (dense(y, block["attention"][n]) for n in ("query", "key", "value"))
      for h in range(model.heads):
        own = slice(h * model.width, (h + 1) * model.width)
        s = np.exp(q[:, own] @ k[:, own].T / np.sqrt(model.width))
        looks.append(s / s.sum(1, keepdims=True))
        heads.append(looks[-1] @ v[:, own])
      t = t + dense(np.concatenate(heads, 1), block["attention"]["out"])
      y = dense(norm(t, block["norm2"]), block["linear1"])
      t = t + dense(y * (1 + erf(y / np.sqrt(2))) / 2, block["linear2"])
    out.append(norm(t, p["norm"])[0])
    shares.append(looks)
  return np.stack(out), np.stack(shares)


def test_equals_the_definition(x64):
  model = vit.vit_tiny(8, width=4, patch=4, depth=2)
  x = np.random.default_rng(0).normal(size=(3, 8, 8, 2))
  params, h = forward(model, x)
  params = jax.tree.map(np.asarray, params)
  expected, shares = by_hand(params, x, model)
  np.testing.assert_allclose(h, expected, rtol=1e-10, atol=1e-12)
  # What the class token looks at, patches row by row.
  maps = np.asarray(attention(model, params, x))
  assert maps.shape == (3, 3, 2, 2)
  np.testing.assert_allclose(maps.reshape(3, 3, 4), shares[:, :, 0, 1:], rtol=1e-10)
  assert np.ptp(maps, axis=(2, 3)).min() > 1e-4  # else any order of them would do


def test_fixed_positions_tell_patches_apart_and_no_two_alike(x64):
  places = np.asarray(vit.sin_cos(7, 12))
  i = np.arange(3) / 3
  for row in range(7):
    for column in range(7):
      angles = [place * 10000.0**-i for place in (column, row)]
      expected = np.concatenate([f(a) for a in angles for f in (np.sin, np.cos)])
      np.testing.assert_allclose(places[7 * row + column], expected, atol=1e-12)
  assert len(np.unique(places.round(6), axis=0)) == 49


@pytest.mark.parametrize("positions", vit.POSITIONS)
def test_the_mean_is_over_the_patches_and_float32(positions):
  model = vit.vit_tiny(
    8, width=4, patch=4, depth=1, pool="mean", positions=positions, dtype=jnp.bfloat16
  )
  x = np.random.default_rng(0).normal(size=(3, 8, 8, 2)).astype(np.float32)
  params, h = forward(model, x)
  assert "class_token" not in params and h.dtype == np.float32 and h.shape == (3, 12)
  # A mean would not notice patches change places, but for their positions.
  turned = jax.jit(model.apply)({"params": params}, x[:, ::-1])
  assert np.abs(turned - h).max() > 1e-3
  kept = jax.jit(model.clone(keep="blocks").apply)({"params": params}, x)
  np.testing.assert_allclose(kept, h, atol=0.05)
  # Without a token: what all patches look at, in the mean.
  for same in (model, model.clone(keep="blocks")):
    maps = np.asarray(attention(same, params, x))
    assert maps.shape == (3, 3, 2, 2) and maps.dtype == np.float32
    np.testing.assert_allclose(maps.sum((2, 3)), 1, rtol=1e-5)


@pytest.mark.parametrize(
  ("settings", "says"),
  [
    ({"size": 30, "patch": 4}, "must divide the image's side, 30"),
    ({"size": 32, "width": 6}, "multiple of 4"),
    ({"size": 32, "pool": "max"}, "class_token, mean"),
    ({"size": 32, "positions": "none"}, "learned, fixed"),
  ],
)
def test_what_cannot_be_built(settings, says):
  with pytest.raises(InputError, match=says):
    vit.vit_tiny(**settings)


def test_images_of_another_size_are_refused():
  model = vit.vit_tiny(8, width=4, depth=1)
  with pytest.raises(InputError, match="16 x 16 pixels: this ViT takes 8"):
    model.init(jax.random.key(0), jnp.zeros((1, 16, 16, 1)))


def test_it_trains_resumes_and_is_evaluated_like_any_backbone(tmp_path, monkeypatch):
  small = vit.vit_tiny
  monkeypatch.setattr(vit, "vit_tiny", lambda *a, **k: small(*a, **k).clone(depth=1))
  config, source = tiny.config("ncl"), tiny.source()
  config.data.source = f"arrays:{tiny.npz(tmp_path / 'tiny.npz')}"
  config.augment.eval_crop = 0.75
  config.model.update(backbone="vit_tiny", width=4, patch=2, pool="mean")
  config.optimizer.update(name="adamw", learning_rate=0.1, weight_decay=0.1)
  config.train.epochs = 16
  config.train.checkpoint_every_epochs = 8
  path = loop.train(config, tmp_path / "run", source)
  rows = jsonl.read(path / "metrics.jsonl")
  assert np.isfinite([row["loss"] for row in rows]).all()
  opened = open_run(path, source=source)
  assert opened.variables["batch_stats"] == {}
  result = knn.evaluate(opened.config, opened.variables, source, opened.mesh)
  assert result["h"]["accuracy"] > 0.9  # upper and lower halves
  assert config_lib.widths(opened.config)["h"] == 12
  # The explorer shows what it looks at, of each image once, whatever the batch.
  page = explorer_lib.explore(path, out=tmp_path / "e.html").read_text("utf-8")
  found = re.search(r'id="data">(.*?)</script>', page)
  (side,) = json.loads(found[1])["sides"]
  assert side["grid"] == [3, 3] and side["seen"] == 0.75
  packed = side["arrays"]["attention"]
  shown = np.frombuffer(base64.b64decode(packed["data"]), "u1")
  maps = vit.attention(
    config_lib.model(opened.config).backbone,
    opened.variables["params"]["backbone"],
    augment.eval_view(
      source.split("test").images, config_lib.augmentation(opened.config)
    ),
  )
  relative = 255 * np.asarray(maps / maps.max((2, 3), keepdims=True))
  np.testing.assert_allclose(shown.reshape(maps.shape), relative, atol=0.51)
