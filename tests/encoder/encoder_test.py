"""NonNegativeEncoder: scikit-learn's checks, formulas, what it learns, its files."""

import collections
import copy
import pathlib
import sys
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from sklearn.utils.estimator_checks import check_estimator

from ncl_jax.encoder import (
  InvertedIndex,
  NonNegativeEncoder,
  nearest,
  recall,
  training,
)
from ncl_jax.encoder.autoencoder import Autoencoder, reconstruction
from ncl_jax.encoder.scaling import measured
from ncl_jax.errors import InputError


@pytest.fixture(scope="module")
def x():
  """[300, 6], of which column 2 is constant and column 4 far from 0."""
  x = np.random.default_rng(0).normal(size=(300, 6))
  x[:, 2] = 0.1
  x[:, 4] += 1000
  return x


@pytest.fixture(scope="module")
def fitted(x):
  settings = {"n_active": 3, "epochs": 2, "batch_size": 64, "random_state": 0}
  return NonNegativeEncoder(16, **settings).fit(x)


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


def recipe(**changed):
  settings = {
    "network": Autoencoder(2, 0),
    "objective": "csr",
    "beta": 0.0,
    "gamma": 1.0,
    "temperature": 0.2,
    "noise": 0.0,
    "dropout": 0.0,
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "steps": 1,
    "labelled": False,
  }
  return training.Recipe(**settings | changed)


