"""Training an encoder: its loss, what it learns, and how rows are read."""

import pathlib
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors

from ncl_jax.encoder import NonNegativeEncoder, recall, training
from ncl_jax.encoder.autoencoder import Autoencoder, reconstruction
from ncl_jax.encoder.scaling import measured


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
