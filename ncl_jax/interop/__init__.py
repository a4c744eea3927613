"""Reads and writes PyTorch checkpoints: files, names, layouts."""

from ncl_jax.interop.files import check_free, publish, read, tensors_to_bytes
from ncl_jax.interop.torch_names import (
  backbone_from_torch,
  from_torch,
  settings,
  to_torch,
)

__all__ = [
  "backbone_from_torch",
  "check_free",
  "from_torch",
  "publish",
  "read",
  "settings",
  "tensors_to_bytes",
  "to_torch",
]
