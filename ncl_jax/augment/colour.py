"""Colour operations, each image with its own strength."""

import math

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.augment import given
from ncl_jax.errors import InputError

# torchvision's weights of R, G and B in the luminance (ITU-R BT.601, truncated).
_LUMINANCE = (0.2989, 0.587, 0.114)
JITTERS = ("brightness", "contrast", "saturation", "hue")


def brightness(images: jax.Array, factor: jax.Array) -> jax.Array:
  """Scales all pixels: `clip(factor x, 0, 1)`.

  `images` are [N, H, W, C] in [0, 1]; `factor` is [N], at least 0.

  Raises:
    InputError: another shape or type, such as levels of 0 to 255.

  >>> brightness(jnp.full((1, 1, 1, 1), 0.25), jnp.array([2.0])).item()
  0.5
  """
  images = given.images(images, unit=True)
  return _blend(images, 0.0, given.per_image("factor", factor, images))


def contrast(images: jax.Array, factor: jax.Array) -> jax.Array:
  """Moves pixels away from the mean: `clip(factor x + (1 - factor) m, 0, 1)`.

  `m` is the mean luminance of the image. `images` are [N, H, W, C] in [0, 1]; `factor`
  is [N], at least 0.

  Raises:
    InputError: another shape or type, such as levels of 0 to 255, or other than 1
      or 3 channels.

  >>> images = jnp.array([0.25, 0.75]).reshape(1, 1, 2, 1)
  >>> contrast(images, jnp.array([0.5])).ravel().tolist()
  [0.375, 0.625]
  """
  images = given.images(images, unit=True, coloured=True)
  factor = given.per_image("factor", factor, images)
  return _blend(images, _mean_luminance(images), factor)


def saturation(images: jax.Array, factor: jax.Array) -> jax.Array:
  """Moves colours away from grey: `clip(factor x + (1 - factor) luminance(x), 0, 1)`.

  `images` are [N, H, W, C] in [0, 1] and unchanged if C is 1; `factor` is [N], at least
  0.

  Raises:
    InputError: another shape or type, such as levels of 0 to 255, or other than 1
      or 3 channels.

  >>> images = jnp.array([0.0, 1.0, 0.0]).reshape(1, 1, 1, 3)
  >>> saturation(images, jnp.array([0.0])).ravel().round(3).tolist()
  [0.5870000123977661, 0.5870000123977661, 0.5870000123977661]
  """
  images = given.images(images, unit=True, coloured=True)
  factor = given.per_image("factor", factor, images)
  if images.shape[-1] == 1:
    return images
  return _blend(images, _luminance(images), factor)


def hue(images: jax.Array, shift: jax.Array) -> jax.Array:
  """Shifts the HSV hue; value and saturation are preserved.

  With V the largest channel, c = largest - smallest and h the hue in sixths of a turn:
  `channel = V - c clip(min(k, 4 - k), 0, 1)`, `k = (n + h + 6 shift) mod 6`, where n is
  5, 3, 1 for R, G, B.

  `images` are [N, H, W, C] in [0, 1] and unchanged if C is 1; `shift` is [N], in turns
  of the colour circle.

  Raises:
    InputError: another shape or type, such as levels of 0 to 255, or other than 1
      or 3 channels.

  >>> red = jnp.array([1.0, 0.0, 0.0]).reshape(1, 1, 1, 3)
  >>> hue(red, jnp.array([0.5])).ravel().tolist()
  [0.0, 1.0, 1.0]
  """
  images = given.images(images, unit=True, coloured=True)
  shift = given.per_image("shift", shift, images)
  if images.shape[-1] == 1:
    return images
  return _turned(images, shift)


def _turned(images: jax.Array, shift: jax.Array) -> jax.Array:
  """`hue` of [N, H, W, 3]."""
  red, green, blue = images[..., 0:1], images[..., 1:2], images[..., 2:3]
  value = jnp.maximum(jnp.maximum(red, green), blue)
  chroma = value - jnp.minimum(jnp.minimum(red, green), blue)
  is_red, is_green = value == red, value == green
  difference = jnp.where(
    is_red, green - blue, jnp.where(is_green, blue - red, red - green)
  )
  sector = jnp.where(is_red, 0, jnp.where(is_green, 2, 4)).astype(images.dtype)
  # Grey pixels have difference 0 and chroma 0, so their hue does not matter.
  sixths = difference / jnp.where(chroma == 0, 1, chroma) + sector
  n = jnp.array([5, 3, 1], images.dtype)[None, None, None, :]
  k = n + (sixths + 6 * shift[:, None, None, None])
  k = k - 6 * jnp.floor(k / 6)
  return value - chroma * jnp.clip(jnp.minimum(k, 4 - k), 0, 1)


