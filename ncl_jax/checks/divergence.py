"""Divergence: finds the first step with values that are not finite, and which.

Each step is marked on the device in one int32, which is transferred together with the
loss. So the first bad step is known even if a call makes many steps.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Bit n of a mark stands for the n-th part.
PARTS = (
  "the loss",
  "the gradient",
  "a parameter",
  "a batch statistic",
  "the momentum encoder",
)
REMEDY = "A lower learning rate or a higher temperature usually helps."


def mark(
  loss: Any, gradient: Any, params: Any, batch_stats: Any = (), momentum: Any = ()
) -> jax.Array:
  """Marks which parts hold NaN or infinity after a step: int32 [], a bit per part.

  All arguments are trees of floating-point arrays, after the update. `gradient` may be
  the gradients or their norm; `momentum` is the momentum encoder, if there is one.

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
    marks: [n] from `mark`, of n consecutive steps, on the host.
    last: number of the last step, counted from 1.
    remedy: added to `REMEDY` in the message.

  Raises:
    FloatingPointError: names the first step with values that are not finite.

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
  """Raises unless all floating-point tensors of a tree are finite.

  Raises:
    FloatingPointError: with the names of the first three tensors that are not; `what`
      names the tree.
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
