"""The whole recipe: order, distribution, devices, compiled form, test view."""

import dataclasses
import re

import golden_numbers
import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ncl_jax import augment
from ncl_jax.errors import InputError

GOLDEN = golden_numbers.load("augment")
KEY = jax.random.key(3)
# No crop, nothing else: the starting point of the tests of one step.
OFF = {
  "crop_scale": (1, 1),
  "crop_ratio": (1, 1),
  **dict.fromkeys(("flip", "jitter", "grayscale", "blur"), 0),
}

two_views = jax.jit(augment.two_views, static_argnames="config")
eval_view = jax.jit(augment.eval_view, static_argnames="config")


def recipe(size, channels=3, **settings):
  """A recipe whose views stay in [0, 1]."""
  settings = {"mean": (0,) * channels, "std": (1,) * channels} | settings
  return augment.AugmentConfig(size=size, **settings)


def random_images(n, height, width, channels):
  shape = (n, height, width, channels)
  return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def to_unit(images):
  return np.float32(images) * np.float32(1 / 255)


def test_with_every_step_off_the_views_are_the_images():
  images = random_images(3, 8, 8, 3)
  views = two_views(KEY, images, config=recipe(8, **OFF))
  assert views.shape == (3, 2, 8, 8, 3) and views.dtype == np.float32
  for view in (0, 1):
    np.testing.assert_array_equal(views[:, view], to_unit(images))


def test_no_images_have_no_views():
  assert two_views(KEY, random_images(0, 8, 8, 3), config=recipe(4)).shape[:2] == (0, 2)


def test_steps_that_are_certain_come_in_the_order_of_the_paper():
  images = random_images(2, 8, 8, 3)
  settings = {
    "grayscale": 1,
    "blur": 1,
    "blur_radius": (1.5, 1.5),
    "solarize": 1,
    "flip": 1,
    "mean": (0.1, 0.2, 0.3),
    "std": (1, 2, 3),
  }
  views = two_views(KEY, images, config=recipe(8, **OFF | settings))

  @jax.jit
  def one_by_one(x):
    x = augment.gaussian_blur(augment.grayscale(x), jnp.full(2, 1.5), 1.5)
    x = augment.horizontal_flip(augment.solarize(x))
    return augment.normalize(x, settings["mean"], settings["std"])

  x = one_by_one(to_unit(images))
  np.testing.assert_allclose(views, np.stack([x, x], axis=1), atol=1e-6)


def test_steps_come_as_often_as_their_probabilities():
  # A flip shows in which half is red, greyscale in the blue channel.
  n, image = 4000, np.zeros((1, 2, 2, 3), np.uint8)
  image[0, :, 0, 0] = 200
  config = recipe(2, **OFF | {"flip": 0.3, "grayscale": 0.3})
  views = np.array(two_views(KEY, image.repeat(n, axis=0), config=config))
  for changed in (views[:, :, 0, 0, 0] == 0, views.max((2, 3))[..., 2] > 0):
    np.testing.assert_allclose(changed.mean(0), 0.3, atol=4 * np.sqrt(0.21 / n))
    # One view's draw says nothing about the other's.
    both = np.mean(changed[:, 0] & changed[:, 1])
    assert abs(both - 0.09) < 4 * np.sqrt(0.09 * 0.91 / n)


def test_jitter_factors_are_uniform():
  # A dim image, so that nothing is clipped and the factor can be read off.
  image = np.full((1, 2, 2, 1), 51, np.uint8)
  config = recipe(2, 1, **OFF | {"jitter": 1, "brightness": 0.6, "contrast": 0})
  views = two_views(KEY, image.repeat(2000, axis=0), config=config)
  quantiles = np.quantile(np.array(views[..., 0, 0, 0]) * 5, [0, 0.25, 0.5, 0.75, 1])
  np.testing.assert_allclose(quantiles, [0.4, 0.7, 1, 1.3, 1.6], atol=0.05)


