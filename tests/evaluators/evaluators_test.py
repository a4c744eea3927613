"""Evaluation of a checkpoint: each image once, numbers that others agree with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from scipy import special
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from ncl_jax import config as config_lib
from ncl_jax import features, nonneg
from ncl_jax.errors import Failed, InputError
from ncl_jax.evaluators import (
  execute,
  feature_stats,
  knn,
  linear_probe,
  logistic_regression,
  retrieval,
)
from ncl_jax.evaluators.run import Run, open_run
from ncl_jax.experiments import compare, rivals
from ncl_jax.runtime import jsonl
from ncl_jax.training import loop


@pytest.fixture(scope="module")
def source():
  return tiny.source(train=64, test=45)


@pytest.fixture(scope="module")
def run(tmp_path_factory, source):
  config = tiny.config()
  config.train.epochs = 4
  path = loop.train(config, tmp_path_factory.mktemp("runs") / "ncl", source)
  return open_run(path, source=source)


def extract(run, split="test", batch_size=16, source=None):
  config = run.config.copy_and_resolve_references()
  config.eval.batch_size = batch_size
  return Run(config, run.variables, source or run.source, run.mesh).extract(split)


@pytest.mark.parametrize("batch_size", [1, 7, 45, 101])
def test_each_image_once_whatever_the_batch(run, batch_size):
  expected, seen = extract(run), extract(run, batch_size=batch_size)
  np.testing.assert_array_equal(seen.ids, np.arange(45))
  np.testing.assert_array_equal(seen.labels, run.source.split("test").labels)
  for name in ("h", "hidden", "z"):
    a, b = getattr(expected, name), getattr(seen, name)
    assert a.dtype == np.float32 and len(a) == 45
    np.testing.assert_allclose(b, a, atol=1e-5 * np.abs(a).max())


def test_a_single_image(run):
  alone = tiny.source(train=64, test=1)
  assert extract(run, source=alone).h.shape == (1, 4)


def test_layers(run):
  test = extract(run)
  z = np.maximum(test.z, 0)
  norms = np.linalg.norm(z, axis=1, keepdims=True)
  f = np.divide(z, norms, out=np.zeros_like(z), where=norms > 0)
  np.testing.assert_allclose(test.layer("f", "rep_relu"), f, atol=1e-6)
  np.testing.assert_array_equal(test.layer("h", "rep_relu"), test.h)
  last = jax.tree.map(np.asarray, run.variables["params"]["projector"]["linear2"])
  np.testing.assert_allclose(
    test.hidden @ last["kernel"] + last["bias"], test.z, atol=1e-5
  )
  with pytest.raises(InputError, match="layer = 'g'"):
    test.layer("g", "relu")


def test_the_network_is_only_read(run):
  before = jax.tree.map(np.array, run.variables)
  for evaluator in (knn, linear_probe, feature_stats, retrieval):
    evaluator.evaluate(run.config, run.variables, run.source, run.mesh)
  jax.tree.map(np.testing.assert_array_equal, before, run.variables)


def test_knn_is_scikit_learns(run):
  result = knn.evaluate(run.config, run.variables, run.source, run.mesh)
  bank, test = extract(run, "train"), extract(run)
  for layer in ("h", "f"):
    x, y = (s.layer(layer, "rep_relu").astype(np.float64) for s in (bank, test))
    near = NearestNeighbors(n_neighbors=5, metric="cosine").fit(x)
    distance, index = near.kneighbors(y)
    weight = np.exp((1 - distance) / 0.07)
    votes = np.stack([(weight * (bank.labels[index] == c)).sum(1) for c in range(2)], 1)
    accuracy = np.mean(votes.argmax(1) == test.labels)
    assert result[layer]["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    grid = {
      (row["k"], row["temperature"]): row["accuracy"] for row in result[layer]["grid"]
    }
    assert grid[5, 0.07] == result[layer]["accuracy"]
    assert {k for k, _ in grid} == {1, 2, 5, 10, 20, 50}  # of 64 training images
    near = KNeighborsClassifier(5, weights=lambda d: 1 / (d + 1e-5)).fit(x, bank.labels)
    accuracy = near.score(y, test.labels)
    assert result[layer]["accuracy_euclidean"] == pytest.approx(accuracy, abs=1e-6)
  assert result["settings"]["k"] == 5 and result["settings"]["transform"] == "rep_relu"


def test_retrieval_in_both_galleries(run):
  result = retrieval.evaluate(run.config, run.variables, run.source, run.mesh)
  train, test = extract(run, "train"), extract(run)
  for gallery, name, own in ((test, "", 1), (train, "_in_train", 0)):
    near = NearestNeighbors(n_neighbors=10 + own, metric="cosine").fit(gallery.h)
    index = near.kneighbors(test.h, return_distance=False)[:, own:]
    hits = gallery.labels[index] == test.labels[:, None]
    precisions = hits.cumsum(1) / np.arange(1, 11)
    average = (hits * precisions).sum(1) / 10  # every class has more than ten
    assert result["h"][f"precision{name}"] == pytest.approx(hits.mean(), abs=1e-6)
    seen = result["h"][f"average_precision{name}"]
    assert seen == pytest.approx(average.mean(), abs=1e-6)


def test_feature_stats_follow_the_definitions(run):
  result = feature_stats.evaluate(run.config, run.variables, run.source, run.mesh)
  test = extract(run)
  f, values = test.layer("f", "rep_relu"), result["f"]
  live = (np.abs(f) > 1e-5).any(0)
  assert values["sparsity"] == pytest.approx(np.mean(np.abs(f) < 1e-5))
  assert values["active_dimensions"] == live.sum()
  assert values["dimensions"] == f.shape[1] == 8
  assert values["zero_rows"] == np.sum(~f.any(1))
  assert values["activation_rate"] == pytest.approx((np.abs(f) > 1e-5)[:, live].mean())
  rates = [
    np.bincount(test.labels[np.abs(f[:, d]) > 1e-5]).max()
    / np.sum(np.abs(f[:, d]) > 1e-5)
    for d in np.flatnonzero(live)
  ]
  assert values["consistency_abs"] == pytest.approx(np.mean(rates), rel=1e-5)
  assert 0.5 <= values["purity_chance"] <= values["purity"] + 0.5 <= 1.5


def test_unlabelled_data_leave_out_what_needs_classes(run):
  unlabelled = tiny.source(train=64, test=45, labelled=False)
  args = (run.config, run.variables, unlabelled, run.mesh)
  result = feature_stats.evaluate(*args)
  assert "sparsity" in result["f"] and "purity" not in result["f"]
  for evaluator in (knn, linear_probe, retrieval):
    with pytest.raises(InputError, match="no labels"):
      evaluator.evaluate(*args)


@pytest.mark.parametrize("strength", [1e-1, 1e-3])
def test_the_probe_solves_scikit_learns_problem(strength):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(200, 5)).astype(np.float32)
  y = (x @ rng.normal(size=(5, 3)) + rng.normal(size=(200, 3))).argmax(1)
  weights = (rng.random(200) < 0.7).astype(np.float32)
  ours = logistic_regression.fit(x, y, weights, strength, 3).head
  kept = weights > 0
  theirs = LogisticRegression(C=1 / (kept.sum() * strength), tol=1e-9, max_iter=2000)
  theirs.fit(x[kept], y[kept])
  logits = x @ ours["kernel"] + ours["bias"][None]
  np.testing.assert_allclose(jax.nn.softmax(logits), theirs.predict_proba(x), atol=2e-3)


@pytest.mark.parametrize("strength", [1e-2, 1e-4, 1e-6])
def test_the_probe_is_at_the_optimum_whatever_the_scales_of_features(strength):
  """Directions of sizes 1 to 1/100 about a mean, as ReLU's; separable when weak."""
  rng = np.random.default_rng(0)
  n, width, classes = 300, 64, 5
  y = rng.integers(0, classes, n)
  x = rng.normal(size=(n, width)) @ (
    rng.normal(size=(width, width)) * np.logspace(0, -2, width)
  )
  x = np.maximum(x + 2, 0)
  x = (x / np.sqrt(np.mean(x**2))).astype(np.float32)
  theirs = LogisticRegression(C=1 / (n * strength), tol=1e-10, solver="newton-cholesky")
  theirs.fit(x.astype(np.float64), y)

  def loss(kernel, bias):
    s = x.astype(np.float64) @ np.float64(kernel) + np.float64(bias)[None]
    ce = special.logsumexp(s, axis=1) - s[np.arange(n), y]
    return ce.mean() + strength / 2 * np.sum(np.float64(kernel) ** 2)

  least = loss(theirs.coef_.T, theirs.intercept_)
  found = logistic_regression.fit(
    jnp.asarray(x), jnp.asarray(y), jnp.ones(n), strength, classes
  )
  assert found.converged and found.iterations < logistic_regression.MAX_ITERATIONS
  ours = loss(found.head["kernel"], found.head["bias"])
  assert ours == pytest.approx(least, abs=2e-6)
  scores = x @ found.head["kernel"] + found.head["bias"][None]
  assert np.mean(np.asarray(scores).argmax(1) != theirs.predict(x)) < 0.01


