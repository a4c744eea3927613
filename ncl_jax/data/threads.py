"""Reads images in several threads that live as long as the process."""

import concurrent.futures
import functools
from collections.abc import Callable

import numpy as np

from ncl_jax.host import resources


def read(
  read_row: Callable[[int], np.ndarray], rows: np.ndarray, shape: tuple[int, ...]
) -> np.ndarray:
  """`read_row(row)` of each of `rows` [n], in several threads: uint8 [n, *shape]."""
  images = np.empty((len(rows), *shape), np.uint8)

  def one(i: int) -> None:
    images[i] = read_row(int(rows[i]))

  for _ in pool().map(one, range(len(rows))):
    pass
  return images


def take(pixels: np.ndarray, rows: np.ndarray) -> np.ndarray:
  """`pixels[rows]` in several threads, which wait for the disk at the same time.

  Args:
    pixels: uint8 [N, H, W, C], mapped into memory.
    rows: positions [n], from 0 to N - 1.
  """
  if len(rows) and not 0 <= rows.min() <= rows.max() < len(pixels):
    raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(pixels)} images")
  images = np.empty((len(rows), *pixels.shape[1:]), np.uint8)
  step = -(-len(rows) // count()) or 1

  def part(start: int) -> None:
    of = slice(start, start + step)
    # The mode that writes into `out` directly.
    np.take(pixels, rows[of], 0, out=images[of], mode="clip")

  for _ in pool().map(part, range(0, len(rows), step)):
    pass
  return images


@functools.cache
def pool() -> concurrent.futures.ThreadPoolExecutor:
  """Threads that live as long as the process; starting them per batch takes time."""
  return concurrent.futures.ThreadPoolExecutor(count(), "decode")


def count() -> int:
  """A few more threads than cores, because some wait for the disk."""
  return min(32, resources.cores() + 4)
