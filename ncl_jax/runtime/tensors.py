"""The tensors of a tree by name: their digest, and whether two trees have the same."""

import hashlib
from typing import Any

import jax
import numpy as np

from ncl_jax.errors import InputError


def digest(tree: Any) -> str:
  """SHA-256 (hexadecimal) of the names, dtypes, shapes and bytes of a tree's arrays.

  This process must be able to read the whole arrays.
  """
  state = hashlib.sha256()
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  for path, leaf in leaves:
    array = np.asarray(leaf)
    state.update(f"{_name(path)} {array.dtype}{list(array.shape)}\n".encode())
    state.update(np.ascontiguousarray(array).tobytes())
  return state.hexdigest()


def check_fit(stored: Any, expected: Any, what: str) -> None:
  """Compares the tensor names, shapes and dtypes of two trees.

  Raises:
    InputError: if they differ; names the tensors. `what` stands for the first tree.
  """
  there, here = _shapes(stored), _shapes(expected)
  faults = [
    f"{name}: {there.get(name, 'absent')} there, {here.get(name, 'absent')} here"
    for name in sorted(there.keys() | here.keys())
    if there.get(name) != here.get(name)
  ]
  if faults:
    shown = "; ".join(faults[:5]) + ("; ..." if len(faults) > 5 else "")
    raise InputError(
      f"{what} does not fit: {len(faults)} of {len(here)} tensors differ: {shown}"
    )


def _shapes(tree: Any) -> dict[str, str]:
  """Tensor names to "float32[3, 4]", for arrays and Orbax's metadata."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {
    _name(path): f"{np.dtype(leaf.dtype)}{list(leaf.shape)}" for path, leaf in leaves
  }


def _name(path: tuple[Any, ...]) -> str:
  """The bare names of a path's keys, because Orbax stores named tuples like dicts."""
  return jax.tree_util.keystr(path, simple=True, separator="/")
