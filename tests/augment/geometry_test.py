"""Crops, resizing and flips against recorded numbers, Pillow and plain loops."""

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from ncl_jax.augment import geometry

GOLDEN = golden_numbers.load("augment")
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)


random_boxes = jax.jit(
  geometry.random_boxes, static_argnames=("height", "width", "scale", "ratio")
)
resized_crop = jax.jit(geometry.resized_crop, static_argnames="size")


def image(name):
  return np.float32(GOLDEN[f"image_{name}"])[None] / 255


@pytest.mark.parametrize("box", range(4))
@pytest.mark.parametrize("name", "ab")
def test_crop_equals_torchvision(name, box):
  boxes = GOLDEN[f"{name}_crop_boxes"]
  got = resized_crop(image(name), boxes[[box]], size=32)[0]
  np.testing.assert_allclose(
    got, GOLDEN[f"{name}_crop_{box}_tensor_f32"], rtol=0, atol=2e-6
  )
  levels = np.abs(255 * np.clip(got, 0, 1) - GOLDEN[f"{name}_crop_{box}_pil"])
  assert levels.mean() < 0.4 and levels.max() < 14


@pytest.mark.parametrize("start, length, size", [(2, 5, 8), (3, 17, 7), (0, 20, 1)])
def test_weights_equal_the_definition(x64, start, length, size):
  def cubic(t, a=-0.5):
    t = abs(t)
    if t < 1:
      return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0

  expected = np.zeros((size, 23))
  step = length / size
  for i in range(size):
    for j in range(length):
      centre = (i + 0.5) * step
      expected[i, start + j] = cubic((j + 0.5 - centre) / max(step, 1))
    expected[i] /= expected[i].sum()
  weights = jax.jit(geometry.resize_weights, static_argnums=(2, 3, 4))
  got = weights(np.array([start]), np.array([length]), size, 23, np.dtype("float64"))
  np.testing.assert_allclose(got[0], expected, atol=1e-13)


@pytest.mark.parametrize(
  "size, extent, block", [(24, 40, 8), (64, 20, 32), (30, 31, 10)]
)
def test_bands_are_what_is_not_zero_of_the_weights(x64, size, extent, block):
  length = np.arange(1, extent + 1).repeat(2)
  start = (extent - length) * np.tile([0, 1], extent)  # At one end and at the other.
  dtype = np.dtype("float64")
  whole = jax.jit(geometry.resize_weights, static_argnums=(2, 3, 4))
  expected = whole(start, length, size, extent, dtype)
  bands = jax.jit(geometry.resize_bands, static_argnums=(2, 3, 4, 5))
  first, weights = bands(start, length, size, extent, block, dtype)
  got = np.zeros_like(expected)
  for crop, band in np.ndindex(first.shape):
    rows = slice(band * block, (band + 1) * block)
    place = int(first[crop, band])
    got[crop, rows, place : place + weights.shape[-1]] = weights[crop, band]
  np.testing.assert_allclose(got, expected, rtol=0, atol=1e-15)
  assert weights.shape[-1] < extent or size > extent


@pytest.mark.parametrize("size", [5, 20, 24, 50])
def test_resize_equals_pillow_in_floats(size):
  pixels = np.random.default_rng(0).random((20, 20), np.float32)
  expected = PIL.Image.fromarray(pixels).resize((size, size), PIL.Image.BICUBIC)
  box = jnp.array([[0, 0, 20, 20]])
  got = resized_crop(pixels[None, :, :, None], box, size=size)
  np.testing.assert_allclose(got[0, :, :, 0], np.asarray(expected), atol=1e-5)


def test_whole_box_at_the_same_size_changes_no_bit(x64):
  pixels = np.random.default_rng(0).random((2, 7, 7, 3))
  got = resized_crop(pixels, jnp.array([[0, 0, 7, 7]] * 2), size=7)
  assert got.dtype == np.float64
  np.testing.assert_array_equal(got, pixels)


def test_pixels_outside_the_box_have_no_influence():
  pixels = np.random.default_rng(0).random((1, 12, 12, 1), np.float32)
  box = jnp.array([[2, 3, 6, 5]])
  filled = np.full_like(pixels, 9)
  filled[:, 2:8, 3:8] = pixels[:, 2:8, 3:8]
  np.testing.assert_array_equal(
    resized_crop(pixels, box, size=4), resized_crop(filled, box, size=4)
  )


