"""Augmentation: random views and the test view of uint8 images, on the device."""

from ncl_jax.augment.blur import gaussian_blur
from ncl_jax.augment.colour import (
  brightness,
  color_jitter,
  contrast,
  grayscale,
  hue,
  normalize,
  saturation,
  solarize,
)
from ncl_jax.augment.config import AugmentConfig
from ncl_jax.augment.geometry import horizontal_flip, random_boxes, resized_crop
from ncl_jax.augment.views import eval_view, make_views, two_views, view_parameters

__all__ = [
  "AugmentConfig",
  "brightness",
  "color_jitter",
  "contrast",
  "eval_view",
  "gaussian_blur",
  "grayscale",
  "horizontal_flip",
  "hue",
  "make_views",
  "normalize",
  "random_boxes",
  "resized_crop",
  "saturation",
  "solarize",
  "two_views",
  "view_parameters",
]
