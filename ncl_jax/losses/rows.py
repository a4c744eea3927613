"""A loss row by row: all rows at once, or in blocks that are rematerialised."""

from collections.abc import Callable
from typing import Any

import jax

from ncl_jax import checks


def each(
  row_loss: Callable[[Any], jax.Array], rows: Any, block_size: int | None
) -> jax.Array:
  """Applies a function of one row to all rows of a tree of arrays; returns [B].

  Args:
    rows: tree of arrays [B, ...].
    block_size: rows at a time; memory is that of one block, forward and backward. None:
      all.

  Raises:
    InputError: a block size that is not an int of at least 1.
  """
  if block_size is None:
    return jax.vmap(row_loss)(rows)
  checks.whole("block_size", block_size, 1)
  again = jax.checkpoint(row_loss, prevent_cse=False)
  return jax.lax.map(again, rows, batch_size=block_size)
