"""Latent classes: the theory's identities, and that training finds what it says."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax import losses
from ncl_jax.errors import InputError
from studies.latent import factorize, fit, measure
from studies.latent import run as study
from studies.latent import space as space_lib

KINDS = space_lib.KINDS


@pytest.fixture(scope="module")
def config():
  """Of the program, in seconds instead of minutes."""
  return study.Settings(
    kinds=("one_hot", "overlapping"),
    more_kinds=(),
    per_class=2,
    steps=700,
    label_counts=(32, 512),
  )


@pytest.fixture(scope="module")
def found(config):
  return study.run(config)


def test_the_program_s_claims_hold_at_small_size(found):
  rows, claims = found
  text = "\n".join(claim.text for claim in claims)
  # Those that the theory is judged by are among them.
  for said in (
    "one_hot, NCL, D = 16: matched correlation with phi, worst seed >= 0.99",
    "one_hot, CL, D = 8: matched correlation, median <= 0.7",
    "one_hot, CL, D = 8: the same after the best rotation, worst seed >= 0.99",
    "overlapping, NCL, D = 16: matched correlation with phi, worst seed >= 0.95",
    "one_hot, NCL, D = 16: residual of the worst seed <= 0.001",
    "one_hot, NCL, D = 5: best residual above the optimum, relative <= 0.01",
  ):
    assert said in text
  assert all(len(row["correlation"]) == 5 for row in rows)
  assert not [claim for claim in claims if not claim.holds]


def test_a_random_rotation_changes_cl_s_axes_and_ncl_s_loss(found):
  rows, _ = found
  for row in rows:
    if row["width"] != 16:
      continue
    residual, rotated = row["residual"], row["residual_rotated"]
    np.testing.assert_allclose(rotated, residual, atol=1e-9)
    if row["method"] == "cl":
      assert max(row["correlation_rotated_randomly"]) < 0.9
      np.testing.assert_allclose(row["residual_rotated_mapped"], residual, atol=1e-6)
    else:
      assert min(row["negative_rotated"]) > 0.2
      assert min(row["residual_rotated_mapped"]) > 0.1


def test_the_probe_reaches_the_bayes_error(found):
  rows, _ = found
  for row in rows:
    if row["width"] < 8:
      continue
    for errors in row["probe_error"].values():
      assert min(errors) >= row["bayes_error"] - 1e-9
    assert np.median(row["probe_error"]["512"]) < row["bayes_error"] + 0.02


def test_what_is_written(found, config, tmp_path):
  rows, claims = found
  shown = study.text(rows, claims, config)
  study.write(tmp_path / "new", rows, claims, shown)
  again = json.loads((tmp_path / "new" / "identifiability.json").read_text())
  assert again["rows"] == rows
  assert [c["holds"] for c in again["claims"]] == [True] * len(claims)
  table = [line for line in shown.splitlines() if line.startswith("|")]
  assert len(table) == len(rows) + 2
  assert len({line.count("|") for line in table}) == 1
  assert shown.count("PASS") == len(claims)


def test_a_claim_that_does_not_hold_is_told(found, config):
  rows, _ = found
  worse = [dict(row, correlation=[0.8] * 5) for row in rows]
  claims = study.claims(worse, 8)
  assert sum(not claim.holds for claim in claims) == 3
  assert "FAIL" in study.text(worse, claims, config)


def test_without_anchors_the_loss_cannot_tell():
  """The failure, and its reason: other non-negative factors give the same A."""
  space = space_lib.make("no_anchors", classes=3, per_class=6)
  # A rotation about (1, 1, 1) by a few degrees, as its first-order generator shows.
  skew = np.array([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]]) / np.sqrt(3)
  angle = 0.15
  turn = np.eye(3) + np.sin(angle) * skew + (1 - np.cos(angle)) * skew @ skew
  np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-12)
  other = space.phi @ turn
  assert other.min() > 0
  factor = space.scaled(other)
  np.testing.assert_allclose(factor @ factor.T, space.normalized_pairs, atol=1e-12)
  # With anchors the same turn is refused.
  assert (space_lib.make("overlapping", 3, 6).phi @ turn).min() < -0.01

  # As good for the loss, and not the classes: the fits of this space differ.
  weights = space.marginal
  assert measure.matched_correlation(other, space.phi, weights) < 0.99
  f = fit.fit(space, fit.Model("spectral", "rep_relu", 6), seeds=5, steps=700)
  fitted = [factorize.residual(space.normalized_pairs, space.scaled(x)) for x in f]
  assert max(fitted) < 1e-3
  assert min(measure.matched_correlation(x, space.phi, weights) for x in f) < 0.98


@pytest.mark.parametrize("kind", KINDS)
def test_a_space_by_sums_over_its_classes(kind):
  space = space_lib.make(kind, classes=3, per_class=4)
  samples = len(space.marginal)
  assert space.pairs.sum() == pytest.approx(1)
  for x, y in itertools.product(range(samples), repeat=2):
    pair = sum(
      space.prior[c] * space.conditional[x, c] * space.conditional[y, c]
      for c in range(3)
    )
    assert space.pairs[x, y] == pytest.approx(pair)
    root = np.sqrt(space.pairs[x].sum() * space.pairs[y].sum())
    assert space.normalized_pairs[x, y] == pytest.approx(pair / root)
  factor = space.scaled(space.phi)
  np.testing.assert_allclose(factor @ factor.T, space.normalized_pairs, atol=1e-12)
  np.testing.assert_allclose(space.posterior.sum(1), 1)
  own = (space.posterior > 0).sum(1)
  expected = {"no_anchors": [3] * 12, "overlapping": [1, 1, 2, 2] * 3}
  assert own.tolist() == expected.get(kind, [1] * 12)
  if kind == "unequal":
    np.testing.assert_allclose(space.prior, [1 / 6, 2 / 6, 3 / 6])
  assert (space.bayes_error > 0.01) == (kind in ("overlapping", "no_anchors"))


def test_the_loss_is_the_factorisation_s(x64):
  space = space_lib.make("overlapping", classes=3, per_class=4)
  f = np.random.default_rng(0).normal(size=(12, 4))
  rows = np.array(list(itertools.product(range(12), repeat=2)))
  weights = space.pairs[rows[:, 0], rows[:, 1]]
  loss = jax.jit(losses.spectral)(jnp.asarray(f[rows]), jnp.asarray(weights))
  size = np.sum(space.normalized_pairs**2)
  residual = factorize.residual(space.normalized_pairs, space.scaled(f))
  assert float(loss) == pytest.approx((residual - 1) * size, rel=1e-9)


def test_symmetric_nmf_finds_a_planted_factor_and_respects_the_bound():
  rng = np.random.default_rng(1)
  planted = rng.uniform(size=(12, 3)) * (rng.uniform(size=(12, 3)) < 0.5)
  a = planted @ planted.T
  assert factorize.residual(a, factorize.symmetric_nmf(a, 3, restarts=5)) < 1e-4
  f = factorize.symmetric_nmf(a, 2, restarts=5)
  assert f.shape == (12, 2) and f.min() >= 0
  assert factorize.residual(a, f) >= factorize.best_residual(a, 2) - 1e-12


def test_best_residual_is_that_of_the_eigenvectors():
  rng = np.random.default_rng(2)
  x = rng.normal(size=(6, 6))
  a = x + x.T  # with negative eigenvalues, which no F F^T can reach
  values, vectors = np.linalg.eigh(a)
  keep = np.argsort(-values)[:4]
  f = vectors[:, keep] * np.sqrt(np.maximum(values[keep], 0))[None]
  assert factorize.best_residual(a, 4) == pytest.approx(factorize.residual(a, f))


def test_matching_and_rotation():
  rng = np.random.default_rng(3)
  weights = rng.dirichlet(np.ones(20))
  target = rng.normal(size=(20, 3))
  wide = np.concatenate([rng.normal(size=(20, 2)), -2 * target[:, [1, 2, 0]] + 5], 1)
  assert measure.matched_correlation(wide, target, weights) == pytest.approx(1)
  # Two of three columns found.
  half = measure.matched_correlation(target[:, :2], target, weights)
  assert half == pytest.approx(2 / 3)
  turned = target @ measure.random_rotation(3, 0)
  assert measure.matched_correlation(turned, target, weights) < 0.97
  back = measure.best_rotation(turned, target, weights)
  np.testing.assert_allclose(back, target, atol=1e-9)


def test_correlation_is_weighted():
  rng = np.random.default_rng(4)
  a, b = rng.normal(size=(2, 5))
  counts = np.array([1, 3, 2, 1, 4])
  expected = abs(np.corrcoef(np.repeat(a, counts), np.repeat(b, counts))[0, 1])
  found = measure.matched_correlation(a[:, None], b[:, None], counts / counts.sum())
  assert found == pytest.approx(expected)


def test_the_posterior_itself_has_the_bayes_error():
  space = space_lib.make("overlapping", classes=4, per_class=6)
  error = measure.probe_error(space, space.phi, 4000, seed=0)
  assert error == pytest.approx(space.bayes_error, abs=0.005)
  nothing = measure.probe_error(space, np.zeros_like(space.phi), 4000, seed=0)
  assert nothing == pytest.approx(0.75, abs=1e-9)


def test_nt_xent_gives_rows_of_unit_length_the_same_again(monkeypatch):
  monkeypatch.setattr(fit, "BATCH_SIZE", 8)
  space = space_lib.make("one_hot", classes=2, per_class=2)

  def once():
    return fit.fit(space, fit.Model("nt_xent", "rep_relu", 4, "mlp"), seeds=2, steps=30)

  f = once()
  assert f.shape == (2, 4, 4) and f.min() >= 0
  np.testing.assert_allclose(np.linalg.norm(f, axis=-1), 1, atol=1e-5)
  assert np.abs(f[0] - f[1]).max() > 1e-3
  np.testing.assert_array_equal(f, once())


@pytest.mark.parametrize(
  "call",
  [
    lambda: space_lib.make("onehot"),
    lambda: space_lib.make("one_hot", classes=1),
    lambda: fit.Model("x", "relu", 2),
  ],
)
def test_refuses(call):
  with pytest.raises(InputError):
    call()
