"""Converts PyTorch state dicts to variables and back, by name."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax import traverse_util

from ncl_jax.errors import InputError
from ncl_jax.interop import prefixes

# Blocks in each stage, and whether they are bottlenecks.
_NETWORKS = {
  "ResNet-10": ((1, 1, 1, 1), False),
  "ResNet-18": ((2, 2, 2, 2), False),
  "ResNet-50": ((3, 4, 6, 3), True),
}
# Torch's tensors in each kind of layer -> collection and leaf here.
_LEAVES = {
  "conv": {"weight": "params/{}/kernel"},
  "linear": {"weight": "params/{}/kernel", "bias": "params/{}/bias"},
  "norm": {
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


class _Sizes(NamedTuple):
  """The dimensions of a network that do not follow from its name."""

  width: int = 64
  channels: int = 3
  stem: int = 3
  hidden: int = 2048
  out: int = 256
  classes: int = 0  # 0 = no probe


def from_torch(state: Mapping[str, Any]) -> dict[str, Any]:
  """Variables of a `ContrastiveModel` from a torch state dict.

  ResNet-10, -18 and -50, of any width and with either stem, are recognised by names and
  shapes. Names are those of torchvision and solo-learn: `backbone.conv1.weight`,
  `backbone.layer1.0.downsample.0.weight`, `projector.0.weight`, `projector.2.bias`. For
  `module.`, `encoder.` and `momentum_` see `prefixes.standard`. An online classifier
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
    standard: np.asarray(state[name])
    for name, standard in prefixes.standard(state).items()
    if not name.endswith(_COUNTER)
  }
  expected = {network: _tensors(network, _sizes(arrays)) for network in _NETWORKS}
  network = _recognise(
    set(arrays), {n: set(t) for n, t in expected.items()}, _hint(arrays)
  )
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
  arrays = {
    standard: state[name] for name, standard in prefixes.standard(state).items()
  }
  if "conv1.weight" in arrays:
    arrays = {f"backbone.{name}": value for name, value in arrays.items()}
  arrays = {
    name: np.asarray(value)
    for name, value in arrays.items()
    if not name.startswith(("projector.", "classifier.", "backbone.fc."))
  }
  # A temporary projector of width 1 completes the network.
  last = [x for n, x in arrays.items() if n.endswith((".bn2.weight", ".bn3.weight"))]
  features = max((len(x) for x in last if x.ndim == 1), default=1)
  for layer, width in (("projector.0", features), ("projector.2", 1)):
    arrays[f"{layer}.weight"] = np.zeros((1, width), np.float32)
    arrays[f"{layer}.bias"] = np.zeros(1, np.float32)
  variables = from_torch(arrays)
  del variables["params"]["projector"]
  return variables


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
  projector = variables["params"].get("projector", {})
  name = "resnet50" if "conv3" in backbone["layer1_0"] else "resnet10"
  if name == "resnet10" and "layer1_1" in backbone:
    name = "resnet18"
  size, _, _, width = backbone["conv1"]["kernel"].shape
  return {
    "backbone": name,
    "stem": "imagenet" if size == 7 else "cifar",
    "width": width,
  } | {
    f"projector_{end}": len(projector[layer]["bias"])
    for end, layer in (("hidden", "linear1"), ("out", "linear2"))
    if layer in projector
  }


def _recognise(seen: set[str], expected: Mapping[str, set[str]], hint: str = "") -> str:
  """The network with these tensor names."""
  network = min(expected, key=lambda n: len(expected[n] ^ seen))
  missing = sorted(expected[network] - seen)
  unexpected = sorted(seen - expected[network])
  if missing or unexpected:
    raise InputError(
      f"not the tensors of {', '.join(expected)} with a projector; compared with "
      f"{network}, the nearest, {len(missing)} are missing ({_listed(missing)}) and "
      f"{len(unexpected)} unexpected ({_listed(unexpected)}){hint}"
    )
  return network


def _hint(arrays: Mapping[str, Any]) -> str:
  """A hint for a file without a projector, else ""."""
  if any(name.startswith("projector.") for name in arrays):
    return ""
  bare = " and its names lack backbone." if "conv1.weight" in arrays else ""
  return (
    f". The file has no projector{bare}. A backbone alone cannot be imported, because "
    "evaluators report f, which comes from the projector. ncl train_projector "
    "trains a projector for it"
  )


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
  return {
    f"{name}.{tensor}": (leaf.format(path), shape if tensor == "weight" else shape[:1])
    for kind, name, path, shape in _layers(network, sizes)
    for tensor, leaf in _LEAVES[kind].items()
  }


def _layers(
  network: str, sizes: _Sizes
) -> Iterator[tuple[str, str, str, tuple[int, ...]]]:
  """Kind, torch name, path here and weight shape of all layers, in order."""
  stages, bottleneck = _NETWORKS[network]
  features = sizes.width
  stem = (features, sizes.channels, sizes.stem, sizes.stem)
  yield "conv", "backbone.conv1", "backbone/conv1", stem
  yield "norm", "backbone.bn1", "backbone/bn1", (features,)
  for stage, depth in enumerate(stages):
    width = sizes.width * 2**stage
    out = width * 4 if bottleneck else width
    for index in range(depth):
      name = f"backbone.layer{stage + 1}.{index}"
      path = f"backbone/layer{stage + 1}_{index}"
      block = (
        [(width, features, 1), (width, width, 3), (out, width, 1)]
        if bottleneck
        else [(width, features, 3), (width, width, 3)]
      )
      for i, (outputs, inputs, size) in enumerate(block, 1):
        yield (
          "conv",
          f"{name}.conv{i}",
          f"{path}/conv{i}",
          (outputs, inputs, size, size),
        )
        yield "norm", f"{name}.bn{i}", f"{path}/bn{i}", (outputs,)
      if index == 0 and (stage or bottleneck):
        name, path = f"{name}.downsample", f"{path}/downsample"
        yield "conv", f"{name}.0", f"{path}_conv", (out, features, 1, 1)
        yield "norm", f"{name}.1", f"{path}_bn", (out,)
      features = out
  if sizes.classes:
    yield "linear", "classifier", "probe", (sizes.classes, features)
  yield "linear", "projector.0", "projector/linear1", (sizes.hidden, features)
  yield "linear", "projector.2", "projector/linear2", (sizes.out, sizes.hidden)