@pytest.mark.parametrize("name", "ab")
def test_chain_equals_the_released_one(name):
  x = np.float32(GOLDEN[f"image_{name}"])[None] / 255
  contrast, hue, brightness, saturation, radius = GOLDEN[f"{name}_chain_params"][
    :, None
  ]
  steps = [
    lambda x: jnp.clip(
      augment.resized_crop(x, GOLDEN[f"{name}_crop_boxes"][[2]], 32), 0, 1
    ),
    lambda x: augment.contrast(x, contrast),
    lambda x: augment.hue(x, hue),
    lambda x: augment.brightness(x, brightness),
    lambda x: augment.saturation(x, saturation),
    lambda x: augment.gaussian_blur(x, jnp.asarray(radius), 2.0),
    augment.horizontal_flip,
  ]
  for step, golden in zip(steps, GOLDEN[f"{name}_chain_pil"], strict=True):
    x = jax.jit(step)(x)
    levels = np.abs(255 * x[0] - golden)
    assert levels.mean() < 2.5 and levels.max() < 16
  mean, std = (
    tuple(GOLDEN[f"norm_cifar10_{what}"].tolist()) for what in ("mean", "std")
  )
  final = augment.normalize(np.float32(golden)[None] / 255, mean, std)
  np.testing.assert_allclose(final[0], GOLDEN[f"{name}_chain_final"], rtol=0, atol=2e-6)


def sharded(images, devices):
  mesh = jax.make_mesh(
    (devices,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices]
  )
  return jax.device_put(images, NamedSharding(mesh, PartitionSpec("data")))


# One recipe and shape for several tests, since each new one is compiled anew.
WHOLE = recipe(8, solarize=0.3)


def whole_views(images, key=KEY):
  return np.array(two_views(key, images, config=WHOLE))


# Of a size at which a CPU makes crops in blocks, and images in parts of unequal places.
LARGE = recipe(64)


@pytest.fixture(scope="module")
def large_images():
  return random_images(88, 72, 80, 3)


def test_views_in_blocks_and_parts_are_the_crops(large_images):
  config = dataclasses.replace(LARGE, jitter=0, grayscale=0, blur=0)
  u = jax.jit(augment.view_parameters, static_argnums=1)(KEY, 88)

  @jax.jit
  def expected(crop, flip, pixels):
    boxes = augment.random_boxes(
      crop, 72, 80, scale=config.crop_scale, ratio=config.crop_ratio
    )
    x = jnp.clip(augment.resized_crop(pixels, boxes, 64), 0, 1)
    chosen = flip[:, :, None, None] < config.flip
    return jnp.where(chosen, augment.horizontal_flip(x), x)

  got, pixels = two_views(KEY, large_images, config=config), to_unit(large_images)
  for view in (0, 1):
    x = expected(u["crop"][:, view], u["flip"][:, view], pixels)
    np.testing.assert_allclose(got[:, view], x, rtol=0, atol=2e-6)


def test_large_views_are_the_same_for_any_number_of_devices(large_images):
  one = np.array(two_views(KEY, large_images, config=LARGE))
  images = sharded(large_images, 8)
  compiled = two_views.lower(KEY, images, config=LARGE).compile()
  np.testing.assert_array_equal(compiled(KEY, images), one)
  assert not re.search("all-|collective|reduce-scatter", compiled.as_text())


def test_accelerators_make_large_views_without_gathers(large_images):
  traced = two_views.trace(KEY, large_images, config=LARGE)
  for platform in ("tpu", "cuda"):
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert "stablehlo.dot_general" in text
    assert not re.search("stablehlo.(gather|scatter|convolution)", text)


def test_views_of_an_example_depend_on_key_and_place_alone():
  images = random_images(16, 12, 10, 3)
  views = whole_views(images)
  np.testing.assert_array_equal(whole_views(images[:5]), views[:5])
  other = whole_views(images, key=jax.random.key(4))
  assert not np.any(np.all(other == views, axis=(1, 2, 3, 4)))


