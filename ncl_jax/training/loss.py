"""The loss of the train step around a method's own: transform, temperature, penalty."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import methods, nonneg, numerics
from ncl_jax.losses.similarities import product
from ncl_jax.numerics import l2_normalize


def of_pairs(
  config: ConfigDict,
  params: Any,
  teacher: Any,
  seen: dict[str, jax.Array],
  labels: jax.Array,
  mesh: Mesh | None,
) -> tuple[jax.Array, dict[str, jax.Array], dict[str, jax.Array]]:
  """The loss of a batch of pairs of views, with its penalty.

  Args:
    params: of the network; of a method with prototypes also these.
    teacher: the momentum encoder, see `ema.init`; None without one.
    seen: outputs of the forward pass: "z" [2 N, D] before the transform, with a
      predictor its output "predicted", with a momentum encoder its output "keys".

  Returns:
    (loss [], values for the log, what `ema.move` needs of the batch).
  """
  method, for_teacher = methods.of(config), {}
  f = _pairs(config, seen.get("predicted", seen["z"]))
  keys: Any = _pairs(config, seen["keys"]) if "keys" in seen else None
  learnt = temperature(config, params)
  centre = None
  if method.prototypes:
    student, teachers = (
      nonneg.apply(p["prototypes"], config.loss.transform)
      for p in (params, teacher["params"])
    )
    precision = config.loss.precision
    keys = jax.lax.stop_gradient(scores(keys, teachers, precision))
    f = scores(f, student, precision)
    for_teacher["scores"], centre = keys, teacher["centre"]
  assert method.loss is not None
  loss = method.loss(
    methods.LossInputs(config.loss, f, keys, labels, learnt, centre, mesh)
  )
  loss = config.loss.weight * loss
  loss += penalty(config, _pairs(config, seen["z"]))
  values = {"loss": loss}
  if config.loss.learn_temperature:
    values["temperature"] = learnt
  return loss, values, for_teacher


def _pairs(config: ConfigDict, z: jax.Array) -> jax.Array:
  """Features after the transform, the views of an image side by side: [N, 2, D]."""
  return nonneg.apply(z, config.loss.transform).reshape(-1, 2, z.shape[-1])


def scores(f: jax.Array, prototypes: jax.Array, precision: str) -> jax.Array:
  """Cosines of features [N, 2, D] with prototypes [K, D]: [N, 2, K]."""
  f, prototypes = l2_normalize(f), l2_normalize(prototypes)
  flat = f.reshape(-1, f.shape[-1])
  return product(flat, prototypes.T, precision).reshape(*f.shape[:2], -1)


def penalty(config: ConfigDict, z: jax.Array) -> jax.Array | float:
  """`l1 mean_n |f_n|_1` of unit rows f of z [N, V, D]: a sparsity penalty.

  The mean is between 1 and sqrt(D). 0 where `loss.l1` is 0.
  """
  if not config.loss.l1:
    return 0.0
  f = numerics.l2_normalize(z)
  return config.loss.l1 * jnp.abs(f).sum(-1).mean()


def init(config: ConfigDict) -> dict[str, Any]:
  """What the loss learns: the logarithm of 1/T, where asked for, and prototypes.

  Returns:
    {"loss": {"log_scale": []}} with `loss.learn_temperature`, {"prototypes": [K, D]}
    with prototypes, to join the parameters; else {}.
  """
  learnt: dict[str, Any] = {}
  if config.loss.learn_temperature:
    learnt["loss"] = {"log_scale": -jnp.log(jnp.float32(config.loss.temperature))}
  if methods.of(config).prototypes:
    shape = (config.loss.prototypes, config_lib.widths(config)["z"])
    # A key of its own: the network's are drawn from the seed's key itself.
    key = jax.random.fold_in(numerics.key(config.seed), 1)
    learnt["prototypes"] = jax.random.uniform(key, shape, minval=-1.0)
  return learnt


def temperature(config: ConfigDict, params: Any) -> Any:
  """The temperature: the setting, or the learnt value."""
  if not config.loss.learn_temperature:
    return config.loss.temperature
  return jnp.exp(-params["loss"]["log_scale"])
