"""DINO's loss: the student matches its teacher's sharpened and centred distribution."""

import jax
import jax.numpy as jnp

from ncl_jax import checks
from ncl_jax.errors import InputError
from ncl_jax.losses.similarities import check_views
from ncl_jax.numerics import at_least_float32, on_any_mesh


@on_any_mesh(rows="student")
def dino(
  student: jax.typing.ArrayLike,
  teacher: jax.typing.ArrayLike,
  centre: jax.typing.ArrayLike,
  *,
  student_temperature: jax.typing.ArrayLike = 0.1,
  teacher_temperature: jax.typing.ArrayLike = 0.04,
) -> jax.Array:
  """Cross entropy of the teacher's and the student's distributions, across views.

  With `P = softmax((t - centre) / teacher_temperature)` and `log Q = log_softmax(s /
  student_temperature)`, an example costs `-sum_k P_k log Q_k`, where P and Q belong to
  different views; the two directions are averaged. Centring prevents one prototype from
  winning all images. Sharpening prevents a uniform distribution.

  Teacher and centre have no gradient.

  Args:
    student: [N, 2, K] scores of the prototypes for the two views.
    teacher: [N, 2, K] the momentum encoder's scores for the same views.
    centre: [K] subtracted from the teacher's scores, see `dino_centre`.
    student_temperature: above 0.
    teacher_temperature: above 0, and below the student's to sharpen.

  Returns:
    [N] in nats, float32 (float64 if the scores are); the batch's loss is its mean.
    `log K` if the student cannot tell the prototypes apart.

  Raises:
    InputError: other shapes, or a temperature that is not a finite number above 0.

  Source: Caron et al. 2021 (arXiv:2104.14294), Algorithm 1 and Eq. 1, for two global
  views.

  >>> s = jnp.zeros((1, 2, 4))
  >>> print(dino(s, s, jnp.zeros(4)).round(4))  # log 4
  [1.3863]
  """
  check_views(student=student, teacher=teacher)
  student_temperature = checks.positive("student_temperature", student_temperature)
  teacher_temperature = checks.positive("teacher_temperature", teacher_temperature)
  _check_centre(centre, teacher)
  s, t = at_least_float32(student), at_least_float32(teacher)
  t = (t - jnp.asarray(centre, t.dtype)[None, None]) / teacher_temperature
  p = jax.lax.stop_gradient(jax.nn.softmax(t))
  log_q = jax.nn.log_softmax(s / student_temperature)
  return -jnp.mean(jnp.sum(p[:, ::-1] * log_q, axis=2), axis=1)


@on_any_mesh()
def dino_centre(
  centre: jax.typing.ArrayLike, teacher: jax.typing.ArrayLike, momentum: float = 0.9
) -> jax.Array:
  """The centre after a batch: `momentum centre + (1 - momentum) mean teacher`.

  Args:
    centre: [K] the old centre.
    teacher: [N, 2, K] the momentum encoder's scores for the batch.
    momentum: weight of the old centre, in [0, 1].

  Returns:
    [K]; the mean covers the whole batch on any number of devices.

  Raises:
    InputError: other shapes, or another momentum.

  Source: Caron et al. 2021 (arXiv:2104.14294), Eq. 4.

  >>> print(dino_centre(jnp.zeros(2), jnp.array([[[1.0, 3.0], [3.0, 5.0]]]), 0.5))
  [1. 2.]
  """
  momentum = checks.number("momentum", momentum, 0, 1)
  check_views(teacher=teacher)
  _check_centre(centre, teacher)
  t = at_least_float32(teacher)
  mean = jnp.mean(t, axis=(0, 1))
  return momentum * jnp.asarray(centre, mean.dtype) + (1 - momentum) * mean


def _check_centre(centre: jax.typing.ArrayLike, teacher: jax.typing.ArrayLike) -> None:
  shape = checks.real("centre", centre)
  if shape != jnp.shape(teacher)[2:]:
    raise InputError(
      f"centre has shape {list(shape)}: it must be [K], one for each prototype of "
      f"teacher {list(jnp.shape(teacher))}"
    )