@pytest.mark.parametrize("views", [1, 2])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("objective", training.OBJECTIVES)
def test_the_loss_is_its_formula(objective, labelled, views):
  """With the codes and the reconstruction losses of `autoencoder`, see its test."""
  rng = np.random.default_rng(2)
  n, e, d, t = 5, 4, 6, 0.3
  x = rng.normal(size=(n, views, e))
  network = Autoencoder(d, 2)
  shapes = {"kernel": (e, d), "bias": (d,), "pre_bias": (e,)}
  params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
  labels = np.array([0, 1, 0, -1, -1])
  made = recipe(
    network=network,
    objective=objective,
    beta=0.3,
    gamma=0.7,
    temperature=t,
    labelled=labelled,
  )
  batch = {"x": x, "deviation": np.ones(e), "labels": labels}
  silent = np.full(d, 99)
  with jax.enable_x64(True):
    value, used = jax.jit(training.loss, static_argnums=4)(
      params, jax.random.key(0), batch, silent, made
    )
    rows = x.reshape(-1, e)
    scores = network.scores(params, rows)
    parts, f = reconstruction(network, params, rows, scores, silent)
    f = np.array(f)
  parts = {name: float(part) for name, part in parts.items()}

  np.testing.assert_array_equal(used, np.sum(f > 0, axis=0))
  f /= np.maximum(np.linalg.norm(f, axis=1, keepdims=True), 1e-30)
  f = np.repeat(f, 2, axis=0) if views == 1 else f
  contrast = 0.0
  for i in range(2 * n):
    s = {j: f[i] @ f[j] / t for j in range(2 * n) if j != i}
    own = labels[i // 2]
    same = [j for j in s if j == i ^ 1 or (labelled and own == labels[j // 2] != -1)]
    contrast += np.log(sum(np.exp(v) for v in s.values())) / (2 * n)
    contrast -= np.mean([s[j] for j in same]) / (2 * n)
  kept = parts["k"] + parts["4k"] / 8 + 0.3 * parts["auxiliary"]
  expected = {
    "csr": kept + 0.7 * contrast,
    "contrastive": contrast,
    "reconstruction": kept,
  }
  np.testing.assert_allclose(value, expected[objective], rtol=1e-10)


def test_views_lose_columns_and_gain_noise_in_their_measure():
  x = jnp.full((20_000, 2, 3), 2.0)
  deviation = jnp.array([0.0, 1.0, 3.0])
  made = jax.jit(training.views, static_argnums=3)
  drawn = recipe(noise=0.5, dropout=0.25)
  v = np.asarray(made(jax.random.key(0), x, deviation, drawn))
  # A column without deviation is dropped or scaled, and never noisy.
  assert set(np.round(np.unique(v[..., 0]), 4)) == {0, np.float32(2.6667)}
  assert abs(np.mean(v[..., 0] == 0) - 0.25) < 0.01
  np.testing.assert_allclose(v.mean((0, 1)), 2, atol=0.03)
  variance = 4 * 0.25 / 0.75 + (0.5 * np.array([0, 1, 3])) ** 2
  np.testing.assert_allclose(v.var((0, 1)), variance, rtol=0.03)
  assert abs(np.corrcoef(v[:, 0, 1], v[:, 1, 1])[0, 1]) < 0.02


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


@pytest.fixture(scope="module")
def hidden_classes():
  """Four classes in two small columns among eighteen large ones without meaning."""
  rng = np.random.default_rng(3)
  y = rng.integers(0, 4, 1200)
  places = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])[y]

  def drawn():
    signal = places + 0.2 * rng.normal(size=places.shape)
    return np.concatenate([signal, 3 * rng.normal(size=(len(y), 18))], axis=1)

  return drawn(), drawn(), y


@pytest.mark.parametrize("positives", ["labels", "pairs"])
def test_it_learns_what_positives_share(hidden_classes, positives):
  """Neighbours in the codes of rows that training did not see, and in the raw rows."""
  one, other, y = hidden_classes
  learnt = {"labels": {"y": y[:1000]}, "pairs": {"pairs": other[:1000]}}
  settings = {"positives": positives, "epochs": 30, "learning_rate": 0.01}
  encoder = NonNegativeEncoder(
    16, objective="contrastive", random_state=0, **settings
  ).fit(one[:1000], **learnt[positives])
  codes = encoder.transform(one)
  neighbours = KNeighborsClassifier(1)
  accuracy = {
    name: neighbours.fit(rows[:1000], y[:1000]).score(rows[1000:], y[1000:])
    for name, rows in (("raw", one), ("codes", codes))
  }
  assert accuracy["raw"] < 0.6
  assert accuracy["codes"] > 0.95
  assert encoder.loss_curve_[-1] < encoder.loss_curve_[0]


def test_reconstruction_keeps_neighbours():
  """On digits that training did not see, as sparse as without it."""
  x = load_digits().data
  train, queries = x[:500], x[-200:]
  centred = x - train.mean(0)
  search = NearestNeighbors(n_neighbors=10, metric="cosine").fit(centred[:500])
  true = search.kneighbors(centred[-200:], return_distance=False)
  found = {}
  for objective in training.OBJECTIVES:
    settings = {"epochs": 20, "batch_size": 64, "learning_rate": 0.01}
    encoder = NonNegativeEncoder(
      64, n_active=8, objective=objective, random_state=0, **settings
    ).fit(train)
    search = NearestNeighbors(n_neighbors=10, metric="cosine")
    search.fit(encoder.transform(train))
    codes = encoder.transform(queries)
    assert np.sum(codes > 0, axis=1).max() <= 8
    near = search.kneighbors(codes, return_distance=False)
    found[objective] = recall(near, true)
  assert min(found["csr"], found["reconstruction"]) > found["contrastive"] + 0.05, found


def test_a_memory_mapped_file_is_read_in_parts(tmp_path, monkeypatch, x, fitted):
  """The same encoder as of the array, and never as much memory as the file takes."""
  rows = np.random.default_rng(0).normal(size=(8000, 64)).astype(np.float32)
  np.save(tmp_path / "x.npy", rows)
  mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
  monkeypatch.setattr(training, "HELD", 500)
  settings = {"n_active": 2, "batch_size": 100, "epochs": 1, "random_state": 0}
  encoder = NonNegativeEncoder(8, sparse_output=True, **settings)
  codes = encoder.fit(rows).transform(rows)
  encoder.fit(mapped[:200])  # compiles
  tracemalloc.start()
  again = encoder.fit(mapped).transform(mapped)
  peak = tracemalloc.get_traced_memory()[1]
  tracemalloc.stop()
  np.testing.assert_array_equal(again.toarray(), codes.toarray())
  assert peak < rows.nbytes / 2, f"{peak} bytes for a file of {rows.nbytes}"


def test_batches_have_the_rows_asked_for_in_their_order(x):
  other, rows = x[::-1], np.array([[7, 2, 2], [299, 0, 5]])
  scaling = measured([x])
  found = training.Data([x, other], scaling, np.arange(300)).batches(rows, 2)
  expected = np.stack([scaling(x)[rows], scaling(other)[rows]], axis=2)
  np.testing.assert_array_equal(found["x"], expected)
  np.testing.assert_array_equal(found["labels"], rows)


def test_mapped_rows_are_read_without_read_ahead(tmp_path):
  """By the kernel's own flags of the mapping, also behind views."""
  np.save(tmp_path / "x.npy", np.zeros((400, 30)))
  mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
  maps = pathlib.Path("/proc/self/smaps")

  def random():
    of = maps.read_text().partition(f"{tmp_path / 'x.npy'}\n")[2]
    return " rr" in of.partition("VmFlags:")[2].partition("\n")[0]

  with training.random_access([np.asarray(mapped)[1:], np.zeros(3)]):
    assert not maps.exists() or random()
  assert not maps.exists() or not random()


@pytest.mark.parametrize(
  ("rows", "size"), [(10, 10), (1000, 7), (100_000, 256), (9, 2)]
)
def test_an_epoch_is_divided_into_equal_calls(monkeypatch, rows, size):
  """No call of more rows than are held, unless a batch has more; few rows wait."""
  for held in (4, 2**15):
    monkeypatch.setattr(training, "HELD", held)
    calls, steps = training.divided(rows, size)
    assert steps >= 1 and steps * size <= max(held, size)
    assert rows - calls * steps * size < size * (calls + 1)


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


def test_a_file_gives_the_same_codes(tmp_path, x, fitted):
  file = tmp_path / "a b" / "encoder.safetensors"
  fitted.save(file)
  again = NonNegativeEncoder.load(file)
  np.testing.assert_array_equal(again.transform(x), fitted.transform(x))
  np.testing.assert_array_equal(
    again.shorten(4).transform(np.float32(x)),
    fitted.shorten(4).transform(np.float32(x)),
  )
  assert again.get_params() == fitted.get_params()
  with pytest.raises(InputError, match="exists already"):
    fitted.save(file)
  with pytest.raises(ValueError, match="expecting 6 features"):
    again.transform(x[:, :5])


@pytest.mark.parametrize("settings", [{}, {"n_active": 0}, {"normalize": False}])
def test_an_onnx_graph_gives_the_same_codes(tmp_path, x, fitted, settings):
  pytest.importorskip("onnx")
  runtime = pytest.importorskip("onnxruntime")
  made = copy.deepcopy(fitted).set_params(**settings)
  made.to_onnx(tmp_path / "a.onnx")
  rows = np.float32(np.concatenate([x, made.scaling_.mean[None]]))
  rows[-1] -= 1e3 * np.float32(made.scaling_.deviation)  # far out
  session = runtime.InferenceSession(tmp_path / "a.onnx")
  (codes,) = session.run(None, {"embeddings": rows})
  expected = made.transform(rows)
  np.testing.assert_array_equal(codes > 0, expected > 0)
  np.testing.assert_allclose(codes, expected, rtol=1e-5, atol=1e-6)
  with pytest.raises(InputError, match="exists"):
    made.to_onnx(tmp_path / "a.onnx")
  with pytest.raises(InputError, match=r"end in \.onnx"):
    made.to_onnx(tmp_path / "a.pt")


def test_a_missing_onnx_is_named(tmp_path, fitted, monkeypatch):
  monkeypatch.setitem(sys.modules, "onnx", None)
  with pytest.raises(InputError, match="pip install onnx"):
    fitted.to_onnx(tmp_path / "a.onnx")


def test_a_file_keeps_names_free_decoders_and_no_generator(tmp_path, x):
  encoder = NonNegativeEncoder(
    np.int64(4), tied=False, epochs=0, random_state=np.random.RandomState(0)
  ).fit(x)
  # As scikit-learn notes it where X is a table with names.
  encoder.feature_names_in_ = np.array(list("abcdef"), object)
  encoder.save(tmp_path / "e.safetensors")
  again = NonNegativeEncoder.load(tmp_path / "e.safetensors")
  assert again.feature_names_in_.tolist() == list("abcdef")
  with pytest.warns(UserWarning, match="valid feature names"):
    codes = encoder.transform(x), again.transform(x)
  np.testing.assert_array_equal(*codes)
  assert again.random_state is None and not again.tied


def test_other_files_are_refused(tmp_path, fitted):
  load, file = NonNegativeEncoder.load, tmp_path / "x.safetensors"
  with pytest.raises(FileNotFoundError, match="no such file"):
    load(file)
  file.write_bytes(b"no tensors")
  with pytest.raises(InputError, match="not a .safetensors"):
    load(file)
  from ncl_jax import interop

  other = tmp_path / "y.safetensors"
  other.write_bytes(interop.tensors_to_bytes({"a": np.zeros(2, np.float32)}, {}))
  with pytest.raises(InputError, match="not written by"):
    load(other)
  fitted.save(tmp_path / "z.safetensors")
  # A setting of a later version.
  content = (tmp_path / "z.safetensors").read_bytes()
  later = content.replace(b'n_active\\"', b'n_agtive\\"')
  assert later != content
  other.write_bytes(later)
  with pytest.raises(InputError, match="not written by"):
    load(other)
  with pytest.raises(InputError, match="end in .safetensors"):
    fitted.save(tmp_path / "x.npz")


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


def test_searches_find_what_scikit_learn_finds():
  rng = np.random.default_rng(4)
  codes = np.maximum(rng.normal(size=(400, 12)) - 0.8, 0)
  codes = codes[codes.any(1)]
  items, queries = codes[50:], codes[:50]
  search = NearestNeighbors(n_neighbors=5, metric="cosine").fit(items)
  distances, expected = search.kneighbors(queries)
  items, queries = (x / np.linalg.norm(x, axis=1)[:, None] for x in (items, queries))
  index = InvertedIndex(scipy.sparse.csr_matrix(items))
  sparse = index.nearest(scipy.sparse.csr_matrix(queries), 5)
  for found in (nearest(items, queries, 5), sparse, index.nearest(queries, 5)):
    # Equals may come in another order: similarities are what must agree.
    padded = np.concatenate([items, np.zeros((1, 12))])
    s = np.einsum("md,mkd->mk", queries, padded[found])
    np.testing.assert_allclose(s, 1 - distances, atol=1e-12)
  assert recall(expected, expected) == 1
  with pytest.raises(InputError, match="scipy.sparse"):
    InvertedIndex(items)
  with pytest.raises(InputError, match="k = 351"):
    nearest(items[:350], queries, 351)


def test_an_inverted_index_does_not_invent_neighbours():
  items = scipy.sparse.csr_matrix(np.eye(4)[[0, 0, 1]])
  query = scipy.sparse.csr_matrix(np.eye(4)[[0, 3]])
  assert InvertedIndex(items).nearest(query, 3).tolist() == [[0, 1, -1], [-1, -1, -1]]