def test_a_probe_that_is_not_at_its_optimum_says_so(monkeypatch):
  rng = np.random.default_rng(0)
  x = rng.normal(size=(100, 5)).astype(np.float32)
  y = rng.integers(0, 2, 100)
  args = (x[:80], y[:80], x[80:], y[80:])
  assert logistic_regression.probe(*args, num_classes=2)["converged"] is True
  monkeypatch.setattr(logistic_regression, "MAX_ITERATIONS", 2)
  assert logistic_regression.probe(*args, num_classes=2)["converged"] is False


def test_the_probe_chooses_its_penalty_without_the_test_set(run):
  train_set, test = extract(run, "train"), extract(run)
  x, y = train_set.h, test.h
  result = logistic_regression.probe(
    x, train_set.labels, y, test.labels, num_classes=2, seed=0
  )
  other = logistic_regression.probe(
    x, train_set.labels, y, 1 - test.labels, num_classes=2, seed=0
  )
  assert result["regularization"] == other["regularization"]
  assert result["accuracy"] == pytest.approx(1 - other["accuracy"])


def test_results_are_appended_with_their_settings(run):
  made = [
    execute.run(retrieval.evaluate, run.path, source=run.source) for _ in range(2)
  ]
  rows = jsonl.read(run.path / "eval" / "retrieval.jsonl")
  assert rows == [jsonl.to_json(row) for row in made] and rows[0] == rows[1]
  settings = rows[0]["settings"]
  assert rows[0]["step"] == run.step == 16
  assert (settings["k"], settings["split"], settings["images"]) == (10, "test", 45)
  assert rows[0]["versions"]["jax"] == jax.__version__


