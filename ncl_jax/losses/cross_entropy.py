"""Cross entropy of features and class weights (CE); with a transform, NCE."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.losses.similarities import product
from ncl_jax.numerics import at_least_float32, on_any_mesh


@on_any_mesh(rows="features")
def scores(
  features: jax.typing.ArrayLike,
  prototypes: jax.typing.ArrayLike,
  *,
  bias: jax.typing.ArrayLike | None = None,
  scale: jax.typing.ArrayLike = 1.0,
) -> jax.Array:
  """The logits of each class: `scale f_n . w_k + b_k`.

  Args:
    features: [N, D].
    prototypes: [K, D], the class weights.
    bias: [K], or None.
    scale: above 0.

  Returns:
    [N, K], float32 (float64 if both are).

  Raises:
    InputError: shapes that do not fit, or a scale that is not a finite number above 0.

  >>> scores(jnp.array([[1.0, 2.0]]), jnp.eye(2), scale=3.0).tolist()
  [[3.0, 6.0]]
  """
  scale = checks.positive("scale", scale)
  f_shape = checks.real("features", features)
  w_shape = checks.real("prototypes", prototypes)
  fit = len(f_shape) == len(w_shape) == 2 and f_shape[1] == w_shape[1]
  if not fit or 0 in w_shape:
    raise InputError(
      f"features {list(f_shape)} and prototypes {list(w_shape)}: they must be [N, D] "
      "and [K, D], D and K at least 1"
    )
  f, w = at_least_float32(jnp.asarray(features)), jnp.asarray(prototypes)
  out = jnp.asarray(scale * product(f, w.T.astype(f.dtype), "highest"))
  if bias is None:
    return out
  if checks.real("bias", bias) != w_shape[:1]:
    raise InputError(
      f"bias has shape {list(jnp.shape(bias))}: it must be [K], K = {w_shape[0]}"
    )
  return out + jnp.asarray(bias, out.dtype)[None]


@on_any_mesh(rows="features")
def cross_entropy(
  features: jax.typing.ArrayLike,
  prototypes: jax.typing.ArrayLike,
  labels: jax.typing.ArrayLike,
  *,
  bias: jax.typing.ArrayLike | None = None,
  scale: jax.typing.ArrayLike = 1.0,
  label_smoothing: float = 0.0,
) -> jax.Array:
  """Cross entropy of the class logits; NCE if both arguments are non-negative.

  With `s_nk = scale f_n . w_k + b_k` and a target t_n (one-hot for a label), example n
  costs `-sum_k t_nk log softmax(s_n)_k`. For non-negative cross entropy (NCE), apply
  the transform to features and prototypes, and use no bias. Label smoothing e changes
  the target to `(1 - e) t + e / K`.

  Args:
    features: [N, D], not normalised.
    prototypes: [K, D], the class weights.
    labels: [N] integers of any width in [0, K), or -1 = unknown; or [N, K] non-negative
      target weights, where a row of zeros is unknown.
    bias: [K], or None; -inf excludes a class.
    scale: above 0.
    label_smoothing: e, in [0, 1).

  Returns:
    [N] in nats, float32 (float64 if the features are); 0 where the label is unknown.
    For a mean, divide the sum by the number of known labels.

  Raises:
    InputError: shapes that do not fit, or a setting or label out of range. Under
      `jax.jit` labels cannot be checked, and one out of range gives NaN.

  Source: Wang et al. 2024 (arXiv:2403.12459), the supervised extension.

  >>> w = jnp.array([[1.0, 0.0], [0.0, -1.0]])
  >>> f = jnp.array([[0.0, 1.0]])
  >>> print(cross_entropy(f, w, jnp.array([0]))[0].round(2))  # log(1 + e^-1)
  0.31
  >>> print(cross_entropy(f, jax.nn.relu(w), jnp.array([0]))[0].round(2))  # log 2
  0.69
  """
  label_smoothing = checks.number("label_smoothing", label_smoothing, 0, below=1)
  s = scores(features, prototypes, bias=bias, scale=scale)
  target = _target(labels, *s.shape).astype(s.dtype)
  mass = target.sum(-1, keepdims=True)
  target = (1 - label_smoothing) * target + label_smoothing / s.shape[1] * mass
  log_p = jax.nn.log_softmax(s)
  # 0 * -inf would be NaN for a class excluded by a bias of -inf.
  log_p = jnp.where((target == 0) & jnp.isneginf(log_p), 0, log_p)
  return -jnp.sum(target * log_p, axis=-1)


def _target(labels: jax.typing.ArrayLike, n: int, classes: int) -> jax.Array:
  """The target weights [N, K]."""
  shape = checks.array("labels", labels).shape
  if shape == (n, classes):
    checks.real("labels", labels)
    return jnp.asarray(labels)
  if len(shape) != 1:
    raise InputError(
      f"labels have shape {list(shape)}: they must be [{n}] or [{n}, {classes}]"
    )
  labels = checks.labels("labels", labels, n, classes)
  outside = (labels < -1) | (labels >= classes)
  return jnp.where(outside[:, None], jnp.nan, jax.nn.one_hot(labels, classes))
