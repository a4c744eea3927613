"""From runs of two towers to the explorer's file."""

import dataclasses

import jax
import numpy as np
import pytest
import tiny
from explorer_runs_test import array, read

from ncl_jax import config as config_lib
from ncl_jax import nonneg, numerics
from ncl_jax.evaluators.run import Run
from ncl_jax.experiments import explorer as explorer_lib
from ncl_jax.models import byte_tokenizer
from ncl_jax.report.explorer import data
from ncl_jax.runtime import sharding
from ncl_jax.training import state as state_lib

CAPTIONS = np.array(["</script> upper", "the lower half", "</script> upper half"])


def source():
  """Images with captions, and with themselves upside down for partners."""
  made = tiny.source(16, 21)
  splits = {}
  for name, split in made.splits.items():
    images = split.images

    def give(rows, rng, images=images):
      return images[rows][:, ::-1]

    captions = CAPTIONS[np.arange(len(split)) % 3]
    splits[name] = dataclasses.replace(split, partners=give, captions=captions)
  return dataclasses.replace(made, splits=splits)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
  """Untrained runs: on images and texts, and on pairs of images."""
  made, mesh, found = source(), sharding.make_mesh(jax.devices()[:1]), {}
  for loss in ("clip", "nt_xent"):
    c = tiny.config()
    c.loss.name = loss
    c.text.update(length=20, width=8, layers=1, heads=2)
    c = config_lib.resolve(c, made)
    variables = state_lib.build(lambda c=c: state_lib.init_variables(c, made), mesh)
    path = tmp_path_factory.mktemp(loss)
    found[loss] = Run(c, variables, made, mesh, path, 0)
  return found


@pytest.fixture(autouse=True)
def open_run(opened, monkeypatch):
  monkeypatch.setattr(
    explorer_lib, "open_run", lambda name, *args, **kwargs: opened[name]
  )


def features(run, texts):
  """Of texts, all at once and by hand."""
  tokens = byte_tokenizer.encode(texts, 20)
  apply = jax.jit(config_lib.model(run.config).apply, static_argnames="method")
  z = apply(run.variables, tokens, method="embed_text")[2]
  return np.asarray(numerics.l2_normalize(nonneg.relu(z)))


def test_words_and_captions_of_each_dimension(opened, tmp_path):
  file = explorer_lib.explore("clip", out=tmp_path / "e.html")
  assert file.read_text("utf-8").count("</script>") == 3
  content = read(file)
  words = ["half", "lower", "script", "the", "upper"]
  assert content["words"] == words and content["captions"] == sorted(CAPTIONS)
  assert not content["partners"]
  run = opened["clip"]
  found = content["sides"][0]["arrays"]
  for kind, texts in (("words", words), ("captions", sorted(CAPTIONS))):
    f = features(run, texts)
    assert f.max() > 0.1
    at, values = array(found[f"top_{kind}"]), array(found[f"top_{kind}_values"])
    for d in range(f.shape[1]):
      kept = at[d][at[d] >= 0]
      assert len(kept) == (f[:, d] > 1e-5).sum()
      best = np.sort(f[:, d])[::-1][: len(kept)]
      for shown in (values[d][: len(kept)] / data.SCALE, f[kept, d]):
        np.testing.assert_allclose(shown, best, atol=1e-4)


def test_both_pictures_of_pairs_of_images(opened, tmp_path):
  content = read(explorer_lib.explore("nt_xent", out=tmp_path / "e.html"))
  assert content["partners"] and content["words"] == []
  assert content["captions"] == sorted(CAPTIONS)  # they name the images
  run = opened["nt_xent"]
  test = run.source.split("test")
  turned = dataclasses.replace(test, images=test.images[:, ::-1])
  source = dataclasses.replace(run.source, splits=run.source.splits | {"test": turned})
  f = run.on(source).layer("f", "test")
  found = content["sides"][0]["arrays"]
  assert "top_words" not in found and "top_captions" not in found
  best = array(found["top_partners_values"])[:, 0] / data.SCALE
  np.testing.assert_allclose(best, f.max(0), atol=1e-4)
  # The partner of a pair is another picture, of another value.
  own = array(found["top_values"])[:, 0] / data.SCALE
  assert np.abs(own - best).max() > 0.01


def test_a_run_of_texts_beside_one_of_images(opened, tmp_path):
  """Each side shows what its own other tower saw."""
  content = read(explorer_lib.explore("clip", "nt_xent", out=tmp_path / "e.html"))
  images, texts = (side["arrays"] for side in content["sides"])
  assert "top_partners" in images and "top_words" not in images
  assert "top_words" in texts and "top_partners" not in texts
  assert content["partners"] and content["words"]
