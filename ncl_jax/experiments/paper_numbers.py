"""The paper's numbers, for runs on its data with its network."""

import importlib.resources
import tomllib
from collections.abc import Sequence

from ml_collections import ConfigDict

EXPECTED: dict[str, dict[str, dict[str, float]]] = tomllib.loads(
  (importlib.resources.files(__package__) / "paper_numbers.toml").read_text("utf-8")
)
# tfds sets whose name alone says what they are; a folder is what its config says.
_SOURCES = {"tfds:cifar10": "CIFAR-10", "tfds:cifar100": "CIFAR-100"}


def expected(config: ConfigDict) -> dict[str, dict[str, float]]:
  """What the paper found where we measure.

  Returns:
    method -> metric -> number, empty for other data or another network; the config's
    own `expected` comes on top.
  """
  name = _SOURCES.get(config.data.source, "")
  if config.name == "ImageNet-100":
    name = config.name
  same = (config.model.backbone, config.model.width) == ("resnet18", 64)
  numbers = EXPECTED.get(name, {}) if same and not config.data.train_examples else {}
  own = config.expected.to_dict()
  return {
    method: _of_sets(numbers.get(method, {}), config.eval.ood) | own.get(method, {})
    for method in [*numbers, *(method for method in own if method not in numbers)]
  }


def _of_sets(numbers: dict[str, float], sets: Sequence[str]) -> dict[str, float]:
  """Replaces the word in a key by each data set whose name contains it."""
  found = {}
  for key, number in numbers.items():
    start, _, word = key.rpartition(":")
    if not start:
      found[key] = number
    for name in sets if start else ():
      if word in name.lower():
        found[f"{start}:{name}"] = number
  return found