def test_views_can_be_made_part_by_part():
  images = random_images(16, 12, 10, 3)
  views = whole_views(images)
  u = jax.jit(augment.view_parameters, static_argnums=1)(KEY, 16)
  make_views = jax.jit(augment.make_views, static_argnames="config")
  for start in (0, 1):
    rows = {step: a[start::2] for step, a in u.items()}
    part = make_views(rows, images[start::2], config=WHOLE)
    np.testing.assert_allclose(part, views[start::2], rtol=0, atol=1e-5)
  with pytest.raises(InputError, match="16 examples for 8 images"):
    augment.make_views(u, images[::2], WHOLE)


def test_the_two_views_and_the_copies_of_an_image_differ():
  images = random_images(1, 12, 10, 3).repeat(16, axis=0)
  assert len(np.unique(whole_views(images).reshape(32, -1), axis=0)) == 32


def test_leaving_out_a_step_leaves_the_others_as_they_were():
  images = random_images(16, 12, 10, 3)
  views = whole_views(images)
  config = dataclasses.replace(WHOLE, flip=1)
  flipped = np.array(two_views(KEY, images, config=config))
  same = np.isclose(flipped, views, atol=1e-5).all((2, 3, 4))
  mirrored = np.isclose(flipped, views[:, :, :, ::-1], atol=1e-5).all((2, 3, 4))
  assert np.all(same != mirrored) and 0 < same.sum() < same.size


def test_one_channel_equals_three_equal_ones():
  grey = random_images(4, 8, 8, 1)
  settings = {"saturation": 0, "hue": 0}
  one = two_views(KEY, grey, config=recipe(8, 1, **settings))
  three = two_views(KEY, grey.repeat(3, axis=-1), config=recipe(8, 3, **settings))
  np.testing.assert_allclose(np.repeat(one, 3, axis=-1), three, atol=3e-4)


def test_views_stay_in_range_and_in_float32(x64):
  config = recipe(9, brightness=3, contrast=3, saturation=3, hue=0.5, solarize=0.5)
  views = two_views(KEY, random_images(8, 6, 20, 3), config=config)
  assert views.dtype == np.float32 and np.all(np.isfinite(views))
  assert views.min() >= -1e-6 and views.max() <= 1 + 1e-6


def test_eval_view_at_the_same_size_changes_no_bit():
  images = random_images(2, 8, 8, 3)
  expected = to_unit(images)
  np.testing.assert_array_equal(eval_view(images, config=recipe(8)), expected)
  centre = eval_view(images, config=recipe(6, eval_crop=0.75))
  np.testing.assert_array_equal(centre, expected[:, 1:7, 1:7])


@pytest.mark.parametrize("eval_crop, side", [(1.0, 20), (0.875, 18), (0.5, 10)])
def test_eval_view_equals_pillow(eval_crop, side):
  images = random_images(2, 20, 31, 1)
  views = eval_view(images, config=recipe(12, 1, eval_crop=eval_crop))
  top, left = (20 - side) // 2, (31 - side) // 2
  for pixels, view in zip(images[..., 0], views[..., 0], strict=True):
    square = np.float32(pixels[top : top + side, left : left + side]) / 255
    expected = PIL.Image.fromarray(square).resize((12, 12), PIL.Image.BICUBIC)
    np.testing.assert_allclose(view, np.clip(expected, 0, 1), atol=1e-5)


