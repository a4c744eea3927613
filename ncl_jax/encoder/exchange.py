"""Writes fitted encoders to files and other packages' formats, and reads them."""

import json
import pathlib
from typing import Any, Self

import numpy as np
import safetensors.numpy
from sklearn.utils.validation import check_is_fitted

from ncl_jax import interop
from ncl_jax.encoder import autoencoder, given
from ncl_jax.encoder.coding import Params
from ncl_jax.encoder.names import Names
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.errors import InputError
from ncl_jax.host import paths

_FORMAT = "ncl_jax.NonNegativeEncoder 3"
# Attributes in a file, of those that an encoder has.
_ARRAYS = (
  *("loss_curve_", "validation_scores_"),
  *("expected_activation_", "explained_variance_"),
)
# The module of sentence-transformers holds its weight under two names, of which torch's
# safetensors writes one.
_WEIGHT = ("decoder.linear.weight", "encoder.weight")
# Runtimes of 2022 and later read both.
_OPSET, _IR = 17, 8


class Exchange:
  """The methods of `NonNegativeEncoder` that write and read files."""

  def save(self: Any, path: str | pathlib.Path) -> None:
    """Writes tensors and settings to a new file NAME.safetensors.

    After `partial_fit` the file also holds the optimizer's state, twice as many numbers
    again, so that `partial_fit` on the loaded encoder continues exactly.

    Raises:
      InputError: if the file exists already or has another ending.
    """
    check_is_fitted(self)
    _check_ending(path, ".safetensors")
    settings = self.get_params()
    if not isinstance(settings["random_state"], int | np.integer):
      settings["random_state"] = None  # a generator's state is not a setting
    tensors = {n: np.asarray(getattr(self, n)) for n in _ARRAYS if hasattr(self, n)}
    tensors |= {f"scaling.{k}": np.asarray(v) for k, v in vars(self.scaling_).items()}
    tensors |= {f"network.{k}": v for k, v in self.params_.items()}
    tensors |= {f"progress.{k}": v for k, v in getattr(self, "_progress", {}).items()}
    texts = {"settings": settings}
    if hasattr(self, "feature_names_in_"):
      texts["names"] = self.feature_names_in_.tolist()
    if hasattr(self, "names_"):
      texts["dimensions"] = self.names_.words
      tensors |= {f"names.{x}": getattr(self.names_, x) for x in ("score", "chance")}
    header = {"format": _FORMAT}
    for name, value in texts.items():  # settings may be numpy numbers
      header[name] = json.dumps(value, default=lambda x: x.item(), allow_nan=False)
    content = interop.tensors_to_bytes(tensors, header)
    interop.publish(path, lambda file: file.write(content))

  @classmethod
  def load(cls, path: str | pathlib.Path) -> Self:
    """Reads a file that `save` wrote, without executing anything in it.

    Raises:
      FileNotFoundError: if there is no such file.
      InputError: if it is another kind of file.
    """
    _check_ending(path, ".safetensors")
    tensors = interop.read(path)
    with safetensors.safe_open(paths.local(path), "numpy") as file:
      header = file.metadata() or {}
    settings = json.loads(header.get("settings", "{}"))
    made: Any = cls()
    if header.get("format") != _FORMAT or settings.keys() - made.get_params():
      raise InputError(
        f"{path} was not written by NonNegativeEncoder.save of this version"
      )
    made.set_params(**settings)
    parts: dict[str, dict[str, np.ndarray]] = {}
    for name, tensor in tensors.items():
      part, _, rest = name.partition(".")
      parts.setdefault(part, {})[rest] = tensor
    for name in parts.keys() & set(_ARRAYS):
      # [()] makes a number of an array without axes.
      setattr(made, name, parts[name][""][()])
    made.scaling_, made.params_ = Scaling(**parts["scaling"]), parts["network"]
    made.n_features_in_ = len(made.scaling_.mean)
    if "progress" in parts:
      made._progress = parts["progress"]
    if "dimensions" in header:
      words = tuple(map(tuple, json.loads(header["dimensions"])))
      made.names_ = Names(words, **parts["names"])
    if "names" in header:
      made.feature_names_in_ = np.asarray(json.loads(header["names"]), object)
    return made

  def to_sentence_transformers(self: Any, folder: str | pathlib.Path) -> None:
    """Writes the weights as a `SparseAutoEncoder` module of sentence-transformers.

    The module takes embeddings as `transform` does. Its codes are not normalised.

    Raises:
      InputError: the decoder is free, or one of the files exists already.
    """
    # The same network, on embeddings that are neither centred nor scaled. With our
    # scaling `(x - mean) / scale` folded in, codes grow by the factor `scale`, and
    # decoded embeddings stay the same.
    check_is_fitted(self)
    if "decoder" in self.params_:  # whatever `tied` is now
      raise InputError(
        "tied = False: a SparseAutoEncoder's decoder is its encoder transposed"
      )
    config_file, weights_file = _module(folder)
    for file in (config_file, weights_file):  # before one of the two is written
      interop.check_free(file)
    width, out = self.params_["kernel"].shape
    scale = float(self.scaling_.scale)
    tensors = {
      _WEIGHT[0]: self.params_["kernel"].T,
      "pre_bias": self.scaling_.mean + scale * self.params_["pre_bias"],
      "latent_bias": scale * self.params_["bias"],
    }
    tensors = {name: np.asarray(part, np.float32) for name, part in tensors.items()}
    tensors["stats_last_nonzero"] = np.zeros(out, np.int64)
    config = {
      "input_dim": width,
      "hidden_dim": out,
      "k": min(given.active(self.n_active), out) or out,
      "k_aux": min(autoencoder.AUXILIARY, out),
      "normalize": False,
      "dead_threshold": autoencoder.DEAD_AFTER,
    }
    names = {"format": "pt", _WEIGHT[1]: _WEIGHT[0]}
    weights = interop.tensors_to_bytes(tensors, names)
    text = (json.dumps(config, indent=2, allow_nan=False) + "\n").encode()
    interop.publish(weights_file, lambda file: file.write(weights))
    interop.publish(config_file, lambda file: file.write(text))

  @classmethod
  def from_sentence_transformers(cls, folder: str | pathlib.Path) -> Self:
    """Reads a module that sentence-transformers or `to_sentence_transformers` wrote.

    Columns keep the module's order, so the encoder cannot be shortened.

    Raises:
      FileNotFoundError: if config.json or model.safetensors is missing.
      InputError: if they hold another module.
    """
    config_file, weights_file = _module(folder)
    config = _config(config_file)
    try:
      tensors = safetensors.numpy.load_file(weights_file)
    except (safetensors.SafetensorError, TypeError, OSError) as error:
      raise InputError(f"{weights_file} is not a .safetensors file: {error}") from error
    width, out = config["input_dim"], config["hidden_dim"]
    weight = next((name for name in _WEIGHT if name in tensors), _WEIGHT[1])
    shapes = {weight: (out, width), "pre_bias": (width,), "latent_bias": (out,)}
    for name, shape in shapes.items():
      found = tensors[name].shape if name in tensors else None
      if found != shape:
        raise InputError(
          f"{weights_file}: {name} has shape {found}, and {config_file.name} needs "
          f"{shape}: this is not a SparseAutoEncoder"
        )
      if not np.isfinite(tensors[name]).all():
        raise InputError(f"{weights_file}: {name} holds numbers that are not finite")
    made: Any = cls(out, n_active=config["k"])  # type: ignore[call-arg]
    made.params_ = {
      "kernel": np.asarray(tensors[weight].T, np.float32, order="C"),
      "bias": np.asarray(tensors["latent_bias"], np.float32),
      "pre_bias": np.zeros(width, np.float32),
    }
    # The pre-bias as the mean, which is subtracted in float64.
    mean = np.asarray(tensors["pre_bias"], np.float64)
    made.scaling_ = Scaling(mean, np.ones_like(mean), np.ones(()))
    made.n_features_in_ = width
    return made

  def to_onnx(self: Any, path: str | pathlib.Path) -> None:
    """Writes `transform` as a new file NAME.onnx, for runtimes without Python.

    The graph maps `embeddings` [N, E] float32 to dense `codes` [N, D] float32. Needs
    the package onnx.

    Raises:
      InputError: if the file exists already or has another ending, or onnx is missing.
    """
    check_is_fitted(self)
    try:
      import onnx
    except ImportError as error:
      raise InputError("to_onnx needs the package onnx: pip install onnx") from error
    _check_ending(path, ".onnx")
    active = given.active(self.n_active)
    graph = _graph(self.params_, self.scaling_, active, bool(self.normalize))
    opset = [onnx.helper.make_opsetid("", _OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=_IR)
    onnx.checker.check_model(model, full_check=True)
    interop.publish(path, lambda file: file.write(model.SerializeToString()))


def _check_ending(path: str | pathlib.Path, ending: str) -> None:
  if paths.local(path).suffix != ending:
    raise InputError(f"{path}: the name must end in {ending}")


def _module(folder: str | pathlib.Path) -> tuple[pathlib.Path, pathlib.Path]:
  """A module's files: its config and its weights."""
  folder = paths.local(folder)
  return folder / "config.json", folder / "model.safetensors"


def _config(path: pathlib.Path) -> dict[str, Any]:
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


def _graph(params: Params, scaling: Scaling, active: int, normalize: bool) -> Any:
  """The ONNX graph from embeddings [N, E] to codes [N, D], both float32."""
  from onnx import TensorProto, helper, numpy_helper

  width, out = params["kernel"].shape
  constants = {
    "mean": np.float64(scaling.mean),
    "factor": (scaling.deviation > 0) / scaling.scale,
    **{name: params[name] for name in ("pre_bias", "kernel", "bias")},
  }
  # The offset in float64, as in `Scaling`.
  steps = [
    ("Cast", ["embeddings"], ["wide"], {"to": TensorProto.DOUBLE}),
    ("Sub", ["wide", "mean"], ["centred"], {}),
    ("Mul", ["centred", "factor"], ["scaled"], {}),
    ("Cast", ["scaled"], ["narrow"], {"to": TensorProto.FLOAT}),
    ("Sub", ["narrow", "pre_bias"], ["shifted"], {}),
    ("MatMul", ["shifted", "kernel"], ["product"], {}),
    ("Add", ["product", "bias"], ["biased"], {}),
    ("Relu", ["biased"], ["scores"], {}),
  ]
  last = "scores"
  if 0 < active < out:
    constants["active"] = np.array([active], np.int64)
    steps += [
      ("TopK", ["scores", "active"], ["values", "columns"], {"axis": 1}),
      ("Shape", ["scores"], ["shape"], {}),
      ("ConstantOfShape", ["shape"], ["zeros"], {}),
      ("ScatterElements", ["zeros", "columns", "values"], ["sparse"], {"axis": 1}),
    ]
    last = "sparse"
  if normalize:
    constants["least"] = np.float32(1e-30)  # an all-zero code stays zero
    steps += [
      ("ReduceL2", [last], ["norm"], {"axes": [1], "keepdims": 1}),
      ("Max", ["norm", "least"], ["length"], {}),
      ("Div", [last, "length"], ["unit"], {}),
    ]
    last = "unit"
  steps.append(("Identity", [last], ["codes"], {}))
  return helper.make_graph(
    [helper.make_node(kind, a, b, **more) for kind, a, b, more in steps],
    "NonNegativeEncoder",
    [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["N", width])],
    [helper.make_tensor_value_info("codes", TensorProto.FLOAT, ["N", out])],
    [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
  )