def color_jitter(
  images: jax.Array, order: jax.Array, amounts: dict[str, jax.Array]
) -> jax.Array:
  """Applies several colour operations, each image in its own order.

  Args:
    images: [N, H, W, C] in [0, 1].
    order: int [N, K]: image n first gets operation `order[n, 0]` of `amounts`, then
      `order[n, 1]`, and so on; -1 stands for no operation.
    amounts: K arrays [N]: factors of "brightness", "contrast" and "saturation", and the
      shift of "hue", or some of them.

  Returns:
    [N, H, W, C] in [0, 1].

  Raises:
    InputError: another shape or type, such as levels of 0 to 255, or other than 1
      or 3 channels.

  >>> x = jnp.full((1, 1, 1, 1), 0.75)
  >>> half = jnp.array([0.5])
  >>> amounts = {"brightness": 4 * half, "contrast": half}
  >>> color_jitter(x, jnp.array([[0, 1]]), amounts).item()
  1.0
  """
  images = given.images(images, unit=True, coloured=True)
  for name in amounts:
    checks.choice("amounts", name, JITTERS)
  amounts = {name: given.per_image(name, x, images) for name, x in amounts.items()}
  shape = checks.real("order", order)
  if shape != (len(images), len(amounts)):
    raise InputError(
      f"order has shape {list(shape)}: it must be [{len(images)}, {len(amounts)}], one "
      "entry for each image and operation"
    )
  references = {"contrast": _mean_luminance, "saturation": _luminance}

  def turn(x: jax.Array, operation: jax.Array) -> tuple[jax.Array, None]:
    # All blends share one formula, so choosing one means choosing factor and reference.
    factor: jax.Array = jnp.ones(operation.shape, x.dtype)
    reference: jax.Array = jnp.zeros((1, 1, 1, 1), x.dtype)
    for i, (name, amount) in enumerate(amounts.items()):
      if name != "hue":
        mine = operation == i
        factor = jnp.where(mine, amount, factor)
        if name in references:
          mine = mine[:, None, None, None]
          reference = jnp.where(mine, references[name](x), reference)
    blended = _blend(x, reference, factor)
    if "hue" not in amounts:
      return blended, None
    # From x, not from `blended`: XLA would recompute the chain for each use.
    is_hue = operation == list(amounts).index("hue")
    turned = _turned(x, amounts["hue"]) if x.shape[-1] == 3 else x
    return jnp.where(is_hue[:, None, None, None], turned, blended), None

  # A loop, because unrolled turns fuse into code that is 20 times slower on CPU.
  return jax.lax.scan(turn, images, jnp.asarray(order).T)[0]


def grayscale(images: jax.Array) -> jax.Array:
  """Replaces every channel by the luminance, `0.2989 R + 0.587 G + 0.114 B`.

  `images` are [N, H, W, C] and unchanged if C is 1.

  Raises:
    InputError: another shape or type, or other than 1 or 3 channels.

  >>> green = jnp.array([0.0, 1.0, 0.0]).reshape(1, 1, 1, 3)
  >>> grayscale(green).ravel().round(3).tolist()
  [0.5870000123977661, 0.5870000123977661, 0.5870000123977661]
  """
  images = given.images(images, coloured=True)
  return jnp.broadcast_to(_luminance(images), images.shape)


def solarize(images: jax.Array) -> jax.Array:
  """Inverts bright pixels of images in [0, 1]: `1 - x` where `x >= 1/2`.

  Raises:
    InputError: another shape or type, such as levels of 0 to 255.

  >>> solarize(jnp.array([0.25, 0.75]).reshape(1, 1, 2, 1)).ravel().tolist()
  [0.25, 0.25]
  """
  images = given.images(images, unit=True)
  return jnp.where(images >= 0.5, 1 - images, images)


def normalize(
  images: jax.Array, mean: tuple[float, ...], std: tuple[float, ...]
) -> jax.Array:
  """`(x - mean) / std`, channel by channel, in float32 or float64.

  Raises:
    InputError: another shape or type.

  >>> normalize(jnp.full((1, 1, 1, 1), 0.75), (0.5,), (0.25,)).item()
  1.0
  """
  images = given.images(images)
  if not len(mean) == len(std) == images.shape[-1]:
    raise InputError(
      f"images have {images.shape[-1]} channels, mean {len(mean)} and std {len(std)}: "
      "they must be as many"
    )
  means = jnp.array(mean, images.dtype)[None, None, None, :]
  return (images - means) / jnp.array(std, images.dtype)[None, None, None, :]


def _blend(
  images: jax.Array, reference: jax.Array | float, factor: jax.Array
) -> jax.Array:
  """`clip(factor x + (1 - factor) reference, 0, 1)`; exactly x at factor 1."""
  factor = factor[:, None, None, None]
  return jnp.clip(factor * images + (1 - factor) * reference, 0, 1)


def _luminance(images: jax.Array) -> jax.Array:
  """[N, H, W, C] -> [N, H, W, 1]."""
  if images.shape[-1] == 1:
    return images
  red, green, blue = (images[..., c : c + 1] for c in range(3))
  return _LUMINANCE[0] * red + _LUMINANCE[1] * green + _LUMINANCE[2] * blue


def _mean_luminance(images: jax.Array) -> jax.Array:
  """[N, H, W, C] in [0, 1] -> [N, 1, 1, 1]."""
  # A sum of integers has no rounding. XLA orders a sum of floats by the batch size, so
  # the views would depend on the number of devices.
  integer, bits = (jnp.int64, 62) if images.dtype == jnp.float64 else (jnp.int32, 30)
  pixels = images.shape[1] * images.shape[2]
  scale = 2.0 ** (bits - math.ceil(math.log2(pixels)))
  levels = jnp.round(scale * _luminance(images)[..., 0]).astype(integer)
  mean = jnp.sum(levels, axis=(1, 2)).astype(images.dtype) / (scale * pixels)
  return mean[:, None, None, None]
