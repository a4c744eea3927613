"""Makes the network's input views from a batch of uint8 images."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from ncl_jax import checks
from ncl_jax.augment.blur import gaussian_blur
from ncl_jax.augment.colour import JITTERS, color_jitter, grayscale, normalize, solarize
from ncl_jax.augment.config import AugmentConfig
from ncl_jax.augment.geometry import (
  BOX_PARAMETERS,
  apply_separable,
  crop_matrices,
  random_boxes,
  random_crops,
)
from ncl_jax.errors import InputError


def two_views(key: jax.Array, images: jax.Array, config: AugmentConfig) -> jax.Array:
  """Makes two random views of each image.

  The steps are crop, colour jitter in random order, greyscale, blur, solarisation, flip
  and normalisation. Each view has its own random parameters. They depend only on the
  key and on the example's position in the batch, so the views are the same for any
  number of devices.

  Args:
    images: uint8 [N, H, W, C], with as many channels as `config.mean`.
    config: static under `jax.jit`.

  Returns:
    float32 [N, 2, size, size, C], normalised.

  Raises:
    InputError: another dtype, rank or number of channels.

  Reference: Wang et al. 2024 (arXiv:2403.12459), training settings of the released
  code; Chen et al. 2020 (arXiv:2002.05709), Appendix A.

  >>> config = AugmentConfig(size=4, mean=(0.5,), std=(0.25,), jitter=0, blur=0)
  >>> make = jax.jit(two_views, static_argnames="config")
  >>> make(jax.random.key(0), jnp.zeros((3, 8, 8, 1), jnp.uint8), config=config).shape
  (3, 2, 4, 4, 1)
  """
  n, *_ = _check(images, config)
  return make_views(view_parameters(key, n), images, config)


def make_views(
  u: dict[str, jax.Array], images: jax.Array, config: AugmentConfig
) -> jax.Array:
  """Makes the views of each image from given augmentation parameters.

  An example's views depend only on its own image and parameters, so a batch can be
  split. For any rows i and `u = view_parameters(key, n)`, `two_views(key, images,
  config)[i]` equals `make_views({s: a[i] for s, a in u.items()}, images[i], config)`.

  Args:
    u: from `view_parameters`, one row for each example in `images`.
    images: uint8 [N, H, W, C], with as many channels as `config.mean`; or [N, V, H, W,
      C], one image per view, for example pairs from the data.
    config: static under `jax.jit`.

  Returns:
    float32 [N, V, size, size, C], normalised; V is the number of views in `u`.

  Raises:
    InputError: another dtype, rank or number of channels; another number of examples.

  >>> config = AugmentConfig(size=4, mean=(0.5,), std=(0.25,), jitter=0, blur=0)
  >>> u = view_parameters(jax.random.key(0), 3)
  >>> make_views(u, jnp.zeros((3, 8, 8, 1), jnp.uint8), config).shape
  (3, 2, 4, 4, 1)
  """
  checks.real("images", images)
  if np.ndim(images) == 5 and u["crop"].shape[:2] == images.shape[:2]:
    n, views = images.shape[:2]
    u = {step: value.reshape(n * views, 1, -1) for step, value in u.items()}
    x = make_views(u, images.reshape(n * views, *images.shape[2:]), config)
    return x.reshape(n, views, *x.shape[2:])
  n, *_ = _check(images, config)
  if u["crop"].shape[0] != n:
    raise InputError(
      f"augmentation parameters of {u['crop'].shape[0]} examples for {n} images: the "
      "numbers must be equal"
    )
  if not n:
    size = config.size
    return jnp.zeros((0, u["crop"].shape[1], size, size, images.shape[-1]))
  # Chosen while lowering, so the compiled program contains only one of the two. At 224
  # pixels a CPU is three times faster in parts and blocks. An accelerator prefers the
  # whole batch, large products and no gathers.
  return jax.lax.platform_dependent(
    u,
    images,
    cpu=functools.partial(_views_in_parts, config=config),
    default=functools.partial(_views, config=config, block=config.size),
  )


# Bytes of views that a CPU makes at a time. Every step passes over all of them, so they
# should stay in the caches and in memory that is already allocated.
_PART_BYTES = 2**20


def _views_in_parts(
  u: dict[str, jax.Array], images: jax.Array, config: AugmentConfig
) -> jax.Array:
  """`_views` for CPU: a few examples at a time, crops in blocks."""
  # At most 32 output pixels in a block: they need a sixth of an image's rows.
  size = config.size
  block = max(pixels for pixels in range(1, 33) if size % pixels == 0)
  block = block if block >= 8 else size
  (n, *_, channels), views = images.shape, u["crop"].shape[1]
  # Each part takes examples from every device, so that no example moves.
  devices = math.gcd(n, jax.device_count())
  each = n // devices
  parts = min(each, -(-each * 4 * views * size * size * channels // _PART_BYTES))
  part = -(-each // parts)
  if part == each:
    return _views(u, images, config, block)

  def split(x: jax.Array) -> jax.Array:
    return x.reshape(devices, each, *x.shape[1:]).swapaxes(0, 1)

  made = jax.lax.map(
    lambda given: _views(given[0], given[1], config, block),
    jax.tree.map(split, (u, images)),
    batch_size=part,
  )
  return made.swapaxes(0, 1).reshape(n, *made.shape[2:])


def _views(
  u: dict[str, jax.Array], images: jax.Array, config: AugmentConfig, block: int
) -> jax.Array:
  """`make_views` with `block` output pixels of a crop at a time."""
  n, height, width, channels = images.shape
  boxes = random_boxes(
    u["crop"], height, width, scale=config.crop_scale, ratio=config.crop_ratio
  )
  # The flip commutes with all later steps, and is free as part of the crop.
  flipped = u["flip"][..., 0] < config.flip if config.flip else None
  x = jnp.clip(random_crops(_to_unit(images), boxes, flipped, config.size, block), 0, 1)

  # From here on each view is a separate image, row n * V + v.
  views = x.shape[1]
  x = x.reshape(n * views, config.size, config.size, channels)
  u = {step: value.reshape(n * views, -1) for step, value in u.items()}
  if config.jitter:
    x = _random_jitter(u["jitter"], x, config)
  if config.grayscale and channels == 3:
    chosen = u["grayscale"][:, :, None, None] < config.grayscale
    x = jnp.where(chosen, grayscale(x), x)
  if config.blur:
    chosen, amount = u["blur"][:, 0] < config.blur, u["blur"][:, 1]
    low, high = config.blur_radius
    radius = jnp.where(chosen, low + (high - low) * amount, 0)
    x = gaussian_blur(x, radius, high)
  if config.solarize:
    chosen = u["solarize"][:, :, None, None] < config.solarize
    x = jnp.where(chosen, solarize(x), x)
  x = normalize(x, config.mean, config.std)
  return x.reshape(n, views, *x.shape[1:])


def eval_view(images: jax.Array, config: AugmentConfig) -> jax.Array:
  """Makes the test view of each image: float32 [N, size, size, C], normalised.

  This is the central square that covers `config.eval_crop` of the shorter side, resized
  (bicubic, antialiased) to `config.size`.

  Args:
    images: uint8 [N, H, W, C], with as many channels as `config.mean`.
    config: static under `jax.jit`.

  Raises:
    InputError: another dtype, rank or number of channels.

  >>> config = AugmentConfig(size=2, mean=(0.0,), std=(1.0,), eval_crop=0.5)
  >>> image = 255 * jnp.eye(4, dtype=jnp.uint8).reshape(1, 4, 4, 1)
  >>> eval_view(image, config)[0, :, :, 0].tolist()
  [[1.0, 0.0], [0.0, 1.0]]
  """
  _, height, width, _ = _check(images, config)
  side = max(1, round(config.eval_crop * min(height, width)))
  top, left = (height - side) // 2, (width - side) // 2
  x = _to_unit(images[:, top : top + side, left : left + side, :])
  if side != config.size:
    whole = jnp.array([[0, 0, side, side]])
    rows, columns = crop_matrices(whole, side, side, config.size, x.dtype)
    # One pair of matrices for all images, instead of a copy for each.
    resize = jax.vmap(apply_separable, in_axes=(0, None, None))
    x = jnp.clip(resize(x[:, None], rows[None], columns[None])[:, 0, 0], 0, 1)
  return normalize(x, config.mean, config.std)


# Uniform numbers per view and step. Steps that are switched off use theirs too, so that
# switching one off does not change the others.
_COUNTS = {
  "crop": BOX_PARAMETERS,
  "flip": 1,
  "jitter": 1 + 2 * len(JITTERS),  # whether; how much; the sort keys of the order
  "grayscale": 1,
  "blur": 2,
  "solarize": 1,
}


def view_parameters(key: jax.Array, n: int, views: int = 2) -> dict[str, jax.Array]:
  """Draws the augmentation parameters for `views` views of each of n examples.

  Returns:
    For each step float32 [n, views, numbers of the step], uniform on [0, 1).

  Raises:
    InputError: a negative number, or no view.

  >>> view_parameters(jax.random.key(0), 3)["blur"].shape
  (3, 2, 2)
  """
  checks.whole("n", n, 0)
  checks.whole("views", views, 1)
  # One call, because each takes XLA:CPU a second to compile.
  shape = (n, views, sum(_COUNTS.values()))
  u = jax.random.uniform(key, shape, jnp.float32)
  ends = list(itertools.accumulate(_COUNTS.values()))
  return dict(zip(_COUNTS, jnp.split(u, ends[:-1], axis=-1), strict=True))


def _random_jitter(u: jax.Array, x: jax.Array, config: AugmentConfig) -> jax.Array:
  """Colour jitter of x [B, S, S, C] with parameters u [B, 9]."""
  amounts, places = {}, []
  for i, name in enumerate(JITTERS):
    strength = getattr(config, name)
    if strength and (x.shape[-1] == 3 or name in ("brightness", "contrast")):
      high = strength if name == "hue" else 1 + strength
      low = -strength if name == "hue" else max(0.0, 1 - strength)
      amounts[name] = low + (high - low) * u[:, 1 + i]
      places.append(u[:, 1 + len(JITTERS) + i])
  if not amounts:
    return x
  order = jnp.argsort(jnp.stack(places, axis=-1), axis=-1)
  return color_jitter(x, jnp.where(u[:, :1] < config.jitter, order, -1), amounts)


def _to_unit(images: jax.Array) -> jax.Array:
  # Not `/ 255`, which XLA turns into a product only under jit.
  return images.astype(jnp.float32) * (1 / 255)


def _check(images: jax.Array, config: AugmentConfig) -> tuple[int, int, int, int]:
  """The shape of the images, or an InputError."""
  channels = len(config.mean)
  shape = checks.real("images", images)
  dtype = checks.array("images", images).dtype
  if dtype != jnp.uint8 or len(shape) != 4 or shape[3] != channels or 0 in shape[1:]:
    raise InputError(
      f"images are {dtype} {list(shape)}; allowed: uint8 [N, H, W, {channels}], as "
      f"many channels as augmentation mean = {config.mean}"
    )
  n, height, width, _ = shape
  return n, height, width, channels
