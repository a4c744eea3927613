"""Separate jitted programs on checkpoints: one module each, `evaluate(...) -> dict`."""

from typing import Any

# What can be run on one checkpoint: name -> (module, further arguments of `evaluate`).
PROGRAMS: dict[str, tuple[str, dict[str, Any]]] = {
  "feature_stats": ("feature_stats", {}),
  "knn": ("knn", {}),
  "linear_probe": ("linear_probe", {}),
  "retrieval": ("retrieval", {}),
  "pairs": ("pairs", {}),
  "sepin": ("sepin", {}),
  "selection": ("selection", {}),
  "robustness": ("robustness", {}),
  "linear_probe_sgd": ("linear_probe", {"protocol": "sgd"}),
  "finetune": ("finetune", {}),
  "finetune_10": ("finetune", {"label_fraction": 0.1}),
  "finetune_1": ("finetune", {"label_fraction": 0.01}),
}
WITHOUT_LABELS = ("feature_stats", "pairs", "sepin")
# Those that train for long: they keep checkpoints and go on.
RESUMABLE = ("linear_probe_sgd", "finetune", "finetune_10", "finetune_1")
# Those that need a network, and not only features.
NEED_NETWORK = ("sepin", *RESUMABLE)
# Those that crop, blur or corrupt images, of which texts have none.
CHANGE_IMAGES = ("robustness", *NEED_NETWORK)
# Those that need two towers, or images with another of the same.
NEED_PAIRS = ("pairs",)
# Those that compare a run with the same of another seed.
PAIRED = ("axes",)


def applicable(
  labelled: bool, texts: bool = False, pairs: bool = False
) -> tuple[str, ...]:
  """The programs that data allow: with labels, texts or images, in pairs or single."""
  left_out = (CHANGE_IMAGES if texts else ()) + (() if pairs else NEED_PAIRS)
  found = PROGRAMS if labelled else WITHOUT_LABELS
  return tuple(name for name in found if name not in left_out)
