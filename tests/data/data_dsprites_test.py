"""dSprites drawn by index: areas, centres and turns by the factors; pairs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ncl_jax import augment, data
from ncl_jax.data import dsprites, subset
from ncl_jax.errors import InputError

# Of a shape of scale 1 and radius 1: a square, an ellipse of half the height, and the
# heart's curve, by quadrature.
ANGLE = np.linspace(0, 2 * np.pi, 100_001)


def heart_area():
  """Of (x^2 + y^2 - 1)^3 <= x^2 y^3 by its polar form, r(t) from bisection."""
  low, high = np.full_like(ANGLE, 0.1), np.full_like(ANGLE, 2.0)
  for _ in range(60):
    r = (low + high) / 2
    x, y = r * np.cos(ANGLE), r * np.sin(ANGLE)
    inside = (x**2 + y**2 - 1) ** 3 <= x**2 * y**3
    low, high = np.where(inside, r, low), np.where(inside, high, r)
  return np.trapezoid(low**2 / 2, ANGLE) / dsprites.HEART_UNIT**2


AREAS = np.array([2.0, np.pi / 2, heart_area()])


@pytest.fixture(scope="module")
def drawn():
  """Some images and their factors."""
  index = np.random.default_rng(0).choice(dsprites.COUNT, 3000, replace=False)
  return dsprites.render(index)[..., 0], dsprites.factors_of(index)


def test_images_are_binary_and_whole(drawn):
  images, _ = drawn
  assert images.shape == (3000, 64, 64) and images.dtype == np.uint8
  assert np.unique(images).tolist() == [0, 255]


def test_areas_follow_shape_and_scale(drawn):
  images, factors = drawn
  area = (images > 0).sum((1, 2))
  radius = 16 * np.linspace(0.5, 1, 6)[factors[:, 1]]
  expected = AREAS[factors[:, 0]] * radius**2
  # The pixels of an edge are in or out together, where it is upright.
  assert np.abs(area / expected - 1).max() < 0.12
  for shape in range(3):
    ratio = (area / expected)[factors[:, 0] == shape].mean()
    assert ratio == pytest.approx(1, abs=0.005)


def test_centres_follow_the_position(drawn):
  images, factors = drawn
  on = images > 0
  pixel = np.arange(64)
  x = (on.sum(1) @ pixel) / on.sum((1, 2))
  y = (on.sum(2) @ pixel) / on.sum((1, 2))
  # x to the right and y downwards, from 16 to 47.
  assert np.abs(x - 16 - factors[:, 3]).max() < 0.4
  assert np.abs(y - 16 - factors[:, 4]).max() < 0.4


def test_no_sprite_is_cut_off():
  """At the outermost positions as many pixels as in the middle."""
  corner, middle = (
    np.array([[k, 5, o, p, p] for k in range(3) for o in range(40)]) for p in (0, 16)
  )
  last = corner.copy()
  last[:, 3:] = 31
  areas = [
    (dsprites.render(dsprites.index_of(f)) > 0).sum((1, 2, 3))
    for f in (corner, middle, last)
  ]
  np.testing.assert_array_equal(areas[0], areas[1])
  np.testing.assert_array_equal(areas[2], areas[1])


def test_a_sprite_turns_by_its_orientation():
  """The long axis of the ellipse, from second moments; counter-clockwise."""
  orientations = np.arange(40)
  factors = np.stack(np.broadcast_arrays(1, 5, orientations, 16, 16), axis=1)
  images = dsprites.render(dsprites.index_of(factors))[..., 0] > 0
  for image, orientation in zip(images, orientations, strict=True):
    y, x = np.nonzero(image)
    values, vectors = np.linalg.eigh(np.cov(x, -y))
    axis = vectors[:, values.argmax()]
    angle = 2 * np.pi * orientation / 39
    assert abs(axis @ [np.cos(angle), np.sin(angle)]) > 0.995


def test_the_heart_points_down_and_is_alone_not_symmetric_under_a_half_turn():
  factors = np.array([[k, 5, 0, 16, 16] for k in range(3)])
  images = dsprites.render(dsprites.index_of(factors))[..., 0]
  turned = np.roll(images[:, ::-1, ::-1], (1, 1), (1, 2))
  np.testing.assert_array_equal(turned[:2], images[:2])
  assert (turned[2] != images[2]).sum() > 50
  rows = np.flatnonzero((images[2] > 0).any(1))
  assert (images[2][rows[-1]] > 0).sum() < (images[2][rows[2]] > 0).sum()


def test_the_index_is_the_public_one():
  assert dsprites.SIZES == (3, 6, 40, 32, 32)
  assert dsprites.COUNT == 737_280
  index = np.random.default_rng(1).integers(dsprites.COUNT, size=100)
  bases = np.array([245_760, 40_960, 1024, 32, 1])  # of the published file
  np.testing.assert_array_equal(dsprites.factors_of(index) @ bases, index)
  np.testing.assert_array_equal(dsprites.index_of(dsprites.factors_of(index)), index)


def test_an_index_has_always_the_same_image(drawn):
  images, factors = drawn
  index = dsprites.index_of(factors)
  np.testing.assert_array_equal(dsprites.render(index[::-1])[::-1, ..., 0], images)
  before = dsprites.render(index[:1])
  before[:] = 7  # a copy: what is drawn later does not change
  np.testing.assert_array_equal(dsprites.render(index[:1])[0, ..., 0], images[0])


def test_every_combination_has_its_image():
  """All sprites differ, but for what symmetry and the two ends of the circle make."""
  factors = np.array([[2, s, o, 16, 16] for s in range(6) for o in range(39)])
  images = dsprites.render(dsprites.index_of(factors)).reshape(len(factors), -1)
  assert len(np.unique(images, axis=0)) == len(factors)


def test_the_source():
  source = data.load("dsprites", image_size=16)
  assert source.image_shape == (16, 16, 1)
  assert source.num_examples("train") + source.num_examples("test") == dsprites.COUNT
  assert source.num_classes == 3
  for split in source.splits.values():
    assert list(split.levels) == list(dsprites.FACTORS)
    # On demand: nothing of the size of the set is held.
    assert not isinstance(split.images, np.ndarray)
    rows = np.array([5, 17])
    factors = np.stack([v[rows] for v in split.levels.values()], axis=1)
    full = dsprites.render(dsprites.index_of(factors))
    assert split.images[rows].shape == (2, 16, 16, 1)
    ratio = split.images[rows].mean() / full.mean()
    assert ratio == pytest.approx(1, abs=0.1)
  both = [s.images.index for s in source.splits.values()]
  assert len(np.intersect1d(*both)) == 0


def factors_in(image):
  """x and y of the centre, and the area."""
  y, x = np.nonzero(image[..., 0])
  return np.array([x.mean(), y.mean(), len(x)])


def test_pairs_differ_in_the_chosen_factors_alone():
  source = dsprites.load(pair_factors=("x", "orientation"))
  part = subset(source, train=500)
  batches = part.train_batches(3, 0, 64, pairs=True)
  first, second = next(batches), next(batches)
  assert first["image"].shape == (64, 2, 64, 64, 1)
  seen = np.array([[factors_in(i) for i in pair] for pair in first["image"]])
  assert np.abs(seen[:, 0, 1] - seen[:, 1, 1]).max() < 0.8  # y stays
  assert np.abs(seen[:, 0, 2] / seen[:, 1, 2] - 1).max() < 0.16  # and the area
  assert np.abs(seen[:, 0, 0] - seen[:, 1, 0]).mean() > 5  # x does not
  batches.close()
  # From any step on, and in any number of processes, the same.
  later = part.train_batches(3, 1, 64, pairs=True)
  np.testing.assert_array_equal(next(later)["image"], second["image"])
  later.close()
  half = part.train_batches(3, 0, 64, np.arange(32, 64), pairs=True)
  np.testing.assert_array_equal(next(half)["image"], first["image"][32:])
  half.close()
  single = part.train_batches(3, 0, 64)
  np.testing.assert_array_equal(next(single)["image"], first["image"][:, 0])
  single.close()


def test_views_of_pairs_are_those_of_each_image():
  config = augment.AugmentConfig(size=8, mean=(0.5,), std=(0.25,), blur=0)
  rng = np.random.default_rng(0)
  images = jnp.asarray(rng.integers(0, 256, (3, 2, 8, 8, 1)), jnp.uint8)
  u = augment.view_parameters(jax.random.key(0), 3)
  make = jax.jit(augment.make_views, static_argnums=2)
  views = make(u, images, config)
  for v in range(2):
    expected = make(u, images[:, v], config)[:, v]
    np.testing.assert_allclose(views[:, v], expected, atol=1e-5)


@pytest.mark.parametrize(
  ("call", "says"),
  [
    (lambda: dsprites.render(np.array([737_280])), "allowed are 0 to 737279"),
    (lambda: dsprites.render(np.array([-1])), "allowed are 0 to 737279"),
    (lambda: dsprites.load(pair_factors=("colour",)), "pair_factors = 'colour'"),
    (lambda: data.load("digits", pair_factors=("x",)), "only dsprites has"),
  ],
)
def test_refuses(call, says):
  with pytest.raises(InputError, match=says):
    call()


@pytest.fixture
def public(tmp_path):
  """A file as the public one, of its first images, and those."""
  count = 9000
  images = np.random.default_rng(1).integers(0, 2, (count, 64, 64), np.uint8)
  arrays = {
    "imgs": images,
    "latents_classes": np.pad(dsprites.factors_of(np.arange(count)), ((0, 0), (1, 0))),
  }
  np.savez(tmp_path / "public.npz", **arrays)
  return tmp_path / "public.npz", arrays


def test_the_pictures_of_the_public_file(public):
  path, arrays = public
  bits = dsprites.read_bits(path, 9000)
  assert bits.nbytes == arrays["imgs"].nbytes / 8
  index = np.array([8999, 0, 8192, 8191])
  found = dsprites.Drawn(index, bits=bits)[np.array([3, 0, 1])]
  expected = 255 * arrays["imgs"][[8191, 8999, 0], ..., None]
  np.testing.assert_array_equal(found, expected)
  assert dsprites.Drawn(index, 16, bits)[np.array([1])].shape == (1, 16, 16, 1)


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda a: a.pop("imgs"), "no item named 'imgs.npy'"),
    (lambda a: a.update(imgs=a["imgs"][:5]), r"\(5, 64, 64\).*\(9000, 64, 64\)"),
    (lambda a: a.update(latents_classes=a["latents_classes"][::-1]), "order"),
  ],
)
def test_another_file_is_refused(public, change, message):
  path, arrays = public
  change(arrays)
  np.savez(path, **arrays)
  with pytest.raises(InputError, match=message):
    dsprites.read_bits(path, 9000)


def test_what_is_no_archive_is_refused(tmp_path):
  file = tmp_path / "x.npz"
  for text in ("", "PK no archive"):
    file.write_text(text)
    with pytest.raises(InputError, match=r"x\.npz is not dSprites"):
      data.load(f"dsprites:{file}")
  with pytest.raises(InputError, match="absent"):
    data.load(f"dsprites:{tmp_path / 'absent.npz'}")
