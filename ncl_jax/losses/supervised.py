"""Contrastive losses in which all rows of a class are positives."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.losses import rows
from ncl_jax.losses.similarities import PRECISIONS, all_pairs, check_views, product
from ncl_jax.numerics import l2_normalize, on_any_mesh


@on_any_mesh(rows="z")
def sup_con(
  z: jax.typing.ArrayLike,
  labels: jax.typing.ArrayLike,
  *,
  temperature: jax.typing.ArrayLike,
  block_size: int | None = None,
  precision: str = "highest",
) -> jax.Array:
  """Supervised contrastive loss, with the mean over positives outside the logarithm.

  With `s_ij` as in `nt_xent`, row i with the positives P_i = {j != i of the same label}
  costs `log sum_{j != i} exp(s_ij) - mean_{p in P_i} s_ip`. If every example has a
  different label, this equals `nt_xent`.

  Args:
    z: [N, 2, D] features of the two views of N examples, not normalised.
    labels: [N] integers of any width, the examples' classes; -1 for no label, a class
      of its own.
    temperature: above 0; may be a traced value.
    block_size: rows at a time; memory is then linear in N. None: all at once.
    precision: of the matrix products: "highest", or "bfloat16".

  Returns:
    [N, 2] the loss of each view in nats, float32 (float64 if `z` is).

  Raises:
    InputError: other shapes, labels or precision, a temperature that is not a finite
      number above 0, or a wrong block size.

  Source: Khosla et al. 2020 (arXiv:2004.11362), Eq. 2.

  >>> z = jnp.array([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]])
  >>> print(sup_con(z, jnp.array([4, 4]), temperature=1.0).round(1))
  [[1.2 1.2]
   [1.2 1.2]]
  """
  check_views(z=z)
  temperature = checks.positive("temperature", temperature)
  checks.choice("precision", precision, PRECISIONS)
  f = l2_normalize(z).reshape(-1, jnp.shape(z)[2])
  label_of = _row_labels(z, labels)
  numbers = jnp.arange(len(f))

  def row(own):
    i, f_i, label = own
    s = product(f_i[None], f.T, precision)[0] / temperature
    other = numbers != i
    positive = other & (label_of == label)
    mean = jnp.sum(jnp.where(positive, s, 0)) / jnp.sum(positive, dtype=s.dtype)
    return jax.nn.logsumexp(jnp.where(other, s, -jnp.inf)) - mean

  return rows.each(row, (numbers, f, label_of), block_size).reshape(-1, 2)


@on_any_mesh(rows="z")
def supervised_nt_xent(
  z: jax.typing.ArrayLike,
  labels: jax.typing.ArrayLike,
  *,
  temperature: jax.typing.ArrayLike,
) -> jax.Array:
  """NT-Xent in which all rows of a class are positives, summed inside the logarithm.

  With `s_ij` as in `nt_xent`, row i with the positives P_i = {j != i of the same label}
  costs `-log(sum_{j in P_i} exp(s_ij) / sum_{j != i} exp(s_ij))`. If every example has
  a different label, this equals `nt_xent`.

  Args:
    z: [N, 2, D] features of the two views of N examples, not normalised.
    labels: [N] integers of any width, the examples' classes; -1 for no label, a class
      of its own.
    temperature: above 0; may be a traced value.

  Returns:
    [N, 2] the loss of each view in nats, float32 (float64 if `z` is).

  Raises:
    InputError: other shapes or labels, or a temperature that is not a finite number
      above 0.

  Source: the released code's loss (Wang et al. 2024, arXiv:2403.12459), with classes
  instead of positions.

  >>> z = jnp.array([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]])
  >>> print(abs(supervised_nt_xent(z, jnp.array([4, 4]), temperature=0.5)))
  [[0. 0.]
   [0. 0.]]
  """
  s = all_pairs(z, temperature, "highest")
  label_of = _row_labels(z, labels)
  positives = jnp.where(label_of[:, None] == label_of[None], s, -jnp.inf)
  loss = jax.nn.logsumexp(s, axis=1) - jax.nn.logsumexp(positives, axis=1)
  return loss.reshape(-1, 2)


def _row_labels(z: jax.typing.ArrayLike, labels: jax.typing.ArrayLike) -> jax.Array:
  """The label of each row, [2N]; an unlabelled example gets one of its own."""
  (of,) = checks.identities(("labels", labels, jnp.shape(z)[0]))
  # Unique for each example and below every class.
  alone = -1 - jnp.arange(len(of), dtype=of.dtype)
  return jnp.repeat(jnp.where(of < 0, alone, of), 2)
