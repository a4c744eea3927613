"""The blur against recorded numbers, Pillow and box filters written as loops."""

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageFilter
import pytest

from ncl_jax import augment
from ncl_jax.augment import blur

blur_matrix = jax.jit(blur.blur_matrix, static_argnames="size")
gaussian_blur = jax.jit(augment.gaussian_blur)
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


@pytest.mark.parametrize("radius", [0.1, 0.7, 1.0, 2.0, 5.0])
def test_matrix_equals_three_box_filters(x64, radius):
  line = np.random.default_rng(0).random(9)
  expected = box_pass(box_pass(box_pass(line, radius), radius), radius)
  got = blur_matrix(jnp.array([radius]), size=9)[0] @ line
  np.testing.assert_allclose(got, expected, atol=1e-12)


@pytest.mark.parametrize("radius", [0.3, 1.0, 2.5])
def test_an_impulse_spreads_with_variance_radius_squared(x64, radius):
  row = blur_matrix(jnp.array([radius]), size=41)[0, 20]
  offset = np.arange(41) - 20
  np.testing.assert_allclose([row.sum(), row @ offset], [1, 0], atol=1e-12)
  np.testing.assert_allclose(row @ offset**2, radius**2, rtol=1e-12)


@pytest.mark.parametrize("radius", GOLDEN["blur_radii"].tolist())
@pytest.mark.parametrize("name", "ab")
def test_blur_equals_the_released_one(name, radius):
  pixels = np.float32(GOLDEN[f"image_{name}"])[None] / 255
  got = gaussian_blur(pixels, jnp.array([radius]))[0]
  golden = GOLDEN[f"{name}_blur_{radius:g}_pil".replace(".", "p")]
  assert np.abs(255 * got - golden).max() < 3


@pytest.mark.parametrize("radius", [0.1, 0.25, 1.4])
def test_blur_equals_pillow(radius):
  pixels = np.random.default_rng(0).integers(0, 256, (24, 24), np.uint8)
  blurred = PIL.Image.fromarray(pixels).filter(PIL.ImageFilter.GaussianBlur(radius))
  got = gaussian_blur(np.float32(pixels)[None, :, :, None] / 255, jnp.array([radius]))
  assert np.abs(255 * got[0, :, :, 0] - np.asarray(blurred)).max() < 3


def test_radius_zero_changes_no_bit_and_each_image_has_its_radius():
  pixels = np.random.default_rng(0).random((3, 8, 8, 3), np.float32)
  got = gaussian_blur(pixels, jnp.array([0.0, 1.0, 2.0]))
  np.testing.assert_array_equal(got[0], pixels[0])
  spread = np.std(got, axis=(1, 2, 3))
  assert spread[1] < 0.6 * spread[0] and spread[2] < 0.6 * spread[1]
  assert got.min() >= 0 and got.max() <= 1
