"""A batch through the network in chunks: the memory of one, the loss of all."""

from collections.abc import Callable
from typing import Any

import jax

Forward = Callable[[Any, Any, Any], tuple[Any, Any]]


def in_chunks(forward: Forward, chunks: int) -> Forward:
  """Runs a network on a batch chunk after chunk, to be differentiated.

  A loss of all outputs, negatives from the whole batch included, has its exact gradient
  in three parts: all chunks forward; the loss and its derivative by the outputs; each
  chunk forward again and back, the parameters' gradients summed. Memory for activations
  is that of one chunk, the price a second forward pass.

  Chunk j has the rows n with n mod k = j, whatever the number of devices; rows stay on
  theirs if k times the devices divides N. BatchNorm's batch statistics are those of a
  chunk, so the result differs from the undivided batch's; its running statistics are
  updated chunk by chunk, j = 0 first.

  Args:
    forward: `forward(params, moving, rows) -> (outputs, moving)`; rows is a tree of
      arrays [N, ...], outputs one of arrays [N V, ...], V rows after each other for
      each row given. No derivative passes through `moving`.
    chunks: k, at least 1; 1 returns `forward` itself. N must be a multiple.

  Returns:
    A function like `forward`, outputs in the order of the rows.

  Reference: Gao et al. 2021 (arXiv:2101.06983), GradCache; here by rematerialisation.

  >>> import jax.numpy as jnp
  >>> def centre(params, calls, x):
  ...   return params * (x - x.mean()), calls + 1
  >>> y, calls = in_chunks(centre, 2)(2.0, 0, jnp.array([1.0, 5.0, 3.0, 9.0]))
  >>> y.tolist(), int(calls)
  ([-2.0, -4.0, 2.0, 4.0], 2)
  """
  if chunks == 1:
    return forward

  def split(x):
    # The axis of the chunks stands inside: each device splits its own rows.
    return x.reshape(-1, chunks, *x.shape[1:]).swapaxes(0, 1)

  def keep(new, old):
    # A loop's state keeps its types; derivatives pass through the outputs alone.
    return jax.lax.stop_gradient(new).astype(old.dtype)

  def chunked(params, moving, rows):
    def one(moving, chunk):
      outputs, moved = forward(params, moving, chunk)
      return jax.tree.map(keep, moved, moving), outputs

    # The second pass is a loop of its own: the compiler cannot merge it with the first.
    one = jax.checkpoint(one, prevent_cse=False)
    moving, outputs = jax.lax.scan(one, moving, jax.tree.map(split, rows))
    n = jax.tree.leaves(rows)[0].shape[0] // chunks

    def join(y):
      y = y.reshape(chunks, n, -1, *y.shape[2:]).swapaxes(0, 1)
      return y.reshape(-1, *y.shape[3:])

    return jax.tree.map(join, outputs), moving

  return chunked
