"""The settings of supervised training: the paper's recipes, and their checks."""

import dataclasses
from typing import Any

from ncl_jax import checks
from ncl_jax.errors import InputError

OPTIMIZERS = ("lars", "sgd")
SCHEDULES = ("cosine", "step")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
  """How a classifier is trained; hashable, and recorded with each result.

  The defaults are the released code's for CIFAR, those of ImageNet: `for_stem`.

  Attributes:
    epochs: passes over the training images.
    batch_size: images a step; with fewer images, the largest power of two that fits.
    optimizer: "lars" or "sgd", both with momentum.
    learning_rate: times batch size / 256.
    momentum: of either optimiser.
    weight_decay: not on biases and normalisation scales.
    trust_coefficient: LARS only.
    clip: LARS only: never a longer step than SGD's.
    schedule: "cosine" after a linear warm-up, or "step".
    warmup_epochs: cosine only; at most `epochs`.
    warmup_start: cosine only: the learning rate of the first step.
    milestones: step only: epochs after which the rate is a tenth of what it was.
    label_smoothing: probability that is spread over all classes.
    layer_decay: the rate of a layer is that of the layer above it, times this.
    label_fraction: fraction of the training labels used, drawn by class.

  Raises:
    InputError: a value outside its range.

  Reference: Wang et al. 2024 (arXiv:2403.12459); values of the released code.
  """

  epochs: int = 50
  batch_size: int = 256
  optimizer: str = "lars"
  learning_rate: float = 0.4
  momentum: float = 0.9
  weight_decay: float = 1e-4
  trust_coefficient: float = 0.02
  clip: bool = True
  schedule: str = "cosine"
  warmup_epochs: float = 10.0
  warmup_start: float = 3e-5
  milestones: tuple[int, ...] = (60, 80)
  label_smoothing: float = 0.0
  layer_decay: float = 1.0
  label_fraction: float = 1.0

  def __post_init__(self) -> None:
    """Checks every field."""
    checks.whole("epochs", self.epochs, 1)
    checks.whole("batch_size", self.batch_size, 2)
    checks.choice("optimizer", self.optimizer, OPTIMIZERS)
    checks.choice("schedule", self.schedule, SCHEDULES)
    for name in ("learning_rate", "trust_coefficient", "layer_decay", "label_fraction"):
      checks.positive(name, getattr(self, name))
    for name in ("layer_decay", "label_fraction"):
      checks.number(name, getattr(self, name), high=1)
    for name in ("weight_decay", "warmup_epochs", "warmup_start"):
      checks.number(name, getattr(self, name), low=0)
    for name in ("momentum", "label_smoothing"):
      if not 0 <= getattr(self, name) < 1:
        raise InputError(f"{name} = {getattr(self, name)!r}: allowed is [0, 1)")

  def settings(self) -> dict[str, Any]:
    """Every field, as a result records it; what does not apply is left out."""
    fields = dataclasses.asdict(self)
    foreign = {
      "lars": (),
      "sgd": ("trust_coefficient", "clip"),
      "cosine": ("milestones",),
      "step": ("warmup_epochs", "warmup_start"),
    }
    for choice in (self.optimizer, self.schedule):
      for name in foreign[choice]:
        del fields[name]
    return fields


def for_stem(stem: str, *, epochs: int, **changes: Any) -> Recipe:
  """The released code's recipe for a kind of data, with changes.

  Args:
    stem: of the backbone: "cifar" (LARS, cosine) or "imagenet" (SGD at a constant rate:
      the released milestones lie beyond its epochs).
    epochs: 50 for the linear probe, 30 for finetuning; `changes` may hold another.
    **changes: fields of `Recipe`.

  Returns:
    The recipe; where training is shorter than its warm-up and none is asked for, the
    warm-up takes a fifth of it, as 10 of 50 epochs.

  Raises:
    InputError: a value outside its range.

  >>> for_stem("imagenet", epochs=50).learning_rate
  1.0
  """
  fields: dict[str, Any] = {"epochs": epochs}
  if stem == "imagenet":
    fields |= {
      "optimizer": "sgd",
      "learning_rate": 1.0,
      "weight_decay": 0.0,
      "schedule": "step",
    }
  fields |= changes
  if fields["epochs"] < Recipe.warmup_epochs:
    fields.setdefault("warmup_epochs", fields["epochs"] / 5)
  recipe = Recipe(**fields)
  idle = [name for name in changes if name not in recipe.settings()]
  if idle:
    raise InputError(
      f"{', '.join(idle)}: without effect for optimizer = {recipe.optimizer!r} and "
      f"schedule = {recipe.schedule!r}"
    )
  if recipe.schedule == "cosine" and recipe.warmup_epochs > recipe.epochs:
    raise InputError(
      f"warmup_epochs = {recipe.warmup_epochs}: it must not be above epochs = "
      f"{recipe.epochs}"
    )
  return recipe
