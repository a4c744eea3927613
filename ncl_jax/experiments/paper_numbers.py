"""The paper's numbers, where a run of ours is of its data and with its network.

Source: Wang et al. 2024 (arXiv:2403.12459), its tables, and its authors' slides. Shares
are shares, not per cent. Of SEPIN and of the bars of consistency the unit or the rule
is not stated: compare order and ratio only.
"""

from collections.abc import Sequence

from ml_collections import ConfigDict

EXPECTED: dict[str, dict[str, dict[str, float]]] = {
  # Linear probe and finetuning by the released recipes; consistency and sparsity read
  # off the bars.
  "CIFAR-10": {
    "cl": {"probe_sgd_h": 0.876, "finetune_h": 0.923, "consistency_positive": 0.147},
    "ncl": {
      "probe_sgd_h": 0.878,
      "finetune_h": 0.926,
      "consistency_positive": 0.466,
      "sparsity": 0.93,
    },
  },
  "CIFAR-100": {
    "cl": {"probe_sgd_h": 0.586, "finetune_h": 0.726, "consistency_positive": 0.018},
    "ncl": {
      "probe_sgd_h": 0.597,
      "finetune_h": 0.730,
      "consistency_positive": 0.074,
      "sparsity": 0.92,
    },
  },
  "ImageNet-100": {
    # "ood:WORD" is of a set with that word in its name. The set of the table's transfer
    # column is not named anywhere: left out.
    "cl": {
      "probe_sgd_h": 0.687,
      "finetune_h": 0.773,
      "consistency_positive": 0.023,
      "sepin_1": 0.88,
      "sepin_10": 0.79,
      "sepin_100": 0.69,
      "sepin_all": 0.47,
      # Feature selection, 512 of 2048 projector outputs.
      "selection_all": 0.668,
      "selection_random": 0.662,
      "selection_ea_signed": 0.663,
      "selection_ea_relu": 0.665,
      "selection_all_retrieval": 0.109,
      "selection_random_retrieval": 0.100,
      "selection_ea_signed_retrieval": 0.099,
      "selection_ea_relu_retrieval": 0.102,
      "ood:stylized": 0.196,
      "ood:sketch": 0.271,
    },
    "ncl": {
      "probe_sgd_h": 0.694,
      "finetune_h": 0.792,
      "consistency_positive": 0.087,
      "sparsity": 0.96,
      "sepin_1": 7.43,
      "sepin_10": 5.93,
      "sepin_100": 3.87,
      "sepin_all": 0.48,
      "selection_all": 0.689,
      "selection_random": 0.643,
      "selection_ea_signed": 0.667,
      "selection_ea_relu": 0.689,
      "selection_all_retrieval": 0.142,
      "selection_random_retrieval": 0.082,
      "selection_ea_signed_retrieval": 0.111,
      "selection_ea_relu_retrieval": 0.142,
      "ood:stylized": 0.212,
      "ood:sketch": 0.280,
    },
  },
}

# tfds sets whose name alone says what they are; a folder is what its config says.
_SOURCES = {"tfds:cifar10": "CIFAR-10", "tfds:cifar100": "CIFAR-100"}


def expected(config: ConfigDict) -> dict[str, dict[str, float]]:
  """What the paper found where we measure.

  Returns:
    method -> metric -> number, empty for other data or another network; the config's
    own
    `expected` comes on top.
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
  """With the data sets that are there in the place of the words in their names."""
  found = {}
  for key, number in numbers.items():
    start, _, word = key.rpartition(":")
    if not start:
      found[key] = number
    for name in sets if start else ():
      if word in name.lower():
        found[f"{start}:{name}"] = number
  return found
