"""Divergence: the step at which training stopped being finite, and what did.

A program marks each step on the device, in one int32 that comes to the host together
with the loss. So the first bad step is known also where a call makes many steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# In the order in which a message names them; bit n of a mark is the n-th.
PARTS = (
  "the loss",
  "the gradient",
  "a parameter",
  "a batch statistic",
  "the momentum encoder",
)
REMEDY = "A lower learning rate or a higher temperature usually helps."


def mark(
  loss: Any,
  gradient: Any,
  params: Any,
  batch_stats: Any = (),
  momentum: Any = (),
) -> jax.Array:
  """Marks what holds NaN or infinity after a step.

  Args:
    loss: tree of floating-point arrays, as are the others.
    gradient: the gradients, or their norm.
    params: after the update.
    batch_stats: likewise.
    momentum: the slow copy of the network; None where there is none.

  Returns:
    int32 []: a bit for each of `PARTS`, 0 if all is finite.

  >>> int(mark(jnp.array(1.0), jnp.array(jnp.nan), {"w": jnp.array([1, -jnp.inf])}))
  6
  """
  bits = jnp.int32(0)
  for bit, tree in enumerate((loss, gradient, params, batch_stats, momentum)):
    finite = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree)]
    if finite:
      bits |= (~jnp.stack(finite).all()).astype(jnp.int32) << bit
  return bits


def check(marks: np.ndarray, last: int, remedy: str = "") -> None:
  """Raises at the first marked step.

  Args:
    marks: [n] of n steps in their order, from `mark`, on the host.
    last: number of the last of them, counted from 1.
    remedy: what helps beside `REMEDY`.

  Raises:
    FloatingPointError: naming the first step that left something not finite.

  >>> check(np.array([0, 3]), 8)
  Traceback (most recent call last):
    ...
  FloatingPointError: step 8: the loss and the gradient are not finite. A lower \
learning rate or a higher temperature usually helps.
  """
  bad = np.flatnonzero(marks)
  if bad.size:
    first = int(bad[0])
    step = last - len(marks) + 1 + first
    parts = [part for bit, part in enumerate(PARTS) if marks[first] >> bit & 1]
    verb = "is" if len(parts) == 1 else "are"
    raise FloatingPointError(
      f"step {step}: {_listed(parts)} {verb} not finite. "
      + " ".join(filter(None, (REMEDY, remedy)))
    )


def check_tree(tree: Any, what: str) -> None:
  """Raises unless all numbers of a tree are finite, naming tensors that are not.

  Args:
    tree: of arrays, on the host or on devices; whole numbers are finite.
    what: the tree, in the message.

  Raises:
    FloatingPointError: with the names of the first three.
  """
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  leaves = [x for x in leaves if jnp.issubdtype(jnp.result_type(x[1]), jnp.floating)]
  finite = np.asarray(_finite([x for _, x in leaves])) if leaves else np.ones(0, bool)
  if not finite.all():
    names = [
      jax.tree_util.keystr(leaves[i][0], simple=True, separator="/")
      for i in np.flatnonzero(~finite)
    ]
    shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    raise FloatingPointError(
      f"{what}: {len(names)} of {len(leaves)} tensors hold NaN or infinity: {shown}"
    )


@jax.jit
def _finite(leaves):
  return jnp.stack([jnp.isfinite(x).all() for x in leaves])


def _listed(parts: list[str]) -> str:
  return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
