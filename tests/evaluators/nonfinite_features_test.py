"""What is not finite is refused before it is measured; what is healthy is not."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from ncl_jax import checks, features, metrics
from ncl_jax.config import supervised_recipe
from ncl_jax.errors import Failed, InputError
from ncl_jax.evaluators import (
  axes,
  execute,
  feature_stats,
  logistic_regression,
  registry,
  sepin,
  supervised,
)
from ncl_jax.evaluators.run import open_run
from ncl_jax.report.explorer import Side
from ncl_jax.training import loop

NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """One epoch, under a debugger that stops at NaN; then a dimension that is dead."""
  config = tiny.config()
  config.train.update(epochs=1, checkpoint_every_epochs=1)
  source = tiny.source()
  with jax.debug_nans(True):
    path = loop.train(config, tmp_path_factory.mktemp("runs") / "ncl", source)
    opened = open_run(path, source=source)
  return changed(opened, "bias", 0, -1e3)


def changed(run, name, column, value):
  """The run with other parameters behind one dimension of z."""
  variables = jax.tree.map(np.array, run.variables)
  last = variables["params"]["projector"]["linear2"]
  last[name][..., column] = value
  return dataclasses.replace(run, variables=variables)


def options_of(name, run):
  if name == "axes":
    return {"other": run}
  if registry.registered()[name].trains:
    recipe = supervised_recipe.Recipe(epochs=1, batch_size=16, warmup_epochs=0.0)
    return {"recipe": recipe}
  return {}


PROGRAMS = [
  name
  for name, declared in registry.registered().items()
  if not declared.pairs and not name.startswith("finetune_")
]


def evaluated(name, run):
  return execute.evaluate(registry.registered()[name], run, **options_of(name, run))


@pytest.mark.parametrize("name", ["linear_probe_sgd", "finetune"])
def test_healthy_input_passes_a_debugger_that_stops_at_nan(run, name):
  """Of what trains; rows_test.py says so of the others."""
  with jax.debug_nans(True):
    row = evaluated(name, run)
  assert row["evaluator"] and row["step"] == 3


@pytest.mark.parametrize("name", PROGRAMS)
def test_features_that_are_not_finite_are_refused(run, name):
  """One parameter: so one dimension of z, of every image."""
  before = {p: p.stat().st_size for p in (run.path / "eval").glob("*")}
  says = (
    r"of checkpoint 3 of .*: the features z of \d+ of \d+ images hold NaN or infinity"
  )
  if name in ("linear_probe_sgd", "finetune"):
    says += "|step 1: "
  with pytest.raises(FloatingPointError, match=says):
    evaluated(name, changed(run, "kernel", 1, NAN))
  assert before == {p: p.stat().st_size for p in (run.path / "eval").glob("*")}


def test_a_program_of_programs_says_why(run, tmp_path):
  def call(evaluator, **settings):
    return execute.evaluate(evaluator, changed(run, "bias", 1, INF), **settings)

  rows, failed = execute.attempt(["knn", "retrieval"], call, tmp_path)
  assert not rows
  assert all("Use an earlier checkpoint" in why for why in failed.values())
  assert Failed  # what `run_all` then raises


def test_the_layer_and_the_images_are_named():
  good = np.ones((4, 3), np.float32)
  ids = np.arange(10, 14)
  labels = np.zeros(4, np.int32)
  bad = good.copy()
  bad[2, 1], bad[3, 0] = NAN, -INF
  for layer in ("h", "hidden", "z"):
    arrays = {"h": good, "hidden": good, "z": good} | {layer: bad}
    with pytest.raises(
      FloatingPointError, match=f"features {layer} of 2 of 4 images .* image 12:"
    ):
      features.Features(**arrays, labels=labels, ids=ids)
  # Finite entries whose sum is not.
  huge = np.full((4, 3), 3e38, np.float32)
  found = features.Features(huge, huge, 100 * good, labels, ids)
  assert found.layer("f", "relu").shape == (4, 3)
  with pytest.raises(FloatingPointError, match=r"features f = exp\(z\) of 4 of 4"):
    found.layer("f", "exp")


F = np.abs(np.random.default_rng(0).normal(size=(40, 4))).astype(np.float32)
Y = np.arange(40) % 2
BATCHES = np.arange(40).reshape(2, 1, 20)
OF_ARRAYS = {
  "statistics": lambda f: feature_stats.statistics(
    f, Y, 2, threshold=1e-5, activation_rate=0.1, seed=0
  ),
  "by_class": lambda f: feature_stats.by_class(
    f, Y, 2, threshold=1e-5, activation_rate=0.1, seed=0
  ),
  "sepin": lambda f: sepin.statistics(f, F, BATCHES, 0.2),
  "sepin, other view": lambda f: sepin.statistics(F, f, BATCHES, 0.2),
  "probe": lambda f: logistic_regression.choose(f, Y, num_classes=2),
  "axes": lambda f: axes.agreement(F, f, F, F, threshold=1e-5, seed=0),
  "axes, test": lambda f: axes.agreement(F, F, f, F, threshold=1e-5, seed=0),
  "explorer": lambda f: Side("NCL", f),
  "knn": lambda f: metrics.knn_predict(F, Y, f, 2),
  "knn, bank": lambda f: metrics.knn_predict(f, Y, F, 2),
  "knn, grid": lambda f: metrics.knn_predict_grid(f, Y, F, 2, [1], [0.1]),
  "retrieval": lambda f: metrics.retrieval(f, Y, 3),
  "retrieval, gallery": lambda f: metrics.retrieval(F, Y, 3, f, Y),
  "metrics.sepin": lambda f: metrics.sepin(f, F, temperature=0.2),
  "class_consistency": lambda f: metrics.class_consistency(f, Y, 2),
  "purity": lambda f: metrics.purity(f, Y, 2),
  "sparsity": metrics.sparsity,
  "effective_rank": metrics.effective_rank,
  "expected_activation": metrics.expected_activation,
  "view_agreement": lambda f: metrics.view_agreement(F, f),
}


@pytest.mark.parametrize("name", OF_ARRAYS)
def test_arrays_with_a_bad_row_are_refused_by_its_number(name):
  for bad in (NAN, INF, -INF):
    f = F.copy()
    f[17, 2] = bad
    with pytest.raises(InputError, match="1 of 40 rows of .*, first row 17"):
      OF_ARRAYS[name](f)
    with pytest.raises(InputError, match="first row 17"):
      OF_ARRAYS[name](jnp.asarray(f))


def test_rows_that_do_not_count_may_hold_anything():
  f = F.copy()
  f[17] = NAN
  where = np.arange(40) != 17
  checks.finite("f", f, where)
  expected = metrics.sparsity(F, where=where)
  np.testing.assert_array_equal(metrics.sparsity(f, where=where), expected)
  jax.jit(lambda f: metrics.sparsity(f))(f)  # what is traced passes unseen


def test_a_classifier_that_diverged_has_no_accuracy():
  head = {"kernel": np.ones((4, 2), np.float32), "bias": np.array([0, NAN], np.float32)}
  with pytest.raises(FloatingPointError, match="class scores of 40 of 40 rows"):
    supervised.accuracy(head, F, Y)


def test_defined_nan_passes_a_debugger_and_is_written_as_null(tmp_path):
  f = F.copy()
  f[:, 3] = 0  # dead
  with jax.debug_nans(True):
    rate, active = metrics.class_consistency(f, Y, 2)
    entropy = metrics.label_entropy(f, Y, 2)
    pure, rank = metrics.purity(f, Y, 2), metrics.effective_rank(f)
    agreement = metrics.view_agreement(f, f)
    weights = metrics.activated(f)
    precision, _ = metrics.retrieval(f, np.where(Y, Y, -1), 3)
    spread = (
      metrics.orthogonality(np.zeros((4, 3))),
      metrics.effective_rank(np.zeros((4, 3))),
    )
  assert np.isnan([rate[3], entropy[3], pure[3], agreement[3], *spread]).all()
  assert np.isnan(weights[:, 3]).all() and np.isnan(precision[0])
  assert active[3] == 0
  # The same as without the dimension.
  np.testing.assert_allclose(rank, metrics.effective_rank(f[:, :3]), rtol=1e-5)
  for found, alone in (
    (rate, metrics.class_consistency(f[:, :3], Y, 2)[0]),
    (entropy, metrics.label_entropy(f[:, :3], Y, 2)),
    (pure, metrics.purity(f[:, :3], Y, 2)),
  ):
    np.testing.assert_array_equal(found[:3], alone)


def test_a_dead_layer_is_null_in_the_file(run):
  dead = run
  for column in range(8):
    dead = changed(dead, "bias", column, -1e3)
  evaluated("feature_stats", dead)
  text = (run.path / "eval" / "feature_stats.jsonl").read_text().splitlines()[-1]
  row = json.loads(text, parse_constant=pytest.fail)
  assert row["f"]["active_dimensions"] == 0
  assert row["f"]["consistency_abs"] is None and row["f"]["effective_rank"] is None
  assert math.isfinite(row["h"]["effective_rank"])
