"""NonNegativeEncoder.partial_fit: chunks, what it continues, what it refuses."""

import copy

import numpy as np
import pytest
import safetensors.numpy

from ncl_jax.encoder import NonNegativeEncoder
from ncl_jax.errors import InputError

B = 16
SETTINGS = {"n_active": 3, "batch_size": B, "random_state": 0}


@pytest.fixture(scope="module")
def x():
  """[64, 6], of which column 2 is constant."""
  x = np.random.default_rng(0).normal(size=(4 * B, 6)) @ np.diag([3, 2, 0, 1, 1, 1])
  return x + 5


@pytest.fixture(scope="module")
def chunks(x):
  """After the first half, and after both."""
  half = NonNegativeEncoder(12, **SETTINGS).partial_fit(x[: 2 * B])
  return half, copy.deepcopy(half).partial_fit(x[2 * B :])


def assert_same(one, other, x):
  assert one.params_.keys() == other.params_.keys()
  for name, tensor in one.params_.items():
    np.testing.assert_array_equal(tensor, other.params_[name])
  np.testing.assert_array_equal(one.transform(x), other.transform(x))


@pytest.mark.parametrize(
  "settings",
  [
    {},
    {"noise": 0.1, "dropout": 0.2},
    {"tied": False, "weight_decay": 0.1, "objective": "reconstruction"},
    {"positives": "labels", "objective": "contrastive"},
    {"positives": "pairs"},
  ],
)
def test_chunks_of_full_batches_are_one_chunk(x, settings):
  """Bit for bit, once the first batch has fixed the scaling of both."""
  rng = np.random.default_rng(1)
  y = np.arange(len(x)) % 3
  partners = x + rng.normal(size=x.shape)

  def trained(*ends):
    made = NonNegativeEncoder(12, **SETTINGS | settings)
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
      rows = slice(start, end)
      pairs = partners[rows] if settings.get("positives") == "pairs" else None
      made.partial_fit(x[rows], y[rows], pairs=pairs)
    return made

  whole = trained(B, 4 * B)
  assert_same(trained(B, 2 * B, 3 * B, 4 * B), whole, x)
  assert not np.array_equal(trained(B, 3 * B).transform(x), whole.transform(x))


def test_the_same_rows_again_in_one_call(x):
  """Two halves and the whole, where the first half has the scaling of the whole."""
  both = np.concatenate([x, x])
  one = NonNegativeEncoder(12, **SETTINGS).partial_fit(both)
  two = NonNegativeEncoder(12, **SETTINGS).partial_fit(x).partial_fit(x)
  np.testing.assert_allclose(one.scaling_.scale, two.scaling_.scale, rtol=1e-12)
  for name, tensor in two.params_.items():
    np.testing.assert_allclose(one.params_[name], tensor, atol=1e-5)


def test_a_call_leaves_earlier_copies_alone_and_appends_its_loss(x, chunks):
  half, both = chunks
  again = NonNegativeEncoder(12, **SETTINGS).partial_fit(x[: 2 * B])
  assert_same(again, half, x)
  assert half.loss_curve_.shape == (1,) and both.loss_curve_.shape == (2,)
  assert both.loss_curve_[0] == half.loss_curve_[0]
  assert (half._progress["done"], both._progress["done"]) == (2, 4)


def test_it_continues_from_fit_at_a_constant_rate(x):
  """The first step of Adam changes a parameter by the rate, whatever its gradient."""
  made = NonNegativeEncoder(12, epochs=0, learning_rate=0.01, **SETTINGS).fit(x)
  before = {name: tensor.copy() for name, tensor in made.params_.items()}
  scaling = made.scaling_
  made.partial_fit(x[:B])
  step = np.abs(made.params_["kernel"] - before["kernel"])
  moved = step[step > 0]
  assert moved.size > 12 * 3
  np.testing.assert_allclose(moved, 0.01, rtol=0.01)
  assert made.scaling_ is scaling
  for _ in range(2):  # the gradients of the same rows change little
    made.partial_fit(x[:B])
  step = np.abs(made.params_["kernel"] - before["kernel"])
  assert step.max() == pytest.approx(0.03, rel=0.1)


def test_fit_starts_again(x, chunks):
  half, _ = chunks
  assert_same(copy.deepcopy(half).fit(x), NonNegativeEncoder(12, **SETTINGS).fit(x), x)


