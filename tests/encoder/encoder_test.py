"""NonNegativeEncoder: scikit-learn's checks, formulas of its codes, wrong input."""

import collections
import copy

import numpy as np
import pytest
import scipy.sparse
from sklearn.utils.estimator_checks import check_estimator

from ncl_jax.encoder import NonNegativeEncoder
from ncl_jax.errors import InputError


def test_scikit_learns_checks_pass():
  results = check_estimator(
    NonNegativeEncoder(8, epochs=1, batch_size=16), on_fail=None, on_skip=None
  )
  by_status = collections.defaultdict(set)
  for result in results:
    by_status[result["status"]].add(result["check_name"])
  assert len(by_status.pop("passed")) > 40
  # Needs an environment variable that must be set before scipy is imported. Early
  # versions of scikit-learn do not have it.
  assert by_status.pop("skipped", set()) <= {"check_array_api_input"}
  assert not by_status


def test_transform_is_its_formula(x, fitted):
  """In numpy and float64, from the raw embeddings, and back."""
  live = x.std(0) > 1e-9
  scale = np.sqrt(np.mean(x[:, live].var(0)))
  centred = (x - x.mean(0)) * live / scale
  params = fitted.params_
  z = (centred - params["pre_bias"]) @ params["kernel"] + params["bias"]
  z = np.maximum(z, 0)
  z[np.arange(len(z))[:, None], np.argsort(-z, axis=1)[:, 3:]] = 0
  f = z / np.linalg.norm(z, axis=1, keepdims=True)
  codes = fitted.transform(x)
  np.testing.assert_allclose(codes, f, atol=1e-5)
  assert (codes >= 0).all() and np.sum(codes > 0, axis=1).max() == 3
  np.testing.assert_allclose(fitted.expected_activation_, f.mean(0), atol=1e-5)
  assert (np.diff(fitted.expected_activation_) <= 0).all()

  decoded = z @ params["kernel"].T + params["pre_bias"]
  explained = 1 - np.sum((decoded - centred) ** 2) / np.sum(centred**2)
  assert explained > 0.3
  assert fitted.explained_variance_ == pytest.approx(explained, abs=1e-5)
  whole = copy.deepcopy(fitted).set_params(normalize=False)
  np.testing.assert_allclose(whole.transform(x), z, atol=1e-4)
  for given in (z, scipy.sparse.csr_array(z)):
    found = whole.inverse_transform(given)
    np.testing.assert_allclose(found, decoded * scale + x.mean(0), atol=1e-4)


def test_a_free_decoder_and_none(x, fitted):
  free = NonNegativeEncoder(**fitted.get_params() | {"tied": False, "normalize": False})
  codes = free.fit(x).transform(np.float32(x))
  back = free.inverse_transform(codes)
  assert back.dtype == np.float32
  error = np.sum((back - x) ** 2) / np.sum((x - x.mean(0)) ** 2)
  assert free.explained_variance_ == pytest.approx(1 - error, abs=1e-4)
  assert not np.array_equal(free.params_["decoder"], free.params_["kernel"].T)
  with pytest.raises(InputError, match="have 16"):
    free.inverse_transform(codes[:, :5])
  with pytest.raises(InputError, match="normalize = True"):
    fitted.inverse_transform(codes)
  none = NonNegativeEncoder(**fitted.get_params() | {"objective": "contrastive"}).fit(x)
  assert not hasattr(none, "explained_variance_")
  with pytest.raises(InputError, match="no decoder"):
    none.set_params(normalize=False).inverse_transform(codes)


def test_a_constant_column_is_ignored_for_ever(x, fitted):
  moved = x.copy()
  moved[:, 2] = np.random.default_rng(0).normal(size=300)
  np.testing.assert_array_equal(fitted.transform(moved), fitted.transform(x))


def test_types_offsets_and_order_of_the_same_numbers(x, fitted):
  codes = fitted.transform(x)
  again = NonNegativeEncoder(**fitted.get_params()).fit(x)
  np.testing.assert_array_equal(again.transform(x), codes)
  far = NonNegativeEncoder(**fitted.get_params()).fit(x + 1e5)
  np.testing.assert_allclose(far.transform(x + 1e5), codes, atol=1e-4)
  single = x.astype(np.float32)
  assert codes.dtype == np.float64 and fitted.transform(single).dtype == np.float32
  # One row by itself, and rows in another block.
  np.testing.assert_array_equal(fitted.transform(x[270:271]), codes[270:271])
  other = NonNegativeEncoder(**fitted.get_params() | {"random_state": 1}).fit(x)
  assert not np.array_equal(other.transform(x), codes)


def test_sparse_output_is_the_dense_one(x, fitted):
  sparse = NonNegativeEncoder(**fitted.get_params() | {"sparse_output": True}).fit(x)
  codes = sparse.transform(np.float32(x))
  assert isinstance(codes, scipy.sparse.csr_array) and codes.dtype == np.float32
  np.testing.assert_array_equal(codes.toarray(), fitted.transform(np.float32(x)))


