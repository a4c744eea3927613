"""One rule for labels: any integers, wherever a public function takes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax import checks, losses, metrics
from ncl_jax.encoder import NonNegativeEncoder
from ncl_jax.errors import InputError

N, D, K = 12, 4, 3
WIDTHS = [np.dtype(f"{u}int{bits}") for u in ("", "u") for bits in (8, 16, 32, 64)]
WIDTHS.append(np.dtype(bool))


def draw():
  rng = np.random.default_rng(0)
  a, b = rng.normal(size=(2, N, D)).astype(np.float32)
  return a, b, rng.permutation(N) % K


def pair(a, b):
  return jnp.stack([jnp.asarray(a), jnp.asarray(b)], 1)


# Functions of (a, b, labels), and whether classes are numbered (or only told apart).
NUMBERED = {
  "cross_entropy": lambda a, b, y: losses.cross_entropy(a, b[:K], y),
  "class_consistency": lambda a, b, y: metrics.class_consistency(a, y, K)[0],
  "label_entropy": lambda a, b, y: metrics.label_entropy(a, y, K),
  "purity": lambda a, b, y: metrics.purity(a, y, K, 0.5),
  "knn_scores": lambda a, b, y: metrics.knn_scores(b, y, a, K, k=3),
  "knn_predict": lambda a, b, y: metrics.knn_predict(b, y, a, K, k=3),
  "knn_predict_grid": lambda a, b, y: metrics.knn_predict_grid(b, y, a, K, [3], [0.1]),
}
TOLD_APART = {
  "sup_con": lambda a, b, y: losses.sup_con(pair(a, b), y, temperature=0.5),
  "supervised_nt_xent": lambda a, b, y: losses.supervised_nt_xent(
    pair(a, b), y, temperature=0.5
  ),
  "retrieval": lambda a, b, y: jnp.stack(metrics.retrieval(a, y, k=3)),
  "retrieval, gallery": lambda a, b, y: jnp.stack(
    metrics.retrieval(a, y, 3, b, y[::-1])
  ),
}
ON_THE_HOST = {
  "pair_recall": lambda a, b, y: metrics.pair_recall(a, b, y, [1])[1],
  "zero_shot": lambda a, b, y: metrics.zero_shot(a, b[:K], y),
  "mutual_information": lambda a, b, y: metrics.factors.mutual_information(
    a, [[label] for label in y]
  ),
}
EVERY = NUMBERED | TOLD_APART | ON_THE_HOST


@pytest.mark.parametrize("name", EVERY)
def test_the_width_of_labels_changes_nothing(name):
  a, b, y = draw()
  for dtype in WIDTHS:
    two = y % 2 if dtype.kind == "b" else y
    expected = EVERY[name](a, b, two.astype(np.int32))
    seen = EVERY[name](a, b, two.astype(dtype))
    np.testing.assert_array_equal(seen, expected, err_msg=str(dtype))
  expected = EVERY[name](a, b, y)
  np.testing.assert_array_equal(EVERY[name](a, b, list(map(int, y))), expected)
  if name not in ON_THE_HOST:
    labels = [y.astype(dtype) for dtype in (np.int8, np.uint8, np.uint32)]
    for seen, given in zip(traced(name, a, b, labels), labels, strict=True):
      np.testing.assert_allclose(seen, expected, rtol=1e-5, err_msg=str(given.dtype))


def traced(name, a, b, labels):
  """A function's values for each of several labels, of one program."""
  return jax.jit(lambda a, b, *each: [EVERY[name](a, b, y) for y in each])(
    a, b, *labels
  )


@pytest.mark.parametrize(
  "name", TOLD_APART | {"pair_recall": 0, "mutual_information": 0}
)
@pytest.mark.parametrize("ids", [[1, 2**32 + 1, 2**33 + 1], [2**31, 0, 2**63 - 1]])
def test_ids_beyond_int32_stay_apart(name, ids):
  a, b, y = draw()
  expected = EVERY[name](a, b, y)
  for dtype in (np.int64, np.uint64) if name in ON_THE_HOST else (np.uint64, object):
    seen = EVERY[name](a, b, np.array(ids, dtype)[y])
    np.testing.assert_allclose(seen, expected, rtol=1e-6)