@pytest.mark.parametrize(
  "images", [np.zeros((1, 4, 4, 3), "float32"), np.zeros((4, 4, 3), "uint8")]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_wrong_images_are_refused(images, channels):
  with pytest.raises(InputError, match=rf"allowed: uint8 \[N, H, W, {channels}\]"):
    augment.two_views(KEY, images, recipe(4, channels))
  with pytest.raises(InputError, match="images are"):
    augment.eval_view(images, recipe(4, channels))


def test_a_single_view_is_what_the_same_numbers_make_of_two():
  images = random_images(4, 12, 10, 3)
  u = augment.view_parameters(KEY, 4, views=1)
  assert u["crop"].shape == (4, 1, 22)
  config = recipe(8, jitter=0, grayscale=0, blur=0)
  make_views = jax.jit(augment.make_views, static_argnames="config")
  one = make_views(u, images, config=config)
  both = {step: jnp.concatenate([1 - a, a], axis=1) for step, a in u.items()}
  two = make_views(both, images, config=config)
  assert one.shape == (4, 1, 8, 8, 3)
  np.testing.assert_allclose(one[:, 0], two[:, 1], atol=1e-6)


# Optimized programs from here on: these compute much, or show how they are compiled.


def summary(views):
  """The four statistics of each [M, H, W, C] view that the golden file has."""
  grey = views.mean(-1)
  return {
    "brightness": views.mean((1, 2, 3)),
    "chroma": (views.max(-1) - views.min(-1)).mean((1, 2)),
    "contrast": grey.std((1, 2)),
    "tv": np.abs(np.diff(views, axis=2)).mean((1, 2, 3)),
  }


@pytest.mark.usefixtures("optimized")
@pytest.mark.parametrize("name", "ab")
def test_views_are_distributed_as_the_released_ones(name):
  n = int(GOLDEN["mc_n"])
  images = np.broadcast_to(
    GOLDEN[f"image_{name}"], (n // 12, *GOLDEN[f"image_{name}"].shape)
  )
  config = recipe(32)
  views = np.concatenate(
    [two_views(key, images, config=config) for key in jax.random.split(KEY, 6)]
  ).reshape(n, 32, 32, 3)
  np.testing.assert_allclose(views.mean(0), GOLDEN[f"{name}_mc_mean"], atol=0.03)
  np.testing.assert_allclose(views.std(0), GOLDEN[f"{name}_mc_std"], atol=0.03)
  levels = GOLDEN["quantile_levels"]
  error = 4 * np.sqrt(levels * (1 - levels) * 2 / n)
  rounding = 1 / 255  # The released pipeline rounds to 8 bits after each step.
  values = summary(views)
  for what, sample in values.items():
    golden = GOLDEN[f"{name}_mc_{what}_quantiles"]
    low, high = (
      np.quantile(sample, np.clip(levels + e, 0, 1)) for e in (-error, error)
    )
    assert np.all(low - rounding <= golden) and np.all(golden <= high + rounding), what
  grey = np.mean(values["chroma"] < 1e-6)
  assert abs(grey - GOLDEN[f"{name}_mc_gray_fraction"]) < 4 * np.sqrt(0.16 * 2 / n)


@pytest.mark.usefixtures("optimized")
def test_views_are_the_same_for_any_number_of_devices():
  images = random_images(16, 12, 10, 3)
  config = recipe(8, solarize=0.4)  # of its own: WHOLE's program is not optimized
  one = np.array(two_views(KEY, images, config=config))
  two = two_views(KEY, sharded(images, 2), config=config)
  np.testing.assert_array_equal(two, one)
  compiled = two_views.lower(KEY, sharded(images, 8), config=config).compile()
  eight = compiled(KEY, sharded(images, 8))
  np.testing.assert_array_equal(eight, one)
  assert (len(two.sharding.device_set), len(eight.sharding.device_set)) == (2, 8)

  # No message between devices, no gather over pixels, no convolution.
  found = set(re.findall(r"(?<=[})\]] )[a-z][a-z-]+(?=\()", compiled.as_text()))
  assert {"fusion", "while"} <= found
  forbidden = (
    "gather",
    "scatter",
    "convolution",
    "all-",
    "collective",
    "reduce-scatter",
  )
  assert not [operation for operation in found if operation.startswith(forbidden)]
