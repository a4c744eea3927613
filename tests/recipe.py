"""The golden files' parameters: each a function of its name and its shape alone."""

import zlib

import numpy as np


def uniform(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
  """Integer hash of the flat index, spread over [-1, 1); float64."""
  mask = 2**32 - 1
  start = (zlib.crc32(name.encode()) + seed * 0x9E3779B9) & mask
  h = (
    np.arange(np.prod(shape, dtype=int), dtype=np.uint64) * 0x9E3779B1 + start
  ) & mask
  h ^= h >> 16
  h = h * 0x85EBCA6B & mask
  h ^= h >> 13
  h = h * 0xC2B2AE35 & mask
  h ^= h >> 16
  return (h.astype(np.float64) / 2**31 - 1).reshape(shape)


def value(name: str, shape: tuple[int, ...]) -> np.ndarray:
  """The parameter or running statistic of that torch name and torch shape."""
  if name.endswith("num_batches_tracked"):
    return np.zeros((), np.int64)
  u = uniform(name, shape)
  if len(shape) > 1:
    u = 0.8 * np.sqrt(6 / np.prod(shape[1:])) * u
  elif name.endswith("running_var"):
    u = 1 + 0.5 * np.abs(u)
  elif name.endswith("weight"):
    u = 1 + 0.1 * u
  else:
    u = 0.1 * u
  return u.astype(np.float32)


def state(tensors: list[dict]) -> dict[str, np.ndarray]:
  """A torch state dict from a golden tensor list, `tensors("NAME")["tensors"]`."""
  return {t["name"]: value(t["name"], tuple(t["shape"])) for t in tensors}


def probe(name: str, array: np.ndarray) -> float:
  """Sum of the entries, in torch's layout, times the probe vector of that name."""
  return float(np.vdot(uniform(f"{name}:probe", array.shape), array.astype(np.float64)))
