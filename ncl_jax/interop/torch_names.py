"""Converts PyTorch state dicts to variables and back, by name."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from flax import traverse_util

from ncl_jax.errors import InputError

# Blocks in each stage, and whether they are bottlenecks.
_NETWORKS = {
  "ResNet-10": ((1, 1, 1, 1), False),
  "ResNet-18": ((2, 2, 2, 2), False),
  "ResNet-50": ((3, 4, 6, 3), True),
}
# Parts of torch's names of layers -> names here.
_RENAMED = {
  r"(layer\d)\.(\d)": r"\1_\2",
  r"downsample\.0": "downsample_conv",
  r"downsample\.1": "downsample_bn",
  r"projector\.0": "projector.linear1",
  r"projector\.2": "projector.linear2",
  "classifier": "probe",
}
# Torch's tensors of a layer, by the dimensions of its weight -> collection and leaf.
_LEAVES = {
  4: {"weight": "params/{}/kernel"},
  2: {"weight": "params/{}/kernel", "bias": "params/{}/bias"},
  1: {
    "weight": "params/{}/scale",
    "bias": "params/{}/bias",
    "running_mean": "batch_stats/{}/mean",
    "running_var": "batch_stats/{}/var",
  },
}
_COUNTER = "num_batches_tracked"
# Axes of the result, by number of dimensions: OIHW -> HWIO, OI -> IO, and back.
_FROM_TORCH = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}
_TO_TORCH = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
_TEACHER = "momentum_"


class _Sizes(NamedTuple):
  """The dimensions of a network that do not follow from its name."""

  width: int = 64
  channels: int = 3
  stem: int = 3
  hidden: int = 2048  # 0 = no projector
  out: int = 256
  classes: int = 0  # 0 = no probe


def from_torch(state: Mapping[str, Any]) -> dict[str, Any]:
  """Variables of a `ContrastiveModel` from a torch state dict.

  ResNet-10, -18 and -50, of any width and with either stem, are recognised by names and
  shapes. Names are those of torchvision and solo-learn: `backbone.conv1.weight`,
  `backbone.layer1.0.downsample.0.weight`, `projector.0.weight`, `projector.2.bias`. For
  `module.`, `encoder.` and `momentum_` see `standard_names`. An online classifier
  (`classifier.weight`, `classifier.bias`) becomes `params["probe"]`;
  `num_batches_tracked` is dropped.

  Args:
    state: torch names -> arrays (or CPU tensors): convolutions [O, I, H, W], linear
      layers [O, I].

  Returns:
    `{"params": {"backbone", "projector"}, "batch_stats": {"backbone"}}`, numpy arrays
    of the same types: convolutions [H, W, I, O], linear layers [I, O].

  Raises:
    InputError: missing or unexpected names, or shapes that do not fit together.
  """
  arrays = {
    name: np.asarray(state[given])
    for given, name in standard_names(state).items()
    if not name.endswith(_COUNTER)
  }
  return _variables(arrays, _sizes(arrays))


def _variables(arrays: Mapping[str, np.ndarray], sizes: _Sizes) -> dict[str, Any]:
  expected = {network: _tensors(network, sizes) for network in _NETWORKS}
  hint = ""
  if sizes.hidden and not any(name.startswith("projector.") for name in arrays):
    hint = (
      ". The file has no projector. Evaluators report f, which a projector makes:"
      " ncl train_projector trains one for a backbone alone"
    )
  network = _recognise(set(arrays), {n: set(t) for n, t in expected.items()}, hint)
  tensors = expected[network]
  wrong = [
    f"{name} {list(arrays[name].shape)} instead of {list(shape)}"
    for name, (_, shape) in tensors.items()
    if arrays[name].shape != shape
  ]
  if wrong:
    raise InputError(f"{len(wrong)} shapes do not fit {network}: {_listed(wrong)}")
  return traverse_util.unflatten_dict(
    {
      path: arrays[name].transpose(_FROM_TORCH[len(shape)])
      for name, (path, shape) in tensors.items()
    },
    sep="/",
  )


def backbone_from_torch(state: Mapping[str, Any]) -> dict[str, Any]:
  """Variables of only the backbone in a torch state dict.

  torchvision's names also work: `conv1.weight`, `layer1.0.conv1.weight`. A projector
  and classifiers (`fc.`, `classifier.`) are ignored.

  Args:
    state: as in `from_torch`.

  Returns:
    `{"params": {"backbone"}, "batch_stats": {"backbone"}}`, as in `from_torch`.

  Raises:
    InputError: missing or unexpected names, or shapes that do not fit together.
  """
  names = standard_names(state)
  above = "backbone." if "conv1.weight" in names.values() else ""
  arrays = {
    above + name: np.asarray(state[given])
    for given, name in names.items()
    if not name.endswith(_COUNTER)
  }
  ignored = ("projector.", "classifier.", "backbone.fc.")
  arrays = {n: x for n, x in arrays.items() if not n.startswith(ignored)}
  return _variables(arrays, _sizes(arrays)._replace(hidden=0))


def to_torch(variables: Mapping[str, Any]) -> dict[str, np.ndarray]:
  """The torch state dict of a `ContrastiveModel`'s variables: inverse of `from_torch`.

  Args:
    variables: `{"params": {"backbone", "projector"}, "batch_stats": {"backbone"}}`;
      an optional `params["probe"]` becomes the classifier.

  Returns:
    Torch names -> numpy arrays in torch's order and layout; every
    `num_batches_tracked` is 0.

  Raises:
    InputError: missing or unexpected entries.
  """
  flat = traverse_util.flatten_dict(dict(variables), sep="/")
  sizes = _Sizes(classes=int(any(p.startswith("params/probe/") for p in flat)))
  expected = {network: _tensors(network, sizes) for network in _NETWORKS}
  network = _recognise(
    set(flat), {n: {path for path, _ in t.values()} for n, t in expected.items()}
  )
  state = {}
  for name, (path, shape) in expected[network].items():
    state[name] = np.asarray(flat[path]).transpose(_TO_TORCH[len(shape)])
    if name.endswith("running_var"):
      state[name.replace("running_var", _COUNTER)] = np.zeros((), np.int64)
  return state


def settings(variables: Mapping[str, Any]) -> dict[str, Any]:
  """The fields of a config's `model` that follow from variables of `from_torch`.

  Returns:
    backbone, stem and width; with a projector also projector_hidden and projector_out.
  """
  backbone = variables["params"]["backbone"]
  projector = variables["params"].get("projector")
  name = "resnet18" if "layer1_1" in backbone else "resnet10"
  if "conv3" in backbone["layer1_0"]:
    name = "resnet50"
  size, _, _, width = backbone["conv1"]["kernel"].shape
  found = {
    "backbone": name,
    "stem": "imagenet" if size == 7 else "cifar",
    "width": width,
  }
  if projector:
    found["projector_hidden"] = len(projector["linear1"]["bias"])
    found["projector_out"] = len(projector["linear2"]["bias"])
  return found


def _recognise(seen: set[str], expected: Mapping[str, set[str]], hint: str = "") -> str:
  """The network with these tensor names."""
  network = min(expected, key=lambda n: len(expected[n] ^ seen))
  missing = sorted(expected[network] - seen)
  unexpected = sorted(seen - expected[network])
  if missing or unexpected:
    raise InputError(
      f"not the tensors of {', '.join(expected)}; compared with "
      f"{network}, the nearest, {len(missing)} are missing ({_listed(missing)}) and "
      f"{len(unexpected)} unexpected ({_listed(unexpected)}){hint}"
    )
  return network


def _listed(items: list[str], limit: int = 12) -> str:
  rest = f", ... {len(items) - limit} more" if len(items) > limit else ""
  return (", ".join(items[:limit]) + rest) or "none"


def _sizes(arrays: Mapping[str, np.ndarray]) -> _Sizes:
  """The sizes, from the tensors' shapes; missing tensors are reported later by name."""

  def dim(name: str, axis: int, default: int) -> int:
    shape = arrays[name].shape if name in arrays else ()
    return shape[axis] if axis < len(shape) else default

  stem = "backbone.conv1.weight"
  return _Sizes(
    width=dim(stem, 0, 64),
    channels=dim(stem, 1, 3),
    stem=7 if dim(stem, 2, 3) == 7 else 3,
    hidden=dim("projector.0.weight", 0, 1),
    out=dim("projector.2.weight", 0, 1),
    classes=max(dim(f"classifier.{t}", 0, 0) for t in ("weight", "bias")),
  )


