"""One update of a train state from given views: loss, gradients, optimiser.

CL and NCL are the same program: the loss is `nt_xent(apply_map(z, name))`, and the map
"identity" is CL.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import accumulation, classifier, nonneg, objective
from ncl_jax import config as config_lib


def make_update(
  config: ConfigDict,
  num_classes: int,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  make_views: Callable[[Any], jax.Array] = lambda views: views,
  mesh: Mesh | None = None,
):
  """One update from given views: loss, gradients, optimiser, statistics.

  With `train.accumulate` = k > 1 the network sees the batch in k chunks, for less
  memory; the loss is the whole batch's all the same, see `accumulation.in_chunks`.
  BatchNorm's statistics are then each chunk's, so k changes the result.

  Args:
    config: resolved settings.
    num_classes: K; 0 without labels.
    optimizer: from `make_optimizer`.
    learning_rate: from `make_optimizer`, for the log.
    make_views: from what `update` gets for views, or a chunk of it, to the views.
    mesh: that the batch is split over; None for one device.

  Returns:
    `update(state, views, labels) -> (state, metrics, z)` with views [N, V, h, w, C] (or
    what `make_views` takes: a tree of arrays [N, ...]; with a text tower among them
    "tokens" [N, L]) and labels [N], for a classifier also their shares [N, K]; metrics
    are scalars, z [N, V, D] is what the loss saw, after the map: of two towers the
    image's and the text's. A pure function of global arrays.
  """
  model = config_lib.model(config)
  map_name = config.loss.map
  count = config_lib.views(config)
  bn_views = count if config.model.batch_norm == "per_view" else 1

  def forward(params, batch_stats, views):
    texts = {"tokens": views["tokens"]} if config.loss.name == "clip" else {}
    views = make_views(views)
    n = views.shape[0]
    (h, z), mutated = model.apply(
      {"params": params, "batch_stats": batch_stats},
      views.reshape(n * count, *views.shape[2:]),
      train=True,
      views=bn_views,
      mutable=["batch_stats"],
      **texts,
    )
    # Detached: the probe watches the features and never shapes them.
    h = jax.lax.stop_gradient(h)
    return (h, z), mutated["batch_stats"]

  forward = accumulation.in_chunks(forward, config.train.accumulate)

  def loss_fn(params, batch_stats, views, labels):
    (h, z), batch_stats = forward(params, batch_stats, views)
    if config.loss.name == "cross_entropy":
      loss, values = _classify(config, params, z, labels, num_classes)
    else:
      loss, values = _contrast(config, params, (h, z), labels, num_classes, mesh)
    z = nonneg.apply_map(z, map_name).reshape(labels.shape[0], -1, z.shape[-1])
    return loss, (batch_stats, z, values)

  def update(state, views, labels):
    gradients, (batch_stats, z, values) = jax.grad(loss_fn, has_aux=True)(
      state.params, state.batch_stats, views, labels
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    values["learning_rate"] = learning_rate(state.step)
    values["gradient_norm"] = optax.tree.norm(gradients)
    state = state.replace(
      step=state.step + 1,
      params=optax.apply_updates(state.params, updates),
      batch_stats=batch_stats,
      opt_state=opt_state,
    )
    return state, values, z

  return update


def _contrast(config, params, features, labels, num_classes, mesh):
  """The loss of pairs of views, and beside it the online probe's."""
  h, z = features
  z = nonneg.apply_map(z, config.loss.map).reshape(-1, 2, z.shape[-1])
  temperature = objective.temperature(config, params)
  if config.loss.name == "sup_con":
    sup_con = objective.sup_con(config.loss.precision)
    loss = sup_con(z, labels, temperature).mean()
  elif config.loss.name == "clip":
    loss = objective.clip(config.loss.precision)(z, temperature).mean()
  else:
    nt_xent = objective.nt_xent(mesh, config.loss.precision)
    loss = nt_xent(z, temperature).mean()
  loss += objective.penalty(config, z)
  values = {"loss": loss}
  if config.loss.learn_temperature:
    values["temperature"] = temperature
  if num_classes:
    logits = h @ params["probe"]["kernel"] + params["probe"]["bias"][None]
    row_labels = jnp.repeat(labels, h.shape[0] // labels.shape[0])
    known = row_labels >= 0
    target = jnp.where(known, row_labels, 0)
    ce = optax.softmax_cross_entropy_with_integer_labels(logits, target)
    count = jnp.maximum(known.sum(), 1)
    values["probe_loss"] = jnp.where(known, ce, 0).sum() / count
    hits = known & (logits.argmax(-1) == target)
    values["probe_accuracy"] = hits.sum() / count
    loss = loss + values["probe_loss"]
  return loss, values


def _classify(config, params, z, labels, num_classes):
  """The classifier's loss; labels [N] or their shares [N, K]."""
  if labels.ndim == 1:
    labels = jax.nn.one_hot(labels, num_classes)
  loss, values = classifier.loss(config, params["classifier"], z, labels)
  return loss, {"loss": loss} | values
