"""The blur against recorded numbers, Pillow and box filters written as loops."""

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageFilter
import pytest

from ncl_jax import augment

gaussian_blur = jax.jit(augment.gaussian_blur, static_argnames="largest")
GOLDEN = golden_numbers.load("augment")


def box_half_width(radius):
  s = radius**2 / 3
  whole = int((np.sqrt(12 * s + 1) - 1) / 2)
  part = (2 * whole + 1) * (whole * (whole + 1) - 3 * s) / (6 * (s - (whole + 1) ** 2))
  return whole, part


def box_pass(line, radius):
  whole, part = box_half_width(radius)
  result = np.zeros_like(line)
  last = len(line) - 1
  for i in range(len(line)):
    for d in range(-whole - 1, whole + 2):
      weight = part if abs(d) > whole else 1
      result[i] += weight * line[min(max(i + d, 0), last)]
  return result / (2 * (whole + part) + 1)


def three_passes(line, radius):
  return box_pass(box_pass(box_pass(line, radius), radius), radius)


@pytest.mark.parametrize("largest", [5.0, 9.0])
def test_blur_equals_three_box_filters_along_each_axis(x64, largest):
  # Lines shorter and longer than the boxes: what lies beyond a border counts.
  radii = np.array([0.1, 0.7, 1.0, 2.0, 5.0])
  images = np.random.default_rng(0).random((5, 9, 4, 1))
  got = gaussian_blur(images, jnp.array(radii), largest=largest)
  for image, blurred, radius in zip(images, got, radii, strict=True):
    expected = np.apply_along_axis(three_passes, 0, image, radius)
    expected = np.apply_along_axis(three_passes, 1, expected, radius)
    np.testing.assert_allclose(blurred, expected, atol=1e-12)


def test_an_impulse_spreads_with_variance_radius_squared(x64):
  radii = np.array([0.3, 1.0, 2.5])
  images = np.zeros((3, 41, 41, 1))
  images[:, 20, 20] = 1
  offset = np.arange(41) - 20
  for axis in (1, 2):
    rows = gaussian_blur(images, jnp.array(radii), largest=2.5).sum((axis, 3))
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-12)
    np.testing.assert_allclose(rows @ offset, 0, atol=1e-12)
    np.testing.assert_allclose(rows @ offset**2, radii**2, rtol=1e-12)


def test_a_radius_above_the_largest_counts_as_the_largest():
  images = np.random.default_rng(0).random((2, 8, 8, 1), np.float32).repeat(2, axis=0)
  got = gaussian_blur(images, jnp.array([3.0, 2.0, 2.0, 9.0]), largest=2.0)
  np.testing.assert_array_equal(got[::2], got[1::2])


@pytest.mark.parametrize("radius", GOLDEN["blur_radii"].tolist())
@pytest.mark.parametrize("name", "ab")
def test_blur_equals_the_released_one(name, radius):
  pixels = np.float32(GOLDEN[f"image_{name}"])[None] / 255
  got = gaussian_blur(pixels, jnp.array([radius]), largest=2.0)[0]
  golden = GOLDEN[f"{name}_blur_{radius:g}_pil".replace(".", "p")]
  assert np.abs(255 * got - golden).max() < 3


@pytest.mark.parametrize("radius", [0.1, 0.25, 1.4])
def test_blur_equals_pillow(radius):
  pixels = np.random.default_rng(0).integers(0, 256, (24, 24), np.uint8)
  blurred = PIL.Image.fromarray(pixels).filter(PIL.ImageFilter.GaussianBlur(radius))
  pixels_255 = np.float32(pixels)[None, :, :, None]
  got = gaussian_blur(pixels_255 / 255, jnp.array([radius]), largest=2.0)
  assert np.abs(255 * got[0, :, :, 0] - np.asarray(blurred)).max() < 3


def test_radius_zero_changes_no_bit_and_each_image_has_its_radius():
  pixels = np.random.default_rng(0).random((3, 8, 8, 3), np.float32)
  got = gaussian_blur(pixels, jnp.array([0.0, 1.0, 2.0]), largest=2.0)
  np.testing.assert_array_equal(got[0], pixels[0])
  spread = np.std(got, axis=(1, 2, 3))
  assert spread[1] < 0.6 * spread[0] and spread[2] < 0.6 * spread[1]
  assert got.min() >= 0 and got.max() <= 1
