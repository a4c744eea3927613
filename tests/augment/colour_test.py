"""Colour operations against recorded numbers, Pillow, colorsys and each other."""

import colorsys

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from ncl_jax import augment

GOLDEN = golden_numbers.load("augment")
OPERATIONS = {
  "brightness": jax.jit(augment.brightness),
  "contrast": jax.jit(augment.contrast),
  "saturation": jax.jit(augment.saturation),
  "hue": jax.jit(augment.hue),
}


def image(name):
  return np.float32(GOLDEN[f"image_{name}"])[None] / 255


def random_images(n, size, channels, dtype=np.float32):
  return np.random.default_rng(0).random((n, size, size, channels), dtype)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("which", "ab")
def test_operation_equals_torchvision(name, which):
  factors = GOLDEN[f"{name}_factors"]
  images = image(which).repeat(len(factors), axis=0)
  got = OPERATIONS[name](images, jnp.array(factors, "float32"))
  tensor, pil = (
    np.stack(
      [
        GOLDEN[f"{which}_{name}_{factor:g}_{kind}".replace(".", "p").replace("-", "m")]
        for factor in factors
      ]
    )
    for kind in ("tensor_f32", "pil")
  )
  atol = 5e-6 if name == "hue" else 2e-6
  np.testing.assert_allclose(got, tensor, rtol=0, atol=atol)
  levels = np.abs(255 * got - pil)
  if name == "hue":
    assert levels.mean() < 0.8 and levels.max() < 13
  else:
    assert levels.max() < 1.5


@pytest.mark.parametrize("which", "ab")
def test_grayscale_equals_torchvision_and_pillow(which):
  got = augment.grayscale(image(which))[0]
  np.testing.assert_allclose(
    got, GOLDEN[f"{which}_grayscale_tensor_f32"], rtol=0, atol=2e-6
  )
  levels = np.asarray(PIL.Image.fromarray(GOLDEN[f"image_{which}"]).convert("L"))
  assert np.abs(255 * got - levels[:, :, None]).max() < 1.5
  assert np.abs(255 * got - GOLDEN[f"{which}_grayscale_pil"]).max() < 1.5


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_normalize_equals_torchvision(data):
  mean, std = (
    tuple(GOLDEN[f"norm_{data}_{what}"].tolist()) for what in ("mean", "std")
  )
  got = augment.normalize(image("a"), mean, std)[0]
  np.testing.assert_allclose(got, GOLDEN[f"a_normalize_{data}"], rtol=0, atol=2e-6)


@pytest.mark.parametrize("shift", [-0.5, -0.13, 0.0, 1 / 3, 0.9])
def test_hue_equals_colorsys(x64, shift):
  pixels = random_images(1, 6, 3, np.float64)
  pixels[0, 0] = [[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]]
  got = OPERATIONS["hue"](pixels, jnp.array([shift]))
  assert got.dtype == np.float64
  for before, after in zip(pixels.reshape(-1, 3), got.reshape(-1, 3), strict=True):
    h, s, v = colorsys.rgb_to_hsv(*before)
    np.testing.assert_allclose(
      after, colorsys.hsv_to_rgb((h + shift) % 1, s, v), atol=1e-12
    )


def test_solarize_equals_pillow():
  levels = np.arange(256, dtype=np.uint8).reshape(16, 16)
  expected = np.asarray(PIL.ImageOps.solarize(PIL.Image.fromarray(levels)))
  got = augment.solarize(np.float32(levels)[None, :, :, None] / 255)
  np.testing.assert_array_equal(np.rint(255 * got[0, :, :, 0]), expected)


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_factor_one_changes_no_bit(name):
  pixels = random_images(2, 5, 3)
  np.testing.assert_array_equal(OPERATIONS[name](pixels, jnp.ones(2)), pixels)


@pytest.mark.parametrize("name", OPERATIONS)
def test_result_stays_in_range_and_each_image_has_its_factor(name):
  pixels = random_images(1, 5, 3).repeat(3, axis=0)
  got = OPERATIONS[name](pixels, jnp.array([0.0, 0.3, 9.2]))
  assert got.min() >= 0 and got.max() <= 1
  turned = OPERATIONS[name](pixels, jnp.array([9.2, 0.0, 0.3]))
  np.testing.assert_array_equal(got, turned[jnp.array([1, 2, 0])])
  assert np.abs(got[0] - got[1]).max() > 0.1 and np.abs(got[1] - got[2]).max() > 0.1


@pytest.mark.parametrize("value", [0.0, 0.7, 1.0])
def test_contrast_of_a_flat_image_changes_nothing(value):
  pixels = np.full((1, 7, 5, 1), value, np.float32)
  got = OPERATIONS["contrast"](pixels, jnp.array([0.2]))
  np.testing.assert_allclose(got, pixels, atol=1e-7)


@pytest.mark.parametrize("name", OPERATIONS)
def test_one_channel_equals_three_equal_ones(name):
  grey = random_images(2, 5, 1)
  factors = jnp.array([0.3, 1.7])
  got = OPERATIONS[name](grey, factors)
  three = OPERATIONS[name](np.repeat(grey, 3, axis=-1), factors)
  # torchvision's luminance weights sum to 0.9999.
  np.testing.assert_allclose(np.repeat(got, 3, axis=-1), three, atol=1.5e-4)
  if name in ("saturation", "hue"):
    np.testing.assert_array_equal(got, grey)
  np.testing.assert_array_equal(augment.grayscale(grey), grey)


@pytest.mark.parametrize("channels, names", [(3, list(OPERATIONS)), (1, ["contrast"])])
def test_jitter_equals_the_operations_one_after_the_other(channels, names):
  rng = np.random.default_rng(0)
  n, k = 12, len(names)
  pixels = random_images(n, 6, channels)
  amounts = {name: jnp.array(rng.uniform(0.3, 1.7, n), "float32") for name in names}
  order = np.stack([rng.permutation(k) for _ in range(n)])
  order[:2] = -1
  got = augment.color_jitter(pixels, jnp.array(order), amounts)
  np.testing.assert_array_equal(got[:2], pixels[:2])
  for i in range(2, n):
    x = pixels[i : i + 1]
    for turn in order[i]:
      x = OPERATIONS[names[turn]](x, amounts[names[turn]][i : i + 1])
    np.testing.assert_allclose(got[i], x[0], atol=2e-6)
