"""Early stopping: the recall is scikit-learn's, the best epoch stays."""

import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import check_random_state

from ncl_jax.encoder import NonNegativeEncoder, stopping
from ncl_jax.errors import InputError

SETTINGS = {"n_active": 4, "batch_size": 64, "random_state": 0}


@pytest.fixture(scope="module")
def x():
  """[400, 8] around twenty centres."""
  rng = np.random.default_rng(3)
  return rng.normal(size=(20, 8))[np.arange(400) % 20] + 0.4 * rng.normal(size=(400, 8))


def held(x):
  seed = check_random_state(0).randint(np.iinfo(np.int32).max)
  return stopping.held_out(len(x), seed)


def neighbours(items, queries):
  search = NearestNeighbors(n_neighbors=10, metric="cosine").fit(items)
  return search.kneighbors(queries, return_distance=False)


def recall(encoder, x):
  """By scikit-learn, of the codes that the encoder returns."""
  asked = held(x)
  items = np.delete(np.arange(len(x)), asked)
  true = neighbours(x[items] - x.mean(0), x[asked] - x.mean(0))
  found = neighbours(*(encoder.transform(x[rows]) for rows in (items, asked)))
  hits = [np.isin(a, b).sum() for a, b in zip(found, true, strict=True)]
  return np.mean(hits) / 10


def test_the_best_epoch_stays_and_its_recall_is_scikit_learns(x):
  # The rate is far too high, so recall falls again.
  encoder = NonNegativeEncoder(
    32, epochs=12, n_iter_no_change=2, learning_rate=0.3, **SETTINGS
  ).fit(x)
  scores = encoder.validation_scores_
  assert len(scores) == len(encoder.loss_curve_) == min(12, int(np.argmax(scores)) + 3)
  assert len(scores) < 12
  assert scores.max() > scores[-1]
  np.testing.assert_allclose(recall(encoder, x), scores.max(), atol=0.005)


def test_the_best_parameters_are_a_copy(x):
  """On a CPU they may be views of the state, which the next step overwrites."""
  fitted = NonNegativeEncoder(8, epochs=1, **SETTINGS).fit(x)
  network = fitted._network(8)
  rest = np.delete(np.arange(400), held(x))
  watch = stopping.Stopping(x, rest, held(x), fitted.scaling_, 2)
  params = {name: tensor.copy() for name, tensor in fitted.params_.items()}
  watch.ends(params, network)
  for tensor in params.values():
    tensor[...] = np.nan
  for name, tensor in fitted.params_.items():
    np.testing.assert_array_equal(watch.best[name], tensor)


def test_training_does_not_see_the_rows_held_out(x):
  def params(x):
    return NonNegativeEncoder(16, epochs=1, n_iter_no_change=5, **SETTINGS).fit(x)

  moved = x.copy()
  moved[held(x)] = x[np.roll(held(x), 1)]
  assert len(held(x)) == 40 and not np.array_equal(moved, x)
  # To the rounding of the mean.
  kernels = [params(rows).params_["pre_bias"] for rows in (x, moved)]
  np.testing.assert_allclose(*kernels, atol=1e-5)
  seen = x.copy()
  rest = np.delete(np.arange(400), held(x))
  seen[rest] = x[np.roll(rest, 1)]
  assert np.abs(params(seen).params_["pre_bias"] - kernels[0]).max() > 1e-3


def test_the_scores_are_in_the_encoders_file(x, tmp_path):
  encoder = NonNegativeEncoder(16, epochs=2, n_iter_no_change=1, **SETTINGS).fit(x)
  encoder.save(tmp_path / "a.safetensors")
  again = NonNegativeEncoder.load(tmp_path / "a.safetensors")
  np.testing.assert_array_equal(again.validation_scores_, encoder.validation_scores_)
  assert again.n_iter_no_change == 1
  encoder.set_params(n_iter_no_change=None).fit(x)
  assert not hasattr(encoder, "validation_scores_")
  encoder.set_params(n_iter_no_change=1, epochs=0).fit(x).save(
    tmp_path / "0.safetensors"
  )
  again = NonNegativeEncoder.load(tmp_path / "0.safetensors")
  assert again.validation_scores_.shape == again.loss_curve_.shape == (0,)


def test_too_few_rows_and_wrong_values_are_refused(x):
  with pytest.raises(InputError, match="needs 20 rows or more: X has 19"):
    NonNegativeEncoder(8, n_iter_no_change=1, **SETTINGS).fit(x[:19])
  with pytest.raises(InputError, match="n_iter_no_change = 0"):
    NonNegativeEncoder(8, n_iter_no_change=0, **SETTINGS).fit(x)
