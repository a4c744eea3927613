"""Corruptions: each against its formula written anew, and one generator an image."""

import colorsys
import io
import math

import numpy as np
import pytest
from PIL import Image

from ncl_jax.data import corruptions
from ncl_jax.errors import InputError


def noise(size=32, channels=3, seed=0):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 256, (size, size, channels)).astype(np.uint8)


def smooth(size=64, channels=3):
  """A picture with colours, edges and slopes."""
  y, x = np.mgrid[:size, :size] / size
  picture = [0.2 + 0.6 * x, 0.5 + 0.4 * np.sin(9 * y), (x + y > 1) * 0.7 + 0.1]
  return np.uint8(255 * np.stack(picture[:channels], -1))


def point(size):
  image = np.zeros((size, size, 1), np.uint8)
  image[size // 2, size // 2] = 255
  return image


@pytest.mark.parametrize(
  ("name", "severity", "deviation"),
  [
    ("gaussian_noise", 1, 0.04),
    ("gaussian_noise", 5, 0.1),
    ("speckle_noise", 5, 0.2 * 0.4),
    ("shot_noise", 5, math.sqrt(0.4 / 50)),
    ("shot_noise", 1, math.sqrt(0.4 / 500)),
  ],
)
def test_noise_is_as_strong_as_its_formula_says(name, severity, deviation):
  grey = np.full((60, 60, 3), 102, np.uint8)  # 0.4
  x = corruptions.corrupt(grey, name, severity) / 255
  assert x.mean() == pytest.approx(0.4, abs=5 * deviation / math.sqrt(x.size))
  assert x.std() == pytest.approx(deviation, rel=0.04)


def test_impulses_are_black_and_white_and_as_many():
  grey = np.full((100, 100, 3), 102, np.uint8)
  x = corruptions.corrupt(grey, "impulse_noise", 5)  # 100 pixels: 0.27
  white, black = (x == 255).mean(), (x == 0).mean()
  assert white == pytest.approx(0.135, abs=0.01)
  assert black == pytest.approx(0.135, abs=0.01)
  assert set(np.unique(x)) == {0, 102, 255}


def by_pixel(image, change):
  """Each pixel through colorsys."""
  out = np.empty(image.shape)
  for i, j in np.ndindex(image.shape[:2]):
    h, s, v = colorsys.rgb_to_hsv(*(image[i, j] / 255))
    out[i, j] = colorsys.hsv_to_rgb(h, *change(s, v))
  return np.round(255 * out)


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_brightness_and_saturation_are_those_of_hsv(severity):
  image = noise(12)
  image[0, :4] = [[0, 0, 0], [255, 255, 255], [90, 90, 90], [0, 7, 0]]
  amount = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
  expected = by_pixel(image, lambda s, v: (s, min(v + amount, 1)))
  seen = corruptions.corrupt(image, "brightness", severity)
  np.testing.assert_allclose(seen, expected, atol=1)
  factor, offset = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
  expected = by_pixel(image, lambda s, v: (min(factor * s + offset, 1), v))
  seen = corruptions.corrupt(image, "saturate", severity)
  np.testing.assert_allclose(seen, expected, atol=1)


def test_contrast_is_about_each_channels_mean():
  image = noise()
  mean = image.astype(float).mean((0, 1))
  expected = np.round(0.15 * (image - mean) + mean)
  seen = corruptions.corrupt(image, "contrast", 5)
  np.testing.assert_allclose(seen, expected, atol=1)


def test_gaussian_blur_by_loops():
  image = noise(10, channels=1)
  weights = [math.exp(-(d**2) / 2) for d in range(-4, 5)]
  expected = np.zeros((10, 10))
  for i, j in np.ndindex(10, 10):
    total = 0.0
    for a in range(-4, 5):
      for b in range(-4, 5):
        pixel = image[min(max(i + a, 0), 9), min(max(j + b, 0), 9), 0]
        total += weights[a + 4] * weights[b + 4] * pixel
    expected[i, j] = total / sum(weights) ** 2
  seen = corruptions.corrupt(image, "gaussian_blur", 5)[..., 0]  # sigma 1
  np.testing.assert_allclose(seen, np.round(expected), atol=1)


def test_defocus_spreads_a_point_over_a_disk():
  image = np.zeros((65, 65, 1), np.uint8)
  image[30:35, 30:35] = 255
  seen = corruptions.corrupt(image, "defocus_blur", 3)[..., 0] / 255  # radius 6
  y, x = np.mgrid[:65, :65]
  disk = [(a, b) for a in range(-6, 7) for b in range(-6, 7) if a * a + b * b <= 36]
  expected = np.zeros((65, 65))
  for a, b in disk:
    expected[30 + a : 35 + a, 30 + b : 35 + b] += 1 / len(disk)
  # Up to the edge's anti-aliasing.
  assert np.abs(seen - expected).max() < 0.12
  assert seen.sum() == pytest.approx(25, rel=0.01)


def test_motion_draws_a_half_gaussian_along_a_line():
  seen = corruptions.corrupt(point(63), "motion_blur", 2, seed=4)[..., 0] / 255
  weights = np.exp(-(np.arange(13) ** 2) / (2 * 1.5**2))
  weights /= weights.sum()
  np.testing.assert_allclose(np.sort(seen[seen > 0])[::-1][:4], weights[:4], atol=3e-3)
  y, x = np.argwhere(seen > 0).T - 31
  assert np.all(x <= 0) and np.all(np.abs(y) <= np.abs(x))
  angle = np.arctan2(y[x < -2], x[x < -2])
  assert np.ptp(angle % math.pi) < 0.4


def test_zooming_scales_distances_from_the_centre():
  ramp = np.linspace(0, 250, 33)
  image = np.round(np.broadcast_to(ramp[None, :, None], (33, 33, 1))).astype(np.uint8)
  factors = np.arange(1, 1.26, 0.01)
  shrink = (1 + np.sum(1 / factors)) / (1 + len(factors))
  seen = corruptions.corrupt(image, "zoom_blur", 5)[16, :, 0]
  np.testing.assert_allclose(seen, 125 + (ramp - 125) * shrink, atol=1.5)


def test_pixels_and_jpeg_are_pillows():
  image = smooth(64)
  blocks = image.reshape(32, 2, 32, 2, 3).mean((1, 3))
  seen = corruptions.corrupt(image, "pixelate", 2)  # half the pixels
  np.testing.assert_allclose(seen, blocks.repeat(2, 0).repeat(2, 1), atol=1)
  for channels in (1, 3):
    picture = smooth(40, channels)
    file = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(file, "JPEG", quality=50)
    expected = np.asarray(Image.open(file)).reshape(picture.shape)
    np.testing.assert_array_equal(corruptions.corrupt(picture, "jpeg", 4), expected)


@pytest.mark.parametrize("size", [32, 80])
@pytest.mark.parametrize("name", sorted(set(corruptions.NAMES) - {"saturate"}))
def test_a_higher_severity_changes_more(name, size):
  image = smooth(size)
  change = [
    np.abs(corruptions.corrupt(image, name, s).astype(float) - image).mean()
    for s in corruptions.SEVERITIES
  ]
  assert 0 < change[0] < change[2] < change[4]


def test_an_image_becomes_the_same_in_whatever_company():
  images = np.stack([noise(10, 1, seed=0)] * 6)
  changed = corruptions.Corrupted(images, "gaussian_noise", 3, side=8, seed=5)
  assert changed.shape == (6, 8, 8, 1) and len(changed) == 6
  whole = changed[np.arange(6)]
  assert len(np.unique(whole.reshape(6, -1), axis=0)) == 6
  for rows in ([3], [5, 0], [2, 4, 1]):
    np.testing.assert_array_equal(changed[np.array(rows)], whole[rows])
  other = corruptions.Corrupted(images, "gaussian_noise", 3, side=8, seed=6)
  assert not np.array_equal(other[np.arange(6)], whole)
  # Cut before it is corrupted.
  plain = corruptions.Corrupted(images, "jpeg", 5, side=8)[np.array([0])][0]
  expected = corruptions.corrupt(images[0, 1:9, 1:9], "jpeg", 5)
  np.testing.assert_array_equal(plain, expected)


def test_what_does_not_exist_is_refused():
  with pytest.raises(InputError, match="did you mean 'gaussian_noise'"):
    corruptions.corrupt(noise(), "gaussian_nose", 1)
  for severity in (0, 6):
    with pytest.raises(InputError, match=f"severity = {severity}"):
      corruptions.corrupt(noise(), "jpeg", severity)
  with pytest.raises(InputError, match="needs 3 channels"):
    corruptions.corrupt(noise(channels=1), "saturate", 1)
  assert "saturate" not in corruptions.names(1)
  assert corruptions.names(3) == corruptions.NAMES


def test_what_was_made_of_a_split_is_not_made_again(monkeypatch):
  images = np.stack([noise(10, 1, i) for i in range(4)])
  corrupted = corruptions.Corrupted(images, "jpeg", 2, side=8)
  all_of_them = np.arange(4)
  first = corrupted[all_of_them]
  calls = []
  corrupt = corruptions.corrupt
  monkeypatch.setattr(
    corruptions, "corrupt", lambda *a, **k: calls.append(1) or corrupt(*a, **k)
  )
  again = corruptions.Corrupted(images, "jpeg", 2, side=8)
  whole = again[all_of_them]
  np.testing.assert_array_equal(whole, first)
  whole[:] = first[:] = 0  # the caller's own
  np.testing.assert_array_equal(again[np.array([2])], again[all_of_them][2:3])
  assert len(calls) == 1 and again[all_of_them].any()
  monkeypatch.setattr(corruptions, "KEPT_BYTES", whole.nbytes - 1)
  other = images.copy()
  crowded = corruptions.Corrupted(other, "jpeg", 2, side=8)
  np.testing.assert_array_equal(crowded[all_of_them], again[all_of_them])
  assert id(other) not in corruptions._KEPT or not corruptions._KEPT[id(other)]

  key = id(images)
  assert key in corruptions._KEPT
  del images, corrupted, again
  assert key not in corruptions._KEPT
