"""Reads and writes the weights of sentence-transformers' `SparseAutoEncoder`.

Its module is the same network with a tied decoder, on embeddings that are neither
centred nor scaled. With our scaling `u = (x - mean) / scale` folded in, W stays as it
is and codes grow by the factor `scale`, which leaves their direction and decoded
embeddings the same:

  encoder.weight [D, E] = W transposed, pre_bias [E] = mean + scale p,
  latent_bias [D] = scale b

Its weights lie in a folder with config.json and model.safetensors. Nothing here needs
torch.
"""

import json
import pathlib
from typing import Any

import numpy as np
import safetensors.numpy

from ncl_jax import interop
from ncl_jax.encoder import autoencoder
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.errors import InputError, naming
from ncl_jax.host import paths

CONFIG, WEIGHTS = "config.json", "model.safetensors"
# The module holds its weight under two names, of which torch's safetensors writes one.
_WEIGHT = ("decoder.linear.weight", "encoder.weight")
_SHAPES = {"pre_bias": ("input_dim",), "latent_bias": ("hidden_dim",)}


def write(
  folder: str | pathlib.Path, params: dict[str, np.ndarray], scaling: Scaling, k: int
) -> None:
  """Writes a tied autoencoder as a module.

  Raises:
    InputError: if one of the files exists already.
  """
  folder = paths.local(folder)
  for name in (CONFIG, WEIGHTS):  # before one of the two is written
    interop.check_free(folder / name)
  width, out = params["kernel"].shape
  scale = float(scaling.scale)
  tensors = {
    _WEIGHT[0]: params["kernel"].T,
    "pre_bias": scaling.mean + scale * params["pre_bias"],
    "latent_bias": scale * params["bias"],
  }
  tensors = {name: np.asarray(part, np.float32) for name, part in tensors.items()}
  tensors["stats_last_nonzero"] = np.zeros(out, np.int64)
  config = {
    "input_dim": width,
    "hidden_dim": out,
    "k": min(k, out) or out,
    "k_aux": min(autoencoder.AUXILIARY, out),
    "normalize": False,
    "dead_threshold": autoencoder.DEAD_AFTER,
  }
  names = {"format": "pt", _WEIGHT[1]: _WEIGHT[0]}
  weights = interop.tensors_to_bytes(tensors, names)
  text = (json.dumps(config, indent=2, allow_nan=False) + "\n").encode()
  interop.publish(folder / WEIGHTS, lambda file: file.write(weights))
  interop.publish(folder / CONFIG, lambda file: file.write(text))


def read(folder: str | pathlib.Path) -> tuple[dict[str, np.ndarray], Scaling, int]:
  """(parameters, scaling, k) of a module's folder; nothing in it is executed.

  Raises:
    FileNotFoundError: if one of the files is missing.
    InputError: if they hold another module, or numbers that are not finite.
  """
  folder = paths.local(folder)
  for name in (CONFIG, WEIGHTS):
    if not (folder / name).is_file():
      raise FileNotFoundError(f"{folder / name}: there is no such file")
  config = _config(folder / CONFIG)
  path = folder / WEIGHTS
  with naming(path):
    try:
      tensors = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, TypeError) as error:
      raise InputError(f"{path} is not a .safetensors file: {error}") from error
  shapes = {name: tuple(config[d] for d in dims) for name, dims in _SHAPES.items()}
  weight = next((name for name in _WEIGHT if name in tensors), _WEIGHT[1])
  shapes[weight] = (config["hidden_dim"], config["input_dim"])
  for name, shape in shapes.items():
    found = tensors[name].shape if name in tensors else None
    if found != shape:
      raise InputError(
        f"{path}: {name} has shape {found}, and {CONFIG} needs {shape}: this is not a "
        "SparseAutoEncoder"
      )
    if not np.isfinite(tensors[name]).all():
      raise InputError(f"{path}: {name} holds numbers that are not finite")
  params = {
    "kernel": np.asarray(tensors[weight].T, np.float32, order="C"),
    "bias": np.asarray(tensors["latent_bias"], np.float32),
    "pre_bias": np.zeros(config["input_dim"], np.float32),
  }
  # The pre-bias as the mean, which is subtracted in float64.
  mean = np.asarray(tensors["pre_bias"], np.float64)
  return params, Scaling(mean, np.ones_like(mean), np.ones(())), int(config["k"])


def _config(path: pathlib.Path) -> dict[str, Any]:
  with naming(path):
    try:
      config = json.loads(path.read_text())
    except ValueError as error:
      raise InputError(f"{path} is not JSON: {error}") from error
  for name in ("input_dim", "hidden_dim", "k"):
    value = config.get(name) if isinstance(config, dict) else None
    if type(value) is not int or value < 1:
      raise InputError(
        f"{path}: {name} = {value!r}: a SparseAutoEncoder has a whole number above 0"
      )
  if config.get("normalize", False):
    raise InputError(
      f"{path}: normalize = true: this encoder does not normalise layers of its input; "
      "only modules with normalize = false can be read"
    )
  return config
