"""Feature selection: each row of its table, the curve and the ablation, by hand."""

import numpy as np
import pytest
import tiny

from ncl_jax import features, metrics
from ncl_jax.errors import InputError
from ncl_jax.evaluators import logistic_regression, selection


@pytest.fixture(scope="module")
def parts(run):
  return {name: run.extract(name) for name in ("train", "test")}


def by_hand(parts, split, rectify=True):
  z = np.maximum(parts[split].z, 0) if rectify else parts[split].z
  norms = np.linalg.norm(z, axis=1, keepdims=True)
  return np.divide(z, norms, out=np.zeros_like(z), where=norms > 0)


@pytest.mark.parametrize("keep", [1, 3, 8])
def test_selection_chooses_by_the_training_split(run, parts, keep):
  rows = selection.choose(parts, run.config, keep)
  for name, rectify in (("ea_relu", True), ("ea_signed", False)):
    order = np.argsort(-by_hand(parts, "train", rectify).mean(0), kind="stable")
    expected = by_hand(parts, "test", rectify)[:, order[:keep]]
    np.testing.assert_allclose(rows[name][0]["test"], expected, atol=1e-6)
  f, live = by_hand(parts, "test"), by_hand(parts, "train").any(0)
  order = np.argsort(-by_hand(parts, "train").var(0), kind="stable")
  np.testing.assert_allclose(rows["variance"][0]["test"], f[:, order[:keep]], atol=1e-6)
  np.testing.assert_allclose(rows["all"][0]["test"], f, atol=1e-6)
  for name, allowed in (("random", np.ones(8, bool)), ("random_active", live)):
    assert len(rows[name]) == selection.DRAWS
    for sets in rows[name]:
      assert sets["test"].shape[1] == min(keep, allowed.sum())
      same = np.isclose(sets["test"][:, :, None], f[:, None], atol=1e-6).all(0)
      assert same[:, allowed].any(1).all()
  centred = by_hand(parts, "train") - by_hand(parts, "train").mean(0)
  _, _, axes = np.linalg.svd(centred, full_matrices=False)
  expected = (f - by_hand(parts, "train").mean(0)) @ axes[:keep].T
  significant = np.abs(expected).max(0) > 0.02  # rounding turns the others
  np.testing.assert_allclose(
    np.abs(rows["pca"][0]["test"])[:, significant],
    np.abs(expected)[:, significant],
    atol=1e-4,
  )


def test_selection_scores_with_the_probe_and_retrieval(
  run, parts, monkeypatch, tmp_path
):
  monkeypatch.setattr(selection, "SHARES", (1 / 4, 1))
  monkeypatch.setattr(selection, "DRAWS", 2)
  tiny.npz(tmp_path / "other.npz", train=64, test=45)
  other = f"arrays:{tmp_path / 'other.npz'}"
  result = selection.evaluate(run, transfer=other)
  f = {name: by_hand(parts, name) for name in parts}
  labels = {name: part.labels for name, part in parts.items()}
  probe = logistic_regression.probe(
    f["train"], labels["train"], f["test"], labels["test"], num_classes=2
  )
  precision, _ = metrics.retrieval(f["test"], labels["test"], k=10)
  whole = result["all"]
  # The same images once more: the transfer's probe is the probe.
  assert whole["probe"] == whole["transfer"] == probe["accuracy"]
  assert whole["retrieval"] == pytest.approx(float(np.mean(precision)), abs=1e-6)
  assert whole["dimensions"] == 8 and result["ea_relu"]["dimensions"] == 2
  assert result["random"]["probe_std"] >= 0 and "probe_std" not in whole
  assert [point["k"] for point in result["curve"]] == [2, 8]
  assert result["curve"][0]["ea_relu"] == result["ea_relu"]
  assert result["curve"][1]["ea_relu"]["retrieval"] == pytest.approx(whole["retrieval"])
  assert result["active_dimensions"] == f["train"].any(0).sum()
  settings = result["settings"]
  assert (settings["keep"], settings["transfer"]) == (2, other)


def test_ablation_is_the_loop_over_dimensions():
  rng = np.random.default_rng(0)
  params = {"kernel": rng.normal(size=(6, 3)), "bias": rng.normal(size=3)}
  x, labels = rng.normal(size=(50, 6)), rng.integers(0, 3, 50)

  def accuracy(x):
    return np.mean((x @ params["kernel"] + params["bias"]).argmax(1) == labels)

  whole, without = selection._accuracies(params, x, labels)
  assert whole == pytest.approx(accuracy(x))
  expected = [accuracy(x * (np.arange(6) != d)) for d in range(6)]
  np.testing.assert_allclose(without, expected, atol=1e-6)


def test_ablation_finds_that_the_frequent_dimensions_matter(parts):
  """One-hot features of two classes in unequal groups: a group lost is its share."""
  group = np.repeat([0, 1, 2, 3], [24, 18, 14, 8])
  f = {"train": np.eye(8, dtype=np.float32)[group]}
  f["test"] = f["train"][:45]
  labels = {name: parts[name].labels * 0 + np.arange(len(x)) for name, x in f.items()}
  two = {
    name: features.Features(*[f[name]] * 3, (group[: len(y)] % 2), y)
    for name, y in labels.items()
  }
  result = selection.ablation(f, two, 2, 1e-5)
  assert result["ea"] == result["frequency"] > 0
  dense = {name: x + np.float32(1) for name, x in f.items()}
  assert np.isnan(selection.ablation(dense, two, 2, 1e-5)["frequency"])


def test_selection_refuses(run):
  with pytest.raises(
    InputError, match="keep = 9: it must be an int, at least 1 and at"
  ):
    selection.evaluate(run, keep=9)
  with pytest.raises(InputError, match="no labels"):
    selection.evaluate(run.on(tiny.source(train=64, test=45, labelled=False)))
