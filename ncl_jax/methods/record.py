"""`Method`: everything that tells one training method from another, in one record."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax.errors import InputError

_RANGES: dict[str, Callable[[Any], bool]] = {
  "it must be greater than 0": lambda x: math.isfinite(x) and x > 0,
  "it must not be negative": lambda x: math.isfinite(x) and x >= 0,
  "allowed is [0, 1)": lambda x: 0 <= x < 1,
}
POSITIVE, NOT_NEGATIVE, FRACTION = _RANGES


@dataclasses.dataclass(frozen=True)
class Setting:
  """A config field that only some methods read; others refuse any but its default.

  Attributes:
    key: dotted name, "loss.weight".
    default: its value in a fresh config, which also fixes its type.
    allowed: POSITIVE, NOT_NEGATIVE or FRACTION; "" allows every value of the type.
  """

  key: str
  default: Any
  allowed: str = ""

  def check(self, value: Any) -> None:
    """Raises `InputError` for a value outside the range."""
    if self.allowed and not _RANGES[self.allowed](value):
      raise InputError(f"{self.key} is {value}: {self.allowed}")


@dataclasses.dataclass(frozen=True)
class LossInputs:
  """A global batch as a loss of pairs of views sees it.

  Attributes:
    settings: `config.loss`.
    f: [N, 2, D] features after the transform; with a predictor, the predictor's. With
      prototypes, the features' cosines with them, [N, 2, K].
    keys: the same by the momentum encoder, without gradient; None without one.
    labels: [N], -1 where unknown.
    temperature: the setting, or the learnt value.
    centre: [K] running mean of `keys`, of methods with prototypes; else None.
    mesh: that the batch is split over; None for one device.
  """

  settings: ConfigDict
  f: jax.Array
  keys: Any
  labels: jax.Array
  temperature: Any
  centre: Any = None
  mesh: Mesh | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Method:
  """A training method. Adding one to a list in this package is all that it takes.

  Attributes:
    name: the value of `loss.name`.
    loss: the mean loss [] of a batch of pairs. None for a classifier, whose loss is
      that of `training.classifier`.
    variants: values of `config.method`, as pairs (without, with the transform).
    negatives: what each positive is compared with, for the log; a format string of
      `others`, `twice` and `candidates`, see `describe_negatives`.
    candidates: among how many the loss picks the right one, by the batch size: its
      value is log(candidates) where features are all alike. 0 for other losses.
    views: random views of each image in a step.
    labels: whether the loss needs them.
    captions: whether it compares images with captions, by two towers.
    momentum_encoder: whether it compares with an average of past networks.
    predictor: whether a further network follows the projector.
    prototypes: whether features are scored against learnt prototypes.
    released: whether the paper's released code has it, so that its files can be read.
    settings: the fields that it takes in addition to those of all methods.
    set_up: changes a config, given the method's variant without the transform.
    published: fields of the method's published recipe: (common, ImageNet-100's own).
    projector_alone: whether a projector can learn it on a backbone's stored features.
    implementation: which one `loss` takes, by (rows, width, devices), where there are
      several.
  """

  name: str
  loss: Callable[[LossInputs], jax.Array] | None
  variants: tuple[tuple[str, str], ...] = ()
  negatives: str = ""
  candidates: Callable[[int], int] = lambda batch_size: 0
  views: int = 2
  labels: bool = False
  captions: bool = False
  momentum_encoder: bool = False
  predictor: bool = False
  prototypes: bool = False
  released: bool = False
  settings: tuple[Setting, ...] = ()
  set_up: Callable[[ConfigDict, str], None] = lambda config, variant: None
  published: tuple[dict[str, Any], dict[str, Any]] | None = None
  projector_alone: bool = False
  implementation: Callable[[int, int, int], str] | None = None

  @property
  def classifier(self) -> bool:
    """Whether it trains class weights instead of comparing views."""
    return self.loss is None

  def takes(self, key: str) -> bool:
    """Whether it reads a field that only some methods do."""
    return any(setting.key == key for setting in self.settings)

  def describe_negatives(self, batch_size: int) -> str:
    """How many negatives each positive has in the global batch, for the log."""
    if not self.negatives:
      return "no negatives"
    others = batch_size - 1
    return self.negatives.format(
      others=others, twice=2 * others, candidates=2 * others + 1
    )


def projector_batch_norm(config: ConfigDict, variant: str) -> None:
  """Gives the projector's hidden layers BatchNorm; its widths stay."""
  config.model.projector_batch_norm = True


# Of every loss that compares features.
PAIR_SETTINGS = (
  Setting("loss.weight", 1.0, POSITIVE),  # factor of the loss, but not of its penalty
  Setting("loss.l1", 0.0, NOT_NEGATIVE),  # weight of the mean |f|_1, f of unit length
)
# From `loss.temperature` on; 0.01 at the lowest.
LEARN_TEMPERATURE = Setting("loss.learn_temperature", False)
