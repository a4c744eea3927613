"""launch.compare on two towers: what is measured, beside what, and what is refused."""

import json
import math

import numpy as np
import pytest
import scipy.stats
import tiny

from ncl_jax.errors import InputError
from ncl_jax.evaluators import embedding, pairs, registry
from ncl_jax.evaluators.run import open_run
from ncl_jax.experiments import compare, controls
from ncl_jax.runtime import jsonl

THINGS = ("cat", "dog", "bus")
KEY = "pairs:recall:text_to_caption@"


def rows(n):
  """Texts of three things, four captions in all, classes with names."""
  number = np.arange(n)
  return {
    "texts": np.array([f"{THINGS[i % 3]} number {i}" for i in number]),
    "captions": np.array([f"a {THINGS[i % 3]}{' big' * int(i == 0)}" for i in number]),
    "labels": np.array(THINGS)[number % 3],
  }


def of_texts(folder):
  """Two text towers, two steps an epoch, on a file in the folder."""
  parts = {"train": rows(32), "test": rows(15)}
  arrays = {f"{p}_{k}": x for p, part in parts.items() for k, x in part.items()}
  np.savez(folder / "names.npz", **arrays)
  c = tiny.config("ncl")
  c.data.source = f"pairs:{folder / 'names.npz'}"
  c.augment.update(crop_scale=(1.0, 1.0), crop_ratio=(1.0, 1.0), flip=0.0)
  c.augment.update(jitter=0.0, grayscale=0.0, blur=0.0)
  c.model.backbone = "text"
  c.loss.update(name="clip", learn_temperature=True)
  c.text.update(length=16, width=8, layers=1, heads=2)
  c.optimizer.update(name="adamw", learning_rate=1e-2)
  c.train.epochs = 2
  return c


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
  folder = tmp_path_factory.mktemp("compared")
  text = compare.compare(
    of_texts(folder),
    folder,
    seeds=2,
    evaluators=("feature_stats", "pairs"),
    controls=("all",),
  )
  return folder, text, json.loads((folder / "report" / "report.json").read_text())


def result(folder, method, seed):
  (row,) = jsonl.read(folder / f"seed{seed}" / method / "eval" / "pairs.jsonl")
  return row


def test_figures_and_intervals_are_those_of_the_program(compared):
  folder, text, report = compared
  assert "recall@10, caption to text" in text and "zero-shot" in text
  found = report["metrics"][f"{KEY}5"]
  seen = {
    method: [result(folder, method, s)["recall"]["text_to_caption@5"] for s in (0, 1)]
    for method in ("cl", "ncl")
  }
  for method, values in seen.items():
    assert found["methods"][method]["seeds"] == values
  gained = np.subtract(seen["ncl"], seen["cl"])
  interval = scipy.stats.t.interval(0.95, 1, gained.mean(), scipy.stats.sem(gained))
  assert found["difference"]["mean"] == pytest.approx(gained.mean())
  np.testing.assert_allclose(found["difference"]["interval"], interval, atol=1e-12)
  for side in ("text", "caption"):
    shown = report["metrics"][f"pairs:{side}:sparsity"]["methods"]["ncl"]["seeds"]
    assert shown == [result(folder, "ncl", s)[side]["sparsity"] for s in (0, 1)]
  assert report["metrics"]["pairs:both:active_dimensions"]["label"] == "active in both"


def test_chance_is_the_hypergeometric(compared):
  """Of 15 texts 1 has a caption of its own; 4, 5 and 5 share one."""
  metrics = compared[2]["metrics"]
  for k in pairs.KS:
    found = sum(
      size * (1 - math.comb(15 - size, k) / math.comb(15, k)) for size in (1, 4, 5, 5)
    )
    assert metrics[f"{KEY}{k}"]["chance"] == pytest.approx(found / 15)
  assert metrics["pairs:zero_shot:classes"]["chance"] == pytest.approx(1 / 3)
  luck = result(compared[0], "ncl", 0)["caption"]["purity_chance"]
  other = result(compared[0], "ncl", 1)["caption"]["purity_chance"]
  shown = metrics["pairs:caption:purity"]["chance"]
  assert shown == pytest.approx((luck + other) / 2)