def test_steps_can_be_chosen(run):
  assert open_run(run.path, step=8, source=run.source).step == 8
  with pytest.raises(FileNotFoundError, match="step 5"):
    open_run(run.path, step=5, source=run.source)


def test_another_width_is_refused(run, tmp_path):
  config = config_lib.from_json((run.path / "config.json").read_text())
  config.model.width = 4
  (run.path / "config.json").rename(tmp_path / "kept")
  try:
    (run.path / "config.json").write_text(config_lib.to_json(config))
    with pytest.raises(InputError, match="does not fit.*backbone"):
      open_run(run.path, source=run.source)
  finally:
    (tmp_path / "kept").replace(run.path / "config.json")


def test_embed_is_the_map_and_the_norm():
  z = np.array([[3.0, -1.0, 4.0], [-1.0, -2.0, -3.0]], np.float32)
  np.testing.assert_allclose(
    features.embed(z, "relu"), [[0.6, 0, 0.8], [0, 0, 0]], atol=1e-7
  )
  assert set(nonneg.SPARSE) <= set(nonneg.NON_NEGATIVE)


@pytest.mark.slow
def test_compare_trains_pairs_and_writes_the_report(tmp_path, monkeypatch):
  tiny.npz(tmp_path / "tiny.npz", train=64, test=45)
  config = tiny.config()
  config.train.epochs = 2
  config.data.source = f"arrays:{tmp_path / 'tiny.npz'}"
  names = ("feature_stats", "knn", "axes")
  text = compare.compare(config, tmp_path / "out", seeds=2, evaluators=names)
  assert "purity" in text and "index.html" in text
  for control in ("untrained + transform", "CL: varimax, 95%", "pixels: k-means"):
    assert control in text
  rows = jsonl.read(tmp_path / "out" / "seed1" / "controls.jsonl")
  assert len({row["control"] for row in rows}) == len(rows) == 6
  assert all(set(row["results"]) == {"feature_stats", "knn"} for row in rows)
  assert "cross-seed correlation, f" in text
  report = tmp_path / "out" / "report"
  assert {p.name for p in report.iterdir()} == {
    "index.html",
    "report.md",
    "report.json",
    "controls.txt",
    "explorer.html",
    "figures",
  }
  for method in ("cl", "ncl"):
    (pair,) = jsonl.read(tmp_path / "out" / "seed1" / method / "eval" / "axes.jsonl")
    assert pair["settings"]["other_seed"] == 0
  for seed in (0, 1):
    cl, ncl = (
      config_lib.from_json(
        (tmp_path / "out" / f"seed{seed}" / m / "config.json").read_text()
      )
      for m in ("cl", "ncl")
    )
    lines = config_lib.differences(cl, ncl)
    assert [line.split(":")[0] for line in lines] == ["loss.transform", "method"]
    assert cl.seed == seed and cl.loss.transform == "identity"
  # Once more: the runs, and what was measured, are used as they are.
  monkeypatch.setattr(loop, "make_steps", None)
  monkeypatch.setattr(execute, "evaluate", lambda *a, **k: pytest.fail("again"))
  again = compare.compare(config, tmp_path / "out", seeds=2, evaluators=names)
  assert again == text
  fewer = compare.compare(
    config, tmp_path / "out", seeds=2, evaluators=names, control_evaluators=("knn",)
  )
  rows = jsonl.read(tmp_path / "out" / "seed1" / "controls.jsonl")
  assert len(rows) == 6 and all(set(row["results"]) == {"knn"} for row in rows)
  assert fewer != text and "class consistency" in fewer

  def fail(*args, **kwargs):
    raise InputError("no such luck")

  # So it is when dimensions cannot be compared across seeds.
  measured = tmp_path / "out" / "measured.jsonl"
  kept = measured.read_text().splitlines(keepends=True)
  measured.write_text("".join(line for line in kept if '"axes"' not in line))
  monkeypatch.setattr(execute, "evaluate", fail)
  with pytest.raises(Failed, match="index.html[^$]*NCL, seed 1, axes: no such luck"):
    compare.compare(config, tmp_path / "out", seeds=2, evaluators=names)
  measured.write_text("".join(kept))

  # Without a control the report is written all the same, and the cause told.
  monkeypatch.setattr(rivals, "kmeans", fail)
  with pytest.raises(Failed, match="index.html[^$]*CL: k-means, seed 1: no such luck"):
    compare.compare(config, tmp_path / "out", seeds=2, evaluators=names)