def test_an_outlier_column_and_dead_dimensions_are_told():
  x = np.random.default_rng(0).normal(size=(60, 8))
  settings = {"n_active": 1, "epochs": 1, "random_state": 0}
  with pytest.warns(UserWarning, match="column 3 of X holds 9[0-9]% of the variance"):
    NonNegativeEncoder(4, **settings).fit(x * np.where(np.arange(8) == 3, 30, 1))
  two = np.repeat(np.eye(8)[:2], 30, axis=0)
  with pytest.warns(UserWarning, match="of 16 dimensions are active in no row of X"):
    NonNegativeEncoder(16, **settings).fit(two)


def test_shortening_takes_the_first_columns(x, fitted):
  everything = NonNegativeEncoder(16, epochs=0, random_state=0).fit(x)
  codes, short = everything.transform(x), everything.shorten(5)
  first = codes[:, :5] / np.maximum(np.linalg.norm(codes[:, :5], axis=1), 1e-9)[:, None]
  np.testing.assert_allclose(short.transform(x), first, atol=1e-6)
  assert everything.transform(x).shape == (300, 16)
  names = everything.get_feature_names_out()
  assert names[:5].tolist() == short.get_feature_names_out().tolist()
  assert names[0] == "nonnegativeencoder0"
  # With few active dimensions, as many again, of those that are left.
  few = fitted.shorten(8).transform(x)
  assert few.shape == (300, 8) and np.sum(few > 0, axis=1).max() == 3
  for wrong in (0, 17, 2.0):
    with pytest.raises(InputError, match=f"n_dims = {wrong}"):
      fitted.shorten(wrong)


@pytest.mark.parametrize("active", [-1, 2.5, "3", None])
def test_a_changed_number_of_active_dimensions_is_checked(tmp_path, x, fitted, active):
  made = copy.deepcopy(fitted).set_params(n_active=active)
  for call in (
    lambda: made.transform(x),
    lambda: made.encode_items(x),
    lambda: made.to_sentence_transformers(tmp_path),
  ):
    with pytest.raises(InputError, match=f"n_active = {active!r}"):
      call()


def test_pairs_of_tables_have_the_columns_of_x(x):
  class Table(np.ndarray):
    columns = list("bacdef")

  made = NonNegativeEncoder(4, positives="pairs", epochs=0).fit(x, pairs=x)
  # As scikit-learn notes it where X is a table with names.
  made.feature_names_in_ = np.array(list("abcdef"), object)
  with (
    pytest.warns(UserWarning, match="valid feature names"),
    pytest.raises(InputError, match="pairs have other columns"),
  ):
    made.partial_fit(x, pairs=x.view(Table))


NAN = np.full((4, 2), np.nan)
GOOD = np.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize(
  ("settings", "data", "message"),
  [
    ({}, {"X": NAN}, "NaN"),
    ({}, {"X": np.where(GOOD == 3, np.inf, GOOD)}, "infinity"),
    ({}, {"X": GOOD[:1]}, r"1 sample\(s\)"),
    ({}, {"X": GOOD[0]}, "Expected 2D array"),
    ({}, {"X": np.ones((4, 2)) * 0.1}, r"all 2 column\(s\) of X are constant"),
    ({}, {"X": GOOD * 1e300}, "squares exceed float64"),
    ({}, {"X": scipy.sparse.csr_matrix(GOOD)}, "[Ss]parse"),
    ({}, {"X": GOOD, "pairs": GOOD}, "positives = 'views' and pairs are given"),
    ({"positives": "pairs"}, {"X": GOOD}, "no pairs are given"),
    ({"positives": "pairs"}, {"X": GOOD, "pairs": GOOD[:3]}, "one partner per row"),
    ({"positives": "pairs"}, {"X": GOOD, "pairs": NAN}, "pairs contains NaN"),
    ({"positives": "labels"}, {"X": GOOD}, "the target y is None"),
    ({"positives": "labels"}, {"X": GOOD, "y": [0, 1, 1]}, r"must be \(4,\)"),
    ({"positives": "labels"}, {"X": GOOD, "y": [0, 1, 2, -1]}, "no positive pairs"),
    ({"positives": "labels"}, {"X": GOOD, "y": list("abcd")}, "no positive pairs"),
    ({"positives": "label"}, {"X": GOOD}, "did you mean 'labels'"),
    ({"n_components": 0}, {"X": GOOD}, "n_components = 0"),
    ({"n_active": 1.5}, {"X": GOOD}, "n_active = 1.5"),
    ({"batch_size": 1}, {"X": GOOD}, "batch_size = 1"),
    ({"objective": "csrr"}, {"X": GOOD}, "did you mean 'csr'"),
    ({"temperature": 0}, {"X": GOOD}, "temperature = 0"),
    ({"dropout": 1.0}, {"X": GOOD}, "below 1"),
    ({"noise": -1.0}, {"X": GOOD}, "noise = -1"),
    ({"beta": float("nan")}, {"X": GOOD}, "beta = nan"),
    ({"gamma": -0.1}, {"X": GOOD}, "gamma = -0.1"),
  ],
)
def test_wrong_input_is_named(settings, data, message):
  with pytest.raises((ValueError, TypeError), match=message):
    NonNegativeEncoder(**settings).fit(**data)
