"""What users of such libraries reported, tried here: data, evaluation, settings."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from programs import ROOT, call

from ncl_jax import cli, data, metrics
from ncl_jax import config as config_lib
from ncl_jax.errors import InputError
from ncl_jax.evaluators import knn, registry
from ncl_jax.experiments import comparison
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import state as state_lib

DIGITS = f"--config={ROOT}/configs/digits.py"


def test_unlabelled_images_add_no_parameters():
  """Not a class an image, and so no classifier that grows with the folder."""

  def count(images):
    source = tiny.source(train=images, labelled=False)
    config = config_lib.resolve(tiny.config(), source)
    params = jax.eval_shape(lambda: state_lib.init_variables(config, source))["params"]
    assert set(params) == {"backbone", "projector"}
    return sum(x.size for x in jax.tree.leaves(params))

  assert count(48) == count(5000)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(("share", "left"), [(0.1, 4), (1.0, 40), (0, 0), (2, 0)])
def test_a_share_of_the_data_with_and_without_labels(labelled, share, left):
  source = tiny.source(train=40, labelled=labelled)
  # A share of the labels needs labels; a number of images needs none.
  if labelled and left:
    assert len(data.labelled(source, share).split("train")) == left
  else:
    with pytest.raises(InputError, match=f"fraction of {share}"):
      data.labelled(source, share)
  wanted = round(share * 40)
  if wanted > 40:
    with pytest.raises(InputError, match="80 train examples"):
      data.subset(source, train=wanted)
  else:
    # 0 means all.
    assert len(data.subset(source, train=wanted).split("train")) == (left or 40)


@pytest.fixture(scope="module")
def evaluated():
  """The neighbours' result of 101 images, by batch size and number of devices."""
  source = tiny.source(train=48, test=101)
  config = config_lib.resolve(tiny.config(), source)
  mesh = sharding_lib.make_mesh()
  variables = state_lib.build(lambda: state_lib.init_variables(config, source), mesh)
  variables = jax.tree.map(np.asarray, variables)

  def evaluate(batch_size, devices):
    config.eval.batch_size = batch_size
    some = sharding_lib.make_mesh(jax.devices()[:devices])
    placed = jax.device_put(variables, sharding_lib.replicated(some))
    return knn.evaluate(config, placed, source, some)

  config.unlock()
  return evaluate


@pytest.fixture(scope="module")
def usual(evaluated):
  return evaluated(16, 8)


@pytest.mark.parametrize(
  ("batch_size", "devices"), [(7, 8), (300, 8), (16, 1), (16, 2)]
)
def test_accuracy_depends_on_neither_batch_nor_devices(
  evaluated, usual, batch_size, devices
):
  """101 is no multiple of anything here: no image is dropped, none counted twice."""
  seen = evaluated(batch_size, devices)
  for layer in ("h", "f"):
    hits = usual[layer]["accuracy"] * 101
    assert hits == pytest.approx(round(hits), abs=1e-3)
    assert seen[layer]["accuracy"] == usual[layer]["accuracy"]


def test_a_result_holds_what_is_needed_to_repeat_it(usual):
  settings = usual["settings"]
  for key in ("k", "temperature", "distance", "split", "transform", "source", "seed"):
    assert key in settings, key
  for key in ("size", "eval_crop", "mean", "std"):  # of the images
    assert key in settings, key
  assert {"h", "f"} <= set(usual)  # the layers
  json.dumps(usual)


def test_a_large_bank_of_neighbours_takes_bounded_memory():
  """50,000 x 2,048: within 1 GiB beside the bank; nothing is computed here."""
  bank = jax.ShapeDtypeStruct((50_000, 2048), jnp.float32)
  labels = jax.ShapeDtypeStruct((50_000,), jnp.int32)
  queries = jax.ShapeDtypeStruct((10_000, 2048), jnp.float32)
  program = jax.jit(lambda b, y, f: metrics.knn_predict(b, y, f, 100))
  memory = program.lower(bank, labels, queries).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 2**30


@pytest.mark.parametrize(
  "taken",
  [
    {
      "augment.crop_scale=(0.2, 1.0)": [0.2, 1.0],
      "optimizer.weight_decay=1e-3": 0.001,
      "loss.temperature=1": 1.0,
    },
    {"augment.crop_scale=(0.2, 1)": [0.2, 1]},
  ],
)
def test_forms_of_values_that_are_taken(tmp_path, monkeypatch, taken):
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  flags = (f"--config.{flag}" for flag in taken)
  where = f"--workdir={tmp_path / 'run'}"
  code, out, err = call("train", DIGITS, where, *flags, "--dry_run")
  assert code == 0, err
  settings = json.loads(out[out.index("{") : out.rindex("\n}\n") + 2])
  for flag, value in taken.items():
    section, key = flag.partition("=")[0].split(".")
    assert settings[section][key] == value


@pytest.mark.parametrize(
  "flag",
  [
    "loss.temperature=None",
    "seed=None",
    "train.batch_size=[16]",
    "augment.crop_scale=[0.2, 'x']",
    "augment.crop_scale=0.2",
    "optimizer.weight_decay=1e-3x",
    "train.epochs=1e2x",
    "loss=0.2",
    "data.source.path=x",
  ],
)
def test_forms_of_values_that_are_refused(tmp_path, monkeypatch, flag):
  """Each by one message that names the field."""
  monkeypatch.setattr(cli, "_set_up_log", lambda: None)
  work = tmp_path / "run"
  code, _, err = call("train", DIGITS, f"--workdir={work}", f"--config.{flag}")
  assert code == 2 and flag.split("=")[0].split(".")[-1] in err, err
  assert "Traceback" not in err and err.count("error:") == 1
  assert len(err.splitlines()) <= 20 and not work.exists()


def test_without_labels_a_comparison_says_what_needs_them_and_has_no_blanks():
  source, config = tiny.source(labelled=False), tiny.config()
  (remark,) = [
    text for text in comparison._remarks(config, source, 5) if "No labels" in text
  ]
  for word in ("accuracy", "purity", "Sparsity", "SEPIN"):
    assert word in remark
  assert registry.applicable(config, source) == ("feature_stats", "sepin")
  statistics = {"sparsity": 0.5, "active_dimensions": 8, "orthogonality": 0.1}
  rows = [{"feature_stats": {"f": statistics}, "sepin": {"f": {"sepin@1": 0.2}}}]
  text = comparison.controls_table(config, source, {"cl": rows, "ncl": rows})
  head, first, second = text.splitlines()[:3]
  assert head.split() == ["sparsity", "SEPIN@1", "active", "|C-I|"]
  assert first.split() == ["CL", "50.0", "0.2", "8", "0.1"]
  assert len(second.split()) == 5