def test_controls_have_both_towers_or_no_pairs(compared):
  folder, text, _ = compared
  rows = jsonl.read(folder / "seed1" / "controls.jsonl")
  found = {row["control"]: row["results"] for row in rows}
  # No pixels, and no NMF as h has values below 0.
  assert set(found) == {
    "untrained",
    *(
      "cl_transform",
      "cl_varimax",
      "cl_varimax_transform",
      "cl_both_signs",
      "cl_matched_rates",
    ),
    *("cl_kmeans", "cl_varimax_95", "cl_varimax_99", "cl_pca", "cl_ica"),
    *(f"h_{kind}" for kind in ("pca", "kmeans")),
  }
  for key, programs in found.items():
    assert ("pairs" in programs) == controls.CONTROLS[key].both_towers, key
    assert "feature_stats" in programs
  # One rotation of both towers changes no similarity between them.
  own = result(folder, "cl", 1)["recall"]
  for name, value in found["cl_varimax"]["pairs"]["recall"].items():
    assert value == pytest.approx(own[name], abs=1e-6)
  assert found["cl_varimax"]["pairs"]["caption"] != result(folder, "cl", 1)["caption"]
  under = (folder / "report" / "controls.txt").read_text()
  assert "change or replace the first tower alone" in under and under in text + "\n"
  assert "Controls made of pixels are left out" in under
  head = under.splitlines()[0]
  for name in ("to caption @10", "to text @10", "zero-shot", "spars. caption"):
    assert name in head


def test_the_report_shows_texts_and_no_bytes(compared):
  folder = compared[0] / "report"
  assert not (folder / "figures" / "top_images.png").exists()
  page = (folder / "explorer.html").read_text()
  assert '"texts": ["cat number 0", "dog number 1"' in page
  facts = json.loads((folder / "report.json").read_text())["facts"]
  assert "15 test texts" in facts["data"] and "0.2 at first" in facts["training"]


def test_a_map_after_training_is_put_on_both_towers(compared):
  folder = compared[0]
  cl = open_run(folder / "seed0" / "cl")
  ncl = open_run(folder / "seed0" / "ncl", source=cl.source)
  control = controls.CONTROLS["cl_varimax_transform"].make(cl, ncl)
  captions = cl.source.split("test").captions
  z = embedding.embed_texts(cl, captions)
  turned = embedding.embed_texts(control, captions)
  # The rotation by hand, from what the control does to the identity's features.
  plain = controls.CONTROLS["cl_varimax"].make(cl, ncl)
  axes = embedding.embed_texts(plain, captions)
  np.testing.assert_allclose(axes @ axes.T, z @ z.T, atol=1e-5)
  expected = np.maximum(axes, 0)
  size = np.linalg.norm(expected, axis=1, keepdims=True)
  np.testing.assert_allclose(turned, expected / np.maximum(size, 1e-12), atol=1e-5)


def test_what_cannot_be_said_is_refused_before_anything_is_trained(tmp_path):
  config = of_texts(tmp_path)
  for name in ("robustness", "sepin", "finetune"):
    with pytest.raises(InputError, match=f"holds texts and {name} changes images"):
      compare.compare(config, tmp_path / "out", seeds=1, evaluators=("pairs", name))
  config = tiny.config("ncl")
  config.data.source = f"arrays:{tiny.npz(tmp_path / 'tiny.npz', labelled=False)}"
  with pytest.raises(
    InputError, match="loss.name=nt_xent has no pairs and pairs needs"
  ):
    compare.compare(config, tmp_path / "out", seeds=1, evaluators=("pairs",))
  with pytest.raises(
    InputError, match="no labels and knn needs them: allowed are feature_stats, sepin"
  ):
    compare.compare(config, tmp_path / "out", seeds=1, evaluators=("knn",))
  config.loss.name = "clip"
  with pytest.raises(InputError, match="clip and .* has no captions"):
    compare.compare(config, tmp_path / "out", seeds=1)
  assert not list((tmp_path / "out").glob("seed*/*/checkpoints"))


def test_rows_of_images_with_captions_and_of_partners():
  made = tiny.source()
  config = tiny.config("ncl")
  assert not any("pairs" in row.key for row in registry.rows(config, made))
  config.loss.name = "clip"
  keys = [row.key for row in registry.rows(config, made)]
  assert keys[0] == "pairs:recall:image_to_text@1"
  assert {"pairs:text:purity", "pairs:zero_shot:classes_mean"} <= set(keys)
  split = made.split("test")
  object.__setattr__(split, "partners", lambda rows, rng: split.images[rows])
  config.loss.name = "nt_xent"
  keys = [row.key for row in registry.rows(config, made)]
  assert "pairs:partner:sparsity" in keys
  assert not any("zero_shot" in key for key in keys)
  assert registry.paired(config, made)
  config.data.pair_factors = ("shape",)
  assert not registry.paired(config, made)
