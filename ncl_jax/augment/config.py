"""The augmentation settings as one frozen, checked dataclass."""

import dataclasses
import math
import numbers
from typing import Any

from ncl_jax.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentConfig:
  """Every setting of the random views and of the test view.

  The defaults are SimCLR's augmentation as in the NCL paper; `size`, `mean` and `std`
  depend on the data set. Hashable, so it can be a static argument of `jax.jit`. Lists
  and integers are converted to tuples and floats.

  Attributes:
    size: side of the square view, pixels.
    crop_scale: smallest and largest area of the crop, as shares of the image.
    crop_ratio: smallest and largest width / height of the crop.
    flip: probability of the horizontal flip.
    jitter: probability of the colour jitter.
    brightness, contrast, saturation: b; the factor is drawn from U(max(0, 1 - b),
      1 + b), and 0 switches it off.
    hue: the shift is drawn from U(-hue, hue), in turns of the colour circle.
    grayscale: probability of greyscale.
    blur: probability of the blur.
    blur_radius: smallest and largest radius (standard deviation) of the blur, pixels.
    solarize: probability of solarisation (inverting pixels from 0.5 up).
    mean: per channel, of pixels in [0, 1]; its length is the number of channels.
    std: per channel.
    eval_crop: side of the test view's central square, as a share of the shorter side
      (ImageNet: 224 / 256).

  Raises:
    InputError: a value outside its range.

  Reference: Wang et al. 2024 (arXiv:2403.12459), training settings; Chen et al. 2020
  (arXiv:2002.05709), Appendix A.

  >>> AugmentConfig(size=32, jitter=1, mean=[0.5], std=[0.25]).mean
  (0.5,)
  """

  size: int
  crop_scale: tuple[float, float] = (0.08, 1.0)
  crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
  flip: float = 0.5
  jitter: float = 0.8
  brightness: float = 0.8
  contrast: float = 0.8
  saturation: float = 0.8
  hue: float = 0.2
  grayscale: float = 0.2
  blur: float = 0.5
  blur_radius: tuple[float, float] = (0.1, 2.0)
  solarize: float = 0.0
  mean: tuple[float, ...]
  std: tuple[float, ...]
  eval_crop: float = 1.0

  def __post_init__(self) -> None:
    """Coerces and checks every field."""
    if not _is_number(self.size) or self.size != int(self.size) or self.size < 1:
      raise _error("size", self.size, "a whole number of pixels, at least 1")
    object.__setattr__(self, "size", int(self.size))
    for name in ("flip", "jitter", "grayscale", "blur", "solarize"):
      self._number(name, 0, 1, "a probability, 0 to 1")
    for name in ("brightness", "contrast", "saturation"):
      self._number(name, 0, math.inf, "a number, at least 0")
    self._number("hue", 0, 0.5, "a number of turns, 0 to 0.5")
    self._number("eval_crop", _ABOVE_0, 1, "a share, above 0 and at most 1")
    self._range("crop_scale", _ABOVE_0, 1, "above 0 and at most 1")
    self._range("crop_ratio", _ABOVE_0, math.inf, "above 0")
    self._range("blur_radius", 0, math.inf, "at least 0")
    self._numbers("mean", -math.inf, (1, 3), "1 or 3 numbers, one a channel")
    self._numbers("std", _ABOVE_0, (len(self.mean),), "as many as mean, all above 0")

  def _number(self, name: str, low: float, high: float, allowed: str) -> None:
    value = getattr(self, name)
    if not _is_number(value) or not low <= value <= high:
      raise _error(name, value, allowed)
    object.__setattr__(self, name, float(value))

  def _range(self, name: str, low: float, high: float, allowed: str) -> None:
    given, allowed = getattr(self, name), f"two numbers in order, {allowed}"
    first, second = self._numbers(name, low, (2,), allowed, high)
    if first > second:
      raise _error(name, given, allowed)

  def _numbers(
    self,
    name: str,
    low: float,
    lengths: tuple[int, ...],
    allowed: str,
    high: float = math.inf,
  ) -> tuple[float, ...]:
    values = getattr(self, name)
    if (
      not isinstance(values, (list, tuple))
      or len(values) not in lengths
      or not all(_is_number(v) and low <= v <= high for v in values)
    ):
      raise _error(name, values, allowed)
    object.__setattr__(self, name, tuple(float(v) for v in values))
    return getattr(self, name)


_ABOVE_0 = math.nextafter(0, 1)


def _is_number(value: Any) -> bool:
  return (
    isinstance(value, numbers.Real)
    and not isinstance(value, bool)
    and math.isfinite(value)
  )


def _error(name: str, value: Any, allowed: str) -> InputError:
  return InputError(f"augmentation {name} = {value!r}; allowed: {allowed}")
