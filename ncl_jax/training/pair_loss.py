"""The loss of two views that `loss.name` names: a function of their mapped features."""

from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import losses
from ncl_jax.losses.similarities import product
from ncl_jax.numerics import l2_normalize
from ncl_jax.training import loss as loss_lib


def pair_loss(
  config: ConfigDict,
  f: jax.Array,
  keys: jax.Array | None,
  labels: jax.Array,
  temperature: Any,
  mesh: Mesh | None,
) -> jax.Array:
  """The batch's loss by any method but DINO, which `prototype_loss` has.

  Args:
    config: for `loss`.
    f: [N, 2, D] features after the transform; where there is a predictor, the
      predictor's.
    keys: [N, 2, D] the momentum encoder's after the transform; None where there is
      none.
    labels: [N]; read by "sup_con" alone.
    temperature: of the losses that have one.
    mesh: that the batch is split over; None for one device.

  Returns:
    [].
  """
  settings, precision = config.loss, config.loss.precision
  if settings.name == "sup_con":
    return loss_lib.sup_con(precision)(f, labels, temperature).mean()
  if settings.name == "nt_xent":
    return loss_lib.nt_xent(mesh, precision)(f, temperature).mean()
  if settings.name == "clip":
    return loss_lib.clip(precision)(f, temperature).mean()
  if settings.name == "spectral":
    return losses.spectral(f, precision=precision)
  if settings.name == "barlow_twins":
    return losses.barlow_twins(
      f[:, 0], f[:, 1], off_diagonal=settings.off_diagonal, precision=precision
    )
  if settings.name == "vicreg":
    return losses.vicreg(
      f[:, 0],
      f[:, 1],
      invariance=settings.invariance,
      variance=settings.variance,
      covariance=settings.covariance,
      precision=precision,
    )
  assert keys is not None
  if settings.name == "byol":
    return losses.byol(f, keys).mean()
  loss = losses.moco_v3(f, keys, temperature=temperature, precision=precision)
  return loss.mean()


def prototype_loss(
  config: ConfigDict,
  student: tuple[jax.Array, jax.Array],
  teacher: tuple[jax.Array, jax.Array],
  centre: jax.Array,
  temperature: Any,
) -> tuple[jax.Array, jax.Array]:
  """DINO's loss: scores are cosines of features and prototypes, both after the
  transform.

  Args:
    config: for `loss`.
    student: features [N, 2, D] and prototypes [K, D].
    teacher: those of the momentum encoder.
    centre: [K].
    temperature: the student's.

  Returns:
    (loss [], the teacher's scores [N, 2, K], for the centre).
  """

  def scores(f, prototypes):
    f, prototypes = l2_normalize(f), l2_normalize(prototypes)
    flat = f.reshape(-1, f.shape[-1])
    return product(flat, prototypes.T, config.loss.precision).reshape(*f.shape[:2], -1)

  given = jax.lax.stop_gradient(scores(*teacher))
  loss = losses.dino(
    scores(*student),
    given,
    centre,
    student_temperature=temperature,
    teacher_temperature=config.loss.teacher_temperature,
  )
  return loss.mean(), given
