"""The augmentation settings as one frozen, checked dataclass."""

import dataclasses

from ncl_jax import checks
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
    self._set("size", low=1)
    if self.size != int(self.size):
      raise InputError(f"augmentation size = {self.size}: it must be a whole number")
    object.__setattr__(self, "size", int(self.size))
    for name in ("flip", "jitter", "grayscale", "blur", "solarize"):
      self._set(name, 0, 1)
    for name in ("brightness", "contrast", "saturation"):
      self._set(name, 0)
    self._set("hue", 0, 0.5)
    self._set("eval_crop", high=1, above=0)
    self._set_each("crop_scale", (2,), high=1, above=0)
    self._set_each("crop_ratio", (2,), above=0)
    self._set_each("blur_radius", (2,), low=0)
    self._set_each("mean", (1, 3))
    self._set_each("std", (len(self.mean),), above=0)

  def _set(self, name: str, *bounds: float, **more: float) -> None:
    value = checks.number(f"augmentation {name}", getattr(self, name), *bounds, **more)
    object.__setattr__(self, name, value)

  def _set_each(self, name: str, lengths: tuple[int, ...], **bounds: float) -> None:
    values = getattr(self, name)
    if not isinstance(values, list | tuple) or len(values) not in lengths:
      raise InputError(
        f"augmentation {name} = {values!r}: it must have "
        f"{' or '.join(map(str, lengths))} numbers"
      )
    entry = f"augmentation {name} = {values!r}, entry"
    made = tuple(checks.number(entry, value, **bounds) for value in values)
    if len(made) == 2 and made[0] > made[1]:
      raise InputError(
        f"augmentation {name} = {values!r}: the two numbers must be in order"
      )
    object.__setattr__(self, name, made)