def test_flip():
  for name in "ab":
    got = geometry.horizontal_flip(image(name))
    np.testing.assert_array_equal(got[0], GOLDEN[f"{name}_hflip_tensor_f32"])
    np.testing.assert_array_equal(geometry.horizontal_flip(got), image(name))


def one_box(u, height, width, scale, ratio):
  """The rule of RandomResizedCrop, read aloud."""
  tries = (len(u) - 2) // 2
  for t in range(tries):
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[t])
    low, high = np.log(ratio[0]), np.log(ratio[1])
    aspect = np.exp(low + (high - low) * u[tries + t])
    w, h = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
    if 0 < w <= width and 0 < h <= height:
      return [int(u[-2] * (height - h + 1)), int(u[-1] * (width - w + 1)), h, w]
  h, w = height, width
  if width / height < ratio[0]:
    h = round(width / ratio[0])
  elif width / height > ratio[1]:
    w = round(height * ratio[1])
  return [(height - h) // 2, (width - w) // 2, h, w]


@pytest.mark.parametrize(
  "height, width, scale, ratio",
  [
    (32, 32, SCALE, RATIO),
    (17, 40, SCALE, RATIO),
    (40, 9, (0.3, 1.0), RATIO),  # The fallbacks: too tall, ...
    (9, 40, (0.9, 1.0), RATIO),  # ... too wide, ...
    (10, 10, (1.0, 1.0), (0.2, 5.0)),  # ... and neither.
  ],
)
def test_boxes_equal_the_rule(height, width, scale, ratio):
  u = np.random.default_rng(0).random((300, geometry.BOX_PARAMETERS), np.float32)
  got = random_boxes(u, height, width, scale=scale, ratio=ratio)
  expected = [one_box(np.float64(row), height, width, scale, ratio) for row in u]
  np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("edge", [0.0, np.nextafter(np.float32(1), np.float32(0))])
def test_boxes_stay_inside_at_the_ends_of_the_draws(edge):
  u = np.full((1, geometry.BOX_PARAMETERS), edge, np.float32)
  for extent in (1, 2, 32, 33, 500):
    top, left, h, w = np.array(
      random_boxes(u, extent, extent, scale=SCALE, ratio=(1.0, 1.0))
    )[0]
    assert top >= 0 and left >= 0 and min(h, w) >= 1
    assert top + h <= extent and left + w <= extent


@pytest.mark.parametrize("name", "ab")
def test_boxes_are_distributed_as_torchvisions(name):
  n = int(GOLDEN["rrc_n"])
  height, width = GOLDEN[f"image_{name}"].shape[:2]
  u = jax.random.uniform(jax.random.key(1), (n, geometry.BOX_PARAMETERS))
  boxes = np.array(random_boxes(u, height, width, scale=SCALE, ratio=RATIO), float)
  top, left, h, w = boxes.T
  area, aspect = h * w / (height * width), w / h
  centre = np.stack([(top + h / 2) / height, (left + w / 2) / width])
  levels = GOLDEN["quantile_levels"]
  error = 4 * np.sqrt(levels * (1 - levels) * 2 / n)
  for what, values in [("area", area), ("aspect", aspect)]:
    golden = GOLDEN[f"{name}_rrc_{what}_quantiles"]
    assert np.all(np.quantile(values, levels - error) <= golden)
    assert np.all(np.quantile(values, levels + error) >= golden)
  standard_error = np.sqrt(2 / n)
  for values, moments in [
    (area, GOLDEN[f"{name}_rrc_area_mean_std"]),
    (np.log(aspect), GOLDEN[f"{name}_rrc_log_aspect_mean_std"]),
  ]:
    tolerance = 4 * moments[1] * standard_error
    assert abs(values.mean() - moments[0]) < tolerance
    assert abs(values.std() - moments[1]) < tolerance
  difference = np.abs(centre.mean(1) - GOLDEN[f"{name}_rrc_center_mean"])
  assert np.all(difference < 4 * centre.std(1) * standard_error)
  share = float(GOLDEN[f"{name}_rrc_full_height_fraction"])
  spread = np.sqrt(share * (1 - share))
  assert abs(np.mean(h == height) - share) < 4 * spread * standard_error
