"""Writes an encoder as an ONNX graph."""

import pathlib

import numpy as np

from ncl_jax import interop
from ncl_jax.encoder.scaling import Scaling
from ncl_jax.errors import InputError

ENDING = ".onnx"
# Runtimes of 2022 and later read both.
_OPSET, _IR = 17, 8


def write(
  path: str | pathlib.Path,
  params: dict[str, np.ndarray],
  scaling: Scaling,
  active: int,
  normalize: bool,
) -> None:
  """Writes the graph from embeddings [N, E] to codes [N, D], both float32.

  Args:
    path: of a new file NAME.onnx.
    params: "kernel" [E, D], "bias" [D] and "pre_bias" [E].
    scaling: of the embeddings.
    active: number of active dimensions of a code; 0 = all.
    normalize: whether codes have unit length.

  Raises:
    InputError: if the file exists already or has another ending, or onnx is missing.
  """
  try:
    import onnx
    from onnx import helper, numpy_helper
  except ImportError as error:
    raise InputError("to_onnx needs the package onnx: pip install onnx") from error
  if pathlib.PurePath(path).suffix != ENDING:
    raise InputError(f"{path}: the name of an ONNX graph ends in {ENDING}")
  width, out = params["kernel"].shape
  constants = {
    "mean": np.float64(scaling.mean),
    "factor": (scaling.deviation > 0) / scaling.scale,
    **{name: params[name] for name in ("pre_bias", "kernel", "bias")},
  }
  # The offset in float64, as in `Scaling`.
  steps = [
    ("Cast", ["embeddings"], ["wide"], {"to": onnx.TensorProto.DOUBLE}),
    ("Sub", ["wide", "mean"], ["centred"], {}),
    ("Mul", ["centred", "factor"], ["scaled"], {}),
    ("Cast", ["scaled"], ["narrow"], {"to": onnx.TensorProto.FLOAT}),
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
  real = onnx.TensorProto.FLOAT
  graph = helper.make_graph(
    [helper.make_node(kind, a, b, **more) for kind, a, b, more in steps],
    "NonNegativeEncoder",
    [helper.make_tensor_value_info("embeddings", real, ["N", width])],
    [helper.make_tensor_value_info("codes", real, ["N", out])],
    [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
  )
  opset = [helper.make_opsetid("", _OPSET)]
  model = helper.make_model(graph, opset_imports=opset, ir_version=_IR)
  onnx.checker.check_model(model, full_check=True)
  interop.publish(path, lambda file: file.write(model.SerializeToString()))