@pytest.mark.parametrize("name", TOLD_APART)
def test_traced_ids_beyond_int32_stay_apart(name, x64):
  a, b, y = draw()
  ids = []
  for dtype in (np.uint32, np.uint64, np.int64):
    high = np.iinfo(dtype).max
    ids.append(np.array([high, high - 2**31, 7], dtype)[y])
  expected = EVERY[name](a, b, y)
  for seen, given in zip(traced(name, a, b, ids), ids, strict=True):
    np.testing.assert_allclose(seen, expected, rtol=1e-5, err_msg=str(given.dtype))


@pytest.mark.parametrize("dtype", [np.int8, np.int16])
def test_many_unlabelled_examples_are_each_alone(dtype, x64):
  # More of them than int8 has negative numbers.
  z = np.random.default_rng(0).normal(size=(300, 2, 8))
  seen = losses.sup_con(z, np.full(300, -1, dtype), temperature=0.5)
  np.testing.assert_allclose(seen, losses.nt_xent(z, temperature=0.5), rtol=1e-12)


def test_equal_ids_of_queries_and_gallery_are_found(x64):
  # Each set renumbered by itself would give other numbers to the same id.
  f = np.eye(4)
  ids = np.array([2**40, 2**41, 2**42, -1])
  precision, _ = metrics.retrieval(f, ids, 1, f[1:], ids[1:])
  np.testing.assert_array_equal(precision, [0, 1, 1, np.nan])
  jitted = jax.jit(lambda y, z: metrics.retrieval(f, y, 1, f[1:], z)[0])
  np.testing.assert_array_equal(jitted(ids, ids[1:]), [0, 1, 1, np.nan])
  one = jax.jit(lambda y: metrics.retrieval(f, y, 1, f[1:], ids[1:])[0])
  np.testing.assert_array_equal(one(ids), [0, 1, 1, np.nan])


def test_a_traced_class_out_of_range_does_not_wrap_into_it(x64):
  f, w = np.ones((2, 2)), np.eye(2)
  compute = jax.jit(lambda y: losses.cross_entropy(f, w, y))
  for wrong in (np.array([2**32, 0]), np.array([2**32 + 1, 0], np.uint64)):
    seen = compute(wrong)
    assert np.isnan(seen[0]) and np.isfinite(seen[1])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(
  "wrong",
  [
    pytest.param(lambda y: y.astype(float), id="float"),
    pytest.param(lambda y: np.array(["a", "b", "c"])[y], id="text"),
    pytest.param(lambda y: np.where(y == 0, None, y), id="None among them"),
    pytest.param(lambda y: y - 2, id="below -1"),
    pytest.param(lambda y: y[:-1], id="too few"),
    pytest.param(lambda y: [[1], [1, 2]], id="ragged"),
  ],
)
def test_refuses_by_name(name, wrong):
  a, b, y = draw()
  with pytest.raises(InputError, match=r"labels|groups|factors"):
    EVERY[name](a, b, wrong(y))


@pytest.mark.parametrize("name", NUMBERED | {"zero_shot": 0})
def test_refuses_a_class_beyond_the_last(name):
  a, b, y = draw()
  for wrong in (y + 1, np.where(y == 0, 2**32, y)):
    with pytest.raises(InputError, match=r"labels run from \d to \d+: .* 0\.\.2"):
      EVERY[name](a, b, wrong)


def test_labels_stay_where_they_lie():
  mesh = jax.make_mesh((8,), ("data",), (jax.sharding.AxisType.Auto,))
  split = jax.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  given = jax.device_put(np.arange(16, dtype=np.uint8), split)
  assert checks.labels("labels", given, 16, 16).sharding == split
  assert checks.identities(("labels", given, 16))[0].sharding == split


@pytest.mark.parametrize("dtype", [*WIDTHS, np.dtype(object)])
def test_the_encoder_takes_any_labels(dtype):
  x = np.random.default_rng(0).normal(size=(12, 4))
  y = np.arange(12) % 2

  def codes(y):
    encoder = NonNegativeEncoder(4, positives="labels", epochs=1, random_state=0)
    return encoder.fit(x, y).transform(x)

  np.testing.assert_array_equal(codes(y.astype(dtype)), codes(y))
