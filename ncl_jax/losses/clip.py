"""CLIP's loss: InfoNCE between two towers, in both directions."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.losses import rows
from ncl_jax.losses.similarities import PRECISIONS, check_pairs, product, rounded
from ncl_jax.numerics import l2_normalize, on_any_mesh


@on_any_mesh(rows="za")
def clip(
  za: jax.typing.ArrayLike,
  zb: jax.typing.ArrayLike,
  *,
  temperature: jax.typing.ArrayLike,
  block_size: int | None = None,
  precision: str = "highest",
) -> jax.Array:
  """Symmetric InfoNCE of pairs from two towers, for example images and their texts.

  With `s_ij = a_i . b_j / temperature` of rows scaled to unit length, pair n costs
  `(log sum_j exp(s_nj) + log sum_j exp(s_jn)) / 2 - s_nn`. An all-zero row has
  similarity 0 with every other row and gradient 0.

  Args:
    za: [N, D] features of one tower, not normalised.
    zb: [N, D] features of the other tower, in the same order.
    temperature: above 0; may be a traced value.
    block_size: rows at a time; memory is then linear in N. None: all at once.
    precision: of the matrix products: "highest", or "bfloat16".

  Returns:
    [N] the loss of each pair in nats, float32 (float64 if the features are).

  Raises:
    InputError: other shapes or precision, a temperature that is not a finite number
      above 0, or a wrong block size.

  Source: Radford et al. 2021 (arXiv:2103.00020), Figure 3.

  >>> print(clip(jnp.eye(2), jnp.eye(2), temperature=1.0).round(2))
  [0.31 0.31]
  """
  check_pairs(za, zb)
  temperature = checks.positive("temperature", temperature)
  checks.choice("precision", precision, PRECISIONS)
  a, b = l2_normalize(za), l2_normalize(zb)
  positive = rounded(a, precision) * rounded(b, precision)
  positive = jnp.sum(positive, axis=1) / temperature

  def log_sums(queries: jax.Array, keys: jax.Array) -> jax.Array:
    def row(f):
      return jax.nn.logsumexp(product(f[None], keys.T, precision) / temperature)

    return rows.each(row, queries, block_size)

  return (log_sums(a, b) + log_sums(b, a)) / 2 - positive
