"""What a text tower cuts off and what a loss compares is told before it runs."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from programs import ROOT, call

from ncl_jax import config as config_lib
from ncl_jax import data, losses
from ncl_jax.evaluators.run import Run
from ncl_jax.runtime import sharding

# 22 characters of three bytes: 66 bytes, the ends are beyond the usual 64.
LONG = [f"{'猫' * 22}{i:02d}" for i in range(40)]


def pairs(folder, first="images"):
  random = np.random.default_rng(0)
  images = random.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
  given = images if first == "images" else np.array(LONG)
  short = [f"{i} short" for i in range(40)]
  captions = np.array(LONG if first == "images" else short)
  np.savez(folder / "set.npz", captions=captions, **{first: given})
  return f"pairs:{folder}/set.npz"


@pytest.mark.parametrize("first", ["images", "texts"])
def test_texts_beyond_the_tower_are_counted(first, tmp_path):
  config = config_lib.defaults()
  config.loss.name = "clip"
  source = data.load(pairs(tmp_path, first))
  sentences = config_lib.texts_cut(config, source)
  kind = "captions" if first == "images" else "texts"
  assert sentences[0] == (
    f"train {kind}: 32 of 32 are cut off at 64 bytes, the longest has 68: 32 different "
    "ones become 1. Raise text.length=64"
  )
  assert len(sentences) == 2 and sentences[1].startswith(f"test {kind}: 8 of 8")
  config.text.length = 68
  assert config_lib.texts_cut(config, source) == []
  config.loss.name = "nt_xent"  # reads no captions
  config.text.length = 1
  assert config_lib.texts_cut(config, source) == []


def test_the_dry_run_tells_both(tmp_path):
  code, out, err = call(
    "train",
    f"--config={ROOT}/configs/digits.py:cl",
    f"--config.data.source={pairs(tmp_path)}",
    "--config.loss.name=clip",
    "--config.train.batch_size=16",
    f"--workdir={tmp_path}/W",
    "--dry_run",
  )
  assert code == 0, err
  assert "train captions: 32 of 32 are cut off at 64 bytes" in out
  assert "loss clip: each image has 15 texts as negatives" in out


@pytest.mark.parametrize("name", ["nt_xent", "clip", "moco_v3"])
@pytest.mark.parametrize("batch", [8, 31])
def test_the_number_of_negatives_is_that_of_the_loss(name, batch):
  """Of embeddings all alike the loss is the logarithm of negatives + 1."""
  config = config_lib.defaults()
  config.loss.name, config.train.batch_size = name, batch
  told = int(re.search(r"has (\d+)", config_lib.negatives(config))[1])
  z = jnp.ones((batch, 2, 3))
  if name == "nt_xent":
    loss = losses.nt_xent(z, temperature=0.5).mean()
  elif name == "clip":
    loss = losses.clip(z[:, 0], z[:, 1], temperature=0.5).mean()
  else:
    loss = losses.moco_v3(z, z, temperature=0.5).mean() / (4 * 0.5)
  assert loss == pytest.approx(np.log(told + 1), rel=1e-5)


@pytest.mark.parametrize("name", ["byol", "dino", "barlow_twins", "vicreg"])
def test_losses_without_negatives_say_so(name):
  config = config_lib.defaults()
  config.loss.name = name
  assert config_lib.negatives(config) == "no negatives"


def test_results_count_the_test_images_of_unseen_classes():
  source = tiny.source()
  config = config_lib.resolve(tiny.config(), source)
  run = Run(config, None, source, sharding.make_mesh())
  assert run.describe()["unseen_test_images"] == 0
  test = source.split("test")
  source.split("train").labels[:] = 0
  expected = int((test.labels > 0).sum())
  assert expected > 0
  assert run.describe()["unseen_test_images"] == expected