def _tensors(network: str, sizes: _Sizes) -> dict[str, tuple[str, tuple[int, ...]]]:
  """Torch name -> (path here, torch shape), for all tensors in torch's order."""
  tensors = {}
  for layer, shape in _layers(network, sizes):
    path = layer
    for pattern, name in _RENAMED.items():
      path = re.sub(pattern, name, path)
    for tensor, leaf in _LEAVES[len(shape)].items():
      tensors[f"{layer}.{tensor}"] = (
        leaf.format(path.replace(".", "/")),
        shape if tensor == "weight" else shape[:1],
      )
  return tensors


def _layers(network: str, sizes: _Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
  """Torch name and weight shape of all layers, in order."""
  stages, bottleneck = _NETWORKS[network]
  features = sizes.width
  yield "backbone.conv1", (features, sizes.channels, sizes.stem, sizes.stem)
  yield "backbone.bn1", (features,)
  for stage, depth in enumerate(stages):
    width = sizes.width * 2**stage
    kernels = [(width, 3), (width, 3)]
    if bottleneck:
      kernels = [(width, 1), (width, 3), (4 * width, 1)]
    for index in range(depth):
      block = f"backbone.layer{stage + 1}.{index}"
      inputs = outputs = features
      for i, (outputs, size) in enumerate(kernels, 1):
        yield f"{block}.conv{i}", (outputs, inputs, size, size)
        yield f"{block}.bn{i}", (outputs,)
        inputs = outputs
      if index == 0 and (stage or bottleneck):
        yield f"{block}.downsample.0", (outputs, features, 1, 1)
        yield f"{block}.downsample.1", (outputs,)
      features = outputs
  if sizes.classes:
    yield "classifier", (sizes.classes, features)
  if sizes.hidden:
    yield "projector.0", (sizes.hidden, features)
    yield "projector.2", (sizes.out, sizes.hidden)


def standard_names(names: Iterable[str]) -> dict[str, str]:
  """Maps tensor names to those that `from_torch` expects.

  `module` (torch's wrapper for several devices) is removed everywhere, and `encoder.`,
  solo-learn's older name, becomes `backbone.`. The teacher of a momentum method,
  `momentum_*`, is dropped with a line in the log.

  Raises:
    InputError: if two tensors get the same name.

  >>> standard_names(["module.encoder.conv1.weight", "projector.0.bias"])
  {'module.encoder.conv1.weight': 'backbone.conv1.weight', \
'projector.0.bias': 'projector.0.bias'}
  """
  found: dict[str, str] = {}
  owners: dict[str, str] = {}
  teacher = set()
  for name in names:
    first, *rest = [part for part in name.split(".") if part != "module"] or [name]
    if first.startswith(_TEACHER):
      teacher.add(first)
      continue
    found[name] = ".".join(["backbone" if first == "encoder" else first, *rest])
    other = owners.setdefault(found[name], name)
    if other != name:
      raise InputError(f"{other} and {name} are two tensors for {found[name]}")
  if teacher:
    logging.info("left out: the teacher's tensors, %s", ", ".join(sorted(teacher)))
  return found
