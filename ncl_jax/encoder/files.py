"""Saves a fitted encoder to one file of tensors and settings, and loads it."""

import json
import pathlib
from typing import Any

import numpy as np
import safetensors
from flax import traverse_util

from ncl_jax import interop
from ncl_jax.encoder.incremental import Progress
from ncl_jax.encoder.names import Names
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.errors import InputError
from ncl_jax.host import paths

ENDING = ".safetensors"
_FORMAT = "ncl_jax.NonNegativeEncoder 3"
# Those that an encoder has.
_ARRAYS = (
  *("loss_curve_", "validation_scores_"),
  *("expected_activation_", "explained_variance_"),
)


def save(encoder: Any, path: str | pathlib.Path) -> None:
  """Writes a fitted encoder to a new file NAME.safetensors, completely or not at all.

  After `partial_fit` the file also holds the optimizer's state.

  Raises:
    InputError: if the file exists already or has another ending.
  """
  _check_name(path)
  settings = encoder.get_params()
  if not isinstance(settings["random_state"], int | np.integer):
    settings["random_state"] = None  # a generator's state is not a setting
  header = {
    "format": _FORMAT,
    # Settings may be numpy numbers.
    "settings": json.dumps(
      settings, default=lambda number: number.item(), allow_nan=False
    ),
  }
  if hasattr(encoder, "feature_names_in_"):
    header["names"] = json.dumps(encoder.feature_names_in_.tolist(), allow_nan=False)
  if hasattr(encoder, "names_"):
    header["dimensions"] = json.dumps(encoder.names_.words, allow_nan=False)
  tensors = {n: np.asarray(getattr(encoder, n)) for n in _ARRAYS if hasattr(encoder, n)}
  tensors |= {f"scaling.{k}": np.asarray(v) for k, v in vars(encoder.scaling_).items()}
  tensors |= {f"network.{name}": tensor for name, tensor in encoder.params_.items()}
  if hasattr(encoder, "names_"):
    tensors |= {f"names.{x}": getattr(encoder.names_, x) for x in ("score", "chance")}
  if hasattr(encoder, "_progress"):
    tensors |= encoder._progress.tensors()
  content = interop.tensors_to_bytes(tensors, header)
  interop.publish(path, lambda file: file.write(content))


def load(kind: Any, path: str | pathlib.Path) -> Any:
  """Reads a fitted encoder of class `kind`; nothing in the file is executed.

  Raises:
    FileNotFoundError: if there is no such file.
    InputError: if it is another kind of file.
  """
  _check_name(path)
  tensors = interop.read(path)
  with safetensors.safe_open(paths.local(path), "numpy") as file:
    header = file.metadata() or {}
  settings = json.loads(header.get("settings", "{}"))
  if header.get("format") != _FORMAT or settings.keys() - kind().get_params():
    raise InputError(
      f"{path} was not written by NonNegativeEncoder.save of this version"
    )
  encoder = kind(**settings)
  for name in _ARRAYS:
    if name in tensors:
      # [()] makes a number of an array without axes.
      setattr(encoder, name, tensors.pop(name)[()])
  tree = traverse_util.unflatten_dict(tensors, sep=".")
  encoder.scaling_, encoder.params_ = Scaling(**tree["scaling"]), tree["network"]
  if "progress" in tree:
    encoder._progress = Progress.of(tree["progress"])
  encoder.n_features_in_ = len(encoder.scaling_.mean)
  if "dimensions" in header:
    words = tuple(map(tuple, json.loads(header["dimensions"])))
    encoder.names_ = Names(words, **tree["names"])
  if "names" in header:
    encoder.feature_names_in_ = np.asarray(json.loads(header["names"]), object)
  return encoder


def _check_name(path: str | pathlib.Path) -> None:
  if paths.local(path).suffix != ENDING:
    raise InputError(f"{path}: the name of an encoder's file ends in {ENDING}")
