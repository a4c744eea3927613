"""BYOL's loss: predict the momentum encoder's output of the other view."""

import jax
import jax.numpy as jnp

from ncl_jax.losses.similarities import check_views
from ncl_jax.numerics import l2_normalize, on_any_mesh


@on_any_mesh(rows="predictions")
def byol(predictions: jax.typing.ArrayLike, targets: jax.typing.ArrayLike) -> jax.Array:
  """Squared distance between each view's prediction and the other view's target.

  With rows of unit length, `(2 - 2 p_n . t'_n) + (2 - 2 p'_n . t_n)`, where p, t belong
  to the first and p', t' to the second view. There are no negatives. Collapse is
  avoided because targets have no gradient and change slowly.

  An all-zero row has cosine 0 with every other row, so it costs 2 and has gradient 0.

  Args:
    predictions: [N, 2, D] the predictor's outputs for the two views, not normalised.
    targets: [N, 2, D] the momentum encoder's outputs for the same views.

  Returns:
    [N] in [0, 8], float32 (float64 if the features are); the batch's loss is its mean.
    0 for perfect predictions, 4 for orthogonal ones.

  Raises:
    InputError: other shapes.

  Source: Grill et al. 2020 (arXiv:2006.07733), Eq. 2 and its symmetric form.

  >>> p = jnp.array([[[1.0, 0.0], [0.0, 2.0]]])
  >>> byol(p, p[:, ::-1]).tolist(), byol(p, p).tolist()
  ([0.0], [4.0])
  """
  check_views(predictions=predictions, targets=targets)
  p, t = l2_normalize(predictions), jax.lax.stop_gradient(l2_normalize(targets))
  return jnp.sum(2 - 2 * jnp.sum(p * t[:, ::-1], axis=2), axis=1)
