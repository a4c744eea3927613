"""A loss row by row: all rows at once, or in blocks that are rematerialised."""

from collections.abc import Callable
from typing import Any

import jax

from ncl_jax import checks


def each(
  row_loss: Callable[[Any], jax.Array], rows: Any, block_size: int | None
) -> jax.Array:
  """Applies a function of one row to all rows of a tree of arrays [B, ...]: [B].

  `block_size` rows at a time take the memory of one block, forward and backward.
  """
  if block_size is None:
    return jax.vmap(row_loss)(rows)
  checks.whole("block_size", block_size, 1)
  again = jax.checkpoint(row_loss, prevent_cse=False)
  return jax.lax.map(again, rows, batch_size=block_size)