def test_it_learns(x):
  made = NonNegativeEncoder(12, **SETTINGS)
  for _ in range(30):
    made.partial_fit(x)
  assert made.explained_variance_ > 0.8
  assert made.loss_curve_[-1] < made.loss_curve_[0]
  codes = made.set_params(normalize=False).transform(x)
  back = made.inverse_transform(codes)
  explained = 1 - np.sum((back - x) ** 2) / np.sum((x - x.mean(0)) ** 2)
  assert made.explained_variance_ == pytest.approx(explained, abs=1e-5)
  most = np.argsort(-made.expected_activation_, kind="stable")[:5]
  short = made.shorten(5).set_params(n_active=0)
  np.testing.assert_allclose(
    short.transform(x), made.set_params(n_active=0).transform(x)[:, most], atol=1e-6
  )
  short.partial_fit(x)  # with a new optimizer
  assert short.transform(x).shape == (len(x), 5)


@pytest.mark.parametrize("rows", [2, B + 1, B + 3, 2 * B + 1])
def test_rows_that_fill_no_batch_are_trained_on(x, rows):
  made = NonNegativeEncoder(12, **SETTINGS).partial_fit(x[:rows])
  # A row that is left alone joins the batch before.
  assert made._progress["done"] == max(1, -(-(rows - 1) // B))


def test_what_does_not_continue_is_refused(x, chunks):
  half, _ = chunks
  codes = half.transform(x)
  for rows, settings, message in (
    (x[:, :5], {}, "5 features, but NonNegativeEncoder is expecting 6"),
    (x[:1], {}, r"1 sample\(s\)"),
    (np.where(x == x[3, 3], np.nan, x), {}, "NaN"),
    (x, {"n_components": 8}, "n_components = 8 and tied = True, but .* 12 and True"),
    (x, {"tied": False}, "tied = False"),
    (x, {"batch_size": 1}, "batch_size = 1"),
  ):
    made = copy.deepcopy(half).set_params(**settings)
    with pytest.raises(ValueError, match=message):
      made.partial_fit(rows)
    np.testing.assert_array_equal(made.transform(x), codes)
  with pytest.raises(InputError, match="constant"):
    NonNegativeEncoder(12).partial_fit(np.ones((4, 2)))
  far = copy.deepcopy(half)
  with pytest.raises(FloatingPointError, match="step 3: the loss"):
    far.partial_fit(x * 1e30)
  np.testing.assert_array_equal(far.transform(x), codes)
  # One step at this rate leaves finite weights whose codes are not.
  far.set_params(learning_rate=1e30, batch_size=len(x))
  with pytest.raises(InputError, match="codes hold NaN"):
    far.partial_fit(x)
  np.testing.assert_array_equal(far.transform(x), codes)
  assert far._progress["done"] == half._progress["done"]


def test_nothing_stays_of_another_objective(x):
  """The contrastive objective has no decoder, so no variance that it explains."""
  made = NonNegativeEncoder(12, epochs=1, **SETTINGS).fit(x)
  assert hasattr(made, "explained_variance_")
  for method in ("fit", "partial_fit"):
    other = copy.deepcopy(made).set_params(objective="contrastive")
    assert not hasattr(getattr(other, method)(x), "explained_variance_")


@pytest.mark.parametrize("settings", [{}, {"tied": False, "noise": 0.1}])
def test_a_saved_encoder_continues_exactly(tmp_path, x, settings):
  """Also without a seed in the settings: the file has the one that was drawn."""
  made = NonNegativeEncoder(12, **SETTINGS | {"random_state": None} | settings)
  made.partial_fit(x[: 2 * B]).save(tmp_path / "half.safetensors")
  again = NonNegativeEncoder.load(tmp_path / "half.safetensors")
  np.testing.assert_array_equal(again.transform(x), made.transform(x))
  for encoder in (made, again):
    encoder.partial_fit(x[2 * B :])
  assert_same(again, made, x)
  np.testing.assert_array_equal(again.loss_curve_, made.loss_curve_)
  assert again._progress.keys() == made._progress.keys()
  for name, tensor in made._progress.items():
    np.testing.assert_array_equal(again._progress[name], tensor, strict=True)


def test_only_partial_fit_adds_the_optimizer_to_a_file(tmp_path, x):
  made = NonNegativeEncoder(12, epochs=1, **SETTINGS).fit(x)
  made.save(tmp_path / "fit.safetensors")
  made.partial_fit(x).save(tmp_path / "more.safetensors")
  fit, more = (
    safetensors.numpy.load_file(tmp_path / f"{name}.safetensors")
    for name in ("fit", "more")
  )
  assert not [name for name in fit if name.startswith("progress")]
  moments = sum(x.size for name, x in more.items() if "moments" in name)
  weights = sum(x.size for name, x in more.items() if "network" in name)
  assert moments == 2 * weights + 1  # two of each, and Adam's count
