"""Files of named tensors: .npz, .safetensors and, with torch installed, torch's."""

import importlib
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import IO, Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from ncl_jax.checks import divergence
from ncl_jax.errors import InputError, naming
from ncl_jax.host import npz, paths

_TORCH = (".ckpt", ".pth", ".pt")
FORMS = (".npz", ".safetensors", *_TORCH)
# Keys under which Lightning and others store the network.
_NESTS = ("state_dict", "model")
_CONVERT = """\
  import torch, safetensors.torch
  state = torch.load({source!r}, map_location="cpu", weights_only={safe})
  safetensors.torch.save_file({{k: v.contiguous() for k, v in \
state.get("state_dict", state).items()}}, {target!r})"""


def read(path: str | pathlib.Path) -> dict[str, np.ndarray]:
  """The tensors of a file, by name; nothing in it is executed.

  Args:
    path: `.npz`, `.safetensors`, or torch's `.ckpt`, `.pth` or `.pt`, which need torch
      installed and are read by its weights-only loader. A dict under `state_dict` or
      `model`, as in Lightning's checkpoints, is unwrapped.

  Returns:
    name -> floating-point array, or an integer (torch's counters).

  Raises:
    FileNotFoundError: if there is no such file.
    InputError: if it holds anything else, or numbers that are not finite.
  """
  path = paths.local(path).resolve()
  if not path.exists():
    raise FileNotFoundError(f"{path}: there is no such file")
  if path.suffix not in FORMS:
    raise InputError(f"{path} has an unknown ending; allowed: {', '.join(FORMS)}")
  if not path.is_file() or path.stat().st_size == 0:
    raise InputError(f"{path} is {'empty' if path.is_file() else 'not a file'}")
  if path.suffix == ".npz":
    arrays = npz.read(path)
  elif path.suffix == ".safetensors":
    try:
      arrays = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, TypeError) as error:
      raise InputError(
        f"{path} is not a .safetensors file: {str(error)[:200]}"
      ) from error
  else:
    arrays = _read_torch(path)
  if not arrays:
    raise InputError(f"{path} holds no tensor")
  for name, array in arrays.items():
    if jnp.issubdtype(array.dtype, jnp.floating):
      if not np.isfinite(array).all():
        raise InputError(f"{path}: {name} holds numbers that are not finite")
    elif array.ndim or not np.issubdtype(array.dtype, np.integer):
      raise InputError(f"{path}: {name} is {array.dtype}: weights are floating-point")
  return arrays


def tensors_to_bytes(
  arrays: Mapping[str, np.ndarray], metadata: dict[str, str]
) -> bytes:
  """The content of a .safetensors file, with metadata in its header.

  Raises:
    FloatingPointError: if a tensor holds NaN or infinity; names it.
  """
  divergence.check_tree(dict(arrays), "the file is not written")
  # The format stores raw memory, so a transposed view must be made contiguous.
  dense = {name: np.asarray(array, order="C") for name, array in arrays.items()}
  return safetensors.numpy.save(dense, metadata)


def check_free(path: str | pathlib.Path) -> pathlib.Path:
  """The absolute path of a new file.

  Raises:
    InputError: if the file exists already.
  """
  path = paths.local(path).resolve()
  if path.exists():
    raise InputError(f"{path} exists already: remove it or choose another name")
  return path


def publish(path: str | pathlib.Path, write: Callable[[IO[bytes]], Any]) -> None:
  """Writes a file completely or not at all, and never replaces an existing one.

  The folder is created if necessary. `write` is given the open file.

  Raises:
    InputError: if the file exists already.
  """
  path = check_free(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  swap = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  try:
    with naming(path):
      with swap.open("wb") as file:
        write(file)
      try:
        os.link(swap, path)
      except OSError:
        check_free(path)  # raises if another process was first
        swap.replace(path)  # a file system without hard links
  finally:
    swap.unlink(missing_ok=True)


def _read_torch(path: pathlib.Path) -> dict[str, np.ndarray]:
  try:
    # By name, so that nothing here needs torch, not even the type checker.
    torch = importlib.import_module("torch")
  except (ImportError, OSError) as error:
    raise InputError(
      f"{path} needs torch, which cannot be imported here. Install it (pip install "
      "torch; its build for the CPU is enough), or convert the file where torch is:\n"
      f"{_conversion(path, safe=True)}"
    ) from error
  try:
    state = torch.load(path, map_location="cpu", weights_only=True)
  except Exception as error:  # noqa: BLE001 - whatever a foreign file makes it raise
    raise InputError(
      f"{path} is not a file of tensors that torch opens without executing code from "
      f"it: {str(error)[:300]}\nTo convert a checkpoint that also holds Python "
      "objects, run these lines. They execute code from the file: run them only if you "
      "trust its origin.\n"
      f"{_conversion(path, safe=False)}"
    ) from error
  for nest in _NESTS:
    if isinstance(state, Mapping) and isinstance(state.get(nest), Mapping):
      state = state[nest]
  if not isinstance(state, Mapping):
    raise InputError(f"{path} holds a {type(state).__name__} instead of named tensors")
  arrays = {}
  for name, tensor in state.items():
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
      raise InputError(f"{path}: {name!r} is a {type(tensor).__name__}, not a tensor")
    # numpy has no bfloat16.
    small = tensor.dtype == torch.bfloat16
    arrays[name] = (tensor.float() if small else tensor).detach().numpy()
  return arrays


def _conversion(path: pathlib.Path, *, safe: bool) -> str:
  target = str(path.with_suffix(".safetensors"))
  return _CONVERT.format(source=str(path), target=target, safe=safe)
