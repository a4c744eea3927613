"""Losses on feature arrays: they see the global batch and know no mesh and no model."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.numerics import l2_normalize

__all__ = ["l2_normalize", "nt_xent", "supervised_nt_xent"]


def nt_xent(z: jax.typing.ArrayLike, *, temperature: jax.typing.ArrayLike) -> jax.Array:
  """NT-Xent, the contrastive loss of SimCLR: InfoNCE with in-batch negatives.

  With rows `f = z / |z|` and `s_ij = f_i . f_j / temperature`, row i whose other view
  is p costs `-log(exp(s_ip) / sum_{j != i} exp(s_ij))`: one positive, 2N - 2 negatives.
  Non-negative contrastive learning is the same loss of `nonneg.apply_map(z, name)`.

  An all-zero row has similarity 0 with every other and gradient 0. One example alone
  has no negatives: loss 0. Under `jax.jit` with the N axis sharded, negatives come from
  the whole batch, for one gather of the embeddings.

  Args:
    z: [N, 2, D] features of the two views of N examples, not normalised.
    temperature: above 0; the recipes use 0.2. May be a traced value.

  Returns:
    [N, 2] the loss of each view in nats, float32 (float64 if `z` is); the batch's loss
    is its mean.

  Raises:
    InputError: another shape, or a temperature that is not a finite number above 0.

  Source: Chen et al. 2020 (arXiv:2002.05709), Eq. 1; the loss of Wang et al. 2024
  (arXiv:2403.12459).

  >>> z = jnp.array([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]])
  >>> print(nt_xent(z, temperature=0.5).round(2))
  [[0.24 0.24]
   [0.24 0.24]]
  """
  s = _similarities(z, temperature)
  i = jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
  j = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
  positive = jnp.sum(jnp.where(j == i ^ 1, s, 0), axis=1)
  return (jax.nn.logsumexp(s, axis=1) - positive).reshape(-1, 2)


def supervised_nt_xent(
  z: jax.typing.ArrayLike,
  labels: jax.typing.ArrayLike,
  *,
  temperature: jax.typing.ArrayLike,
) -> jax.Array:
  """NT-Xent in which all rows of a class are positives, summed inside the logarithm.

  With `s_ij` as in `nt_xent`, row i with the positives P_i = {j != i of the same label}
  costs `-log(sum_{j in P_i} exp(s_ij) / sum_{j != i} exp(s_ij))`. If each example has a
  label of its own, it is `nt_xent`.

  Args:
    z: [N, 2, D] features of the two views of N examples, not normalised.
    labels: [N] int, the examples' classes; -1 = unknown, a class of its own.
    temperature: above 0; may be a traced value.

  Returns:
    [N, 2] the loss of each view in nats, float32 (float64 if `z` is).

  Raises:
    InputError: other shapes, or a temperature that is not a finite number above 0.

  Source: the loss of the released code of Wang et al. 2024 (arXiv:2403.12459), given
  classes instead of positions.

  >>> z = jnp.array([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]])
  >>> print(abs(supervised_nt_xent(z, jnp.array([4, 4]), temperature=0.5)))
  [[0. 0.]
   [0. 0.]]
  """
  s = _similarities(z, temperature)
  if jnp.shape(labels) != jnp.shape(z)[:1]:
    raise InputError(
      f"labels have shape {list(jnp.shape(labels))}: they must be [N], one for each "
      f"example of z {list(jnp.shape(z))}"
    )
  labels = jnp.asarray(labels)
  # Below every class, and another for each example.
  alone = -1 - jnp.arange(labels.shape[0], dtype=labels.dtype)
  rows = jnp.repeat(jnp.where(labels < 0, alone, labels), 2)
  positives = jnp.where(rows[:, None] == rows[None], s, -jnp.inf)
  loss = jax.nn.logsumexp(s, axis=1) - jax.nn.logsumexp(positives, axis=1)
  return loss.reshape(-1, 2)


def _similarities(
  z: jax.typing.ArrayLike, temperature: jax.typing.ArrayLike
) -> jax.Array:
  """Cosines over temperature of all pairs of rows, [2N, 2N]; -inf with oneself."""
  shape = jnp.shape(z)
  if len(shape) != 3 or shape[1] != 2 or 0 in shape:
    raise InputError(
      f"z has shape {list(shape)}: it must be [N, 2, D], two views of each example"
    )
  checks.positive("temperature", temperature)
  rows = 2 * shape[0]
  f = l2_normalize(z).reshape(rows, shape[2])
  # Similarities lie within 1/temperature: rounding them to bfloat16 or TF32, as some
  # devices do by default, would be seen in the loss.
  s = jnp.matmul(f, f.T, precision="highest") / temperature
  # Masks instead of indexing: each device keeps its rows of `s`, nothing moves.
  i = jax.lax.broadcasted_iota(jnp.int32, s.shape, 0)
  j = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
  return jnp.where(i == j, -jnp.inf, s)
