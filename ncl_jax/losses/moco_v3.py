"""MoCo v3's loss: each view's query against the momentum encoder's keys."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.losses.similarities import PRECISIONS, check_views, product, rounded
from ncl_jax.numerics import l2_normalize, on_any_mesh


@on_any_mesh(rows="queries")
def moco_v3(
  queries: jax.typing.ArrayLike,
  keys: jax.typing.ArrayLike,
  *,
  temperature: jax.typing.ArrayLike,
  precision: str = "highest",
) -> jax.Array:
  """Symmetric InfoNCE between a predictor's outputs and a momentum encoder's keys.

  With rows of unit length and `s_nm = q_n . k_m / T`, where q belongs to one view and k
  to the other, a view costs `2 T (log sum_m exp(s_nm) - s_nn)`. The negatives are the
  keys of the other examples. An example costs the sum of its two views.

  Keys have no gradient. An all-zero row has similarity 0 with every other row and
  gradient 0. Under `jax.jit` with the N axis sharded, negatives come from the whole
  batch, at the cost of one gather of the keys.

  Args:
    queries: [N, 2, D] the predictor's outputs for the two views, not normalised.
    keys: [N, 2, D] the momentum encoder's outputs for the same views.
    temperature: T, above 0; the paper uses 1.0 for ResNets, 0.2 for ViT. May be a
      traced value.
    precision: of the matrix products: "highest", or "bfloat16".

  Returns:
    [N] the loss of each example, float32 (float64 if the features are); the batch's
    loss is its mean. If all keys are equal it is `4 T log N`.

  Raises:
    InputError: other shapes or precision, or a temperature that is not a finite number
      above 0.

  Source: Chen, Xie & He 2021 (arXiv:2104.02057), Algorithm 1.

  >>> z = jnp.array([[[1.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [0.0, 3.0]]])
  >>> print(moco_v3(z, z, temperature=0.5).round(3))  # 2 log(1 + exp(-2))
  [0.254 0.254]
  """
  check_views(queries=queries, keys=keys)
  temperature = checks.positive("temperature", temperature)
  checks.choice("precision", precision, PRECISIONS)
  q, k = l2_normalize(queries), jax.lax.stop_gradient(l2_normalize(keys))

  def view(q: jax.Array, k: jax.Array) -> jax.Array:
    s = product(q, k.T, precision) / temperature
    positive = rounded(q, precision) * rounded(k, precision)
    return jax.nn.logsumexp(s, axis=1) - jnp.sum(positive, axis=1) / temperature

  both = view(q[:, 0], k[:, 1]) + view(q[:, 1], k[:, 0])
  return 2 * jnp.asarray(temperature, both.dtype) * both
