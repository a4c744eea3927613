"""One update of a train state from given views: loss, gradients, optimiser.

CL and NCL are the same program: the loss is `nt_xent(nonneg.apply(z, name))`, and the
transform "identity" is CL. So it is with every other method: its loss sees mapped
features.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import nonneg
from ncl_jax.checks import divergence
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import classifier, ema, grad_cache, pair_loss
from ncl_jax.training import loss as loss_lib


def make_update(
  config: ConfigDict,
  num_classes: int,
  optimizer: optax.GradientTransformation,
  learning_rate: optax.Schedule,
  make_views: Callable[[Any], jax.Array] = lambda views: views,
  mesh: Mesh | None = None,
  steps_per_epoch: int = 1,
):
  """One update from given views: loss, gradients, optimiser, statistics.

  With `train.grad_cache_chunks` = k > 1 the network sees the batch in k chunks, for
  less memory; the loss is the whole batch's all the same, see `accumulation.in_chunks`.
  BatchNorm's statistics are then each chunk's, so k changes the result.

  Args:
    config: resolved settings.
    num_classes: K; 0 without labels.
    optimizer: from `make_optimizer`.
    learning_rate: from `make_optimizer`, for the log.
    make_views: from what `update` gets for views, or a chunk of it, to the views.
    mesh: that the batch is split over; None for one device.
    steps_per_epoch: updates in an epoch, for the slow copy's schedule.

  Returns:
    `update(state, views, labels) -> (state, metrics, z)` with views [N, V, h, w, C] (or
    what `make_views` takes: a tree of arrays [N, ...]; with a text tower among them
    "tokens" [N, L]) and labels [N], for a classifier also their shares [N, K]. Metrics
    are scalars; "fault" among them is `divergence.mark` of the step. z [N, V, D] is
    what the loss saw, after the transform: of two towers the image's and the text's;
    where there is a predictor, what this one saw. A pure function of global arrays.
  """
  count = config_lib.views(config)
  total = config.train.epochs * steps_per_epoch
  forward = grad_cache.in_chunks(
    _forward(config, make_views, count, mesh), config.train.grad_cache_chunks
  )

  def mapped(z):
    return nonneg.apply(z, config.loss.transform)

  def loss_fn(params, state, views, labels):
    slow = state.momentum or {}
    seen, (batch_stats, slow_stats) = forward(
      (params, slow.get("params")), (state.batch_stats, slow.get("batch_stats")), views
    )
    if config.loss.name == "cross_entropy":
      loss, values = _classify(config, params, seen["z"], labels, num_classes)
      slow_seen = {}
    else:
      loss, values, slow_seen = _contrast(
        config, params, slow, seen, labels, mesh, mapped
      )
      if num_classes:
        probe, more = _probe(params, seen["h"], labels)
        loss, values = loss + probe, values | more
    slow_seen["batch_stats"] = slow_stats
    z = mapped(seen["z"])
    z = z.reshape(labels.shape[0], -1, z.shape[-1])
    return loss, (batch_stats, slow_seen, z, values)

  def update(state, views, labels):
    gradients, (batch_stats, slow_seen, z, values) = jax.grad(loss_fn, has_aux=True)(
      state.params, state, views, labels
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    values["learning_rate"] = learning_rate(state.step)
    values["gradient_norm"] = optax.tree.norm(gradients)
    params = optax.apply_updates(state.params, updates)
    momentum = ema.move(config, state.momentum, params, slow_seen, state.step, total)
    values["fault"] = divergence.mark(
      values["loss"], values["gradient_norm"], params, batch_stats, momentum
    )
    state = state.replace(
      step=state.step + 1,
      params=params,
      batch_stats=batch_stats,
      opt_state=opt_state,
      momentum=momentum,
    )
    return state, values, z

  return update


def _forward(config, make_views, count, mesh):
  """Views to the outputs of the network, its predictor and its slow copy."""
  on_cpu = sharding_lib.platform(mesh) == "cpu"
  model, predictor = config_lib.model(config, on_cpu), config_lib.predictor(config)
  bn_views = count if config.model.batch_norm == "per_view" else 1

  def run(network, params, batch_stats, rows, **texts):
    outputs, mutated = network.apply(
      {"params": params, "batch_stats": batch_stats},
      rows,
      train=True,
      views=bn_views,
      mutable=["batch_stats"],
      **texts,
    )
    return outputs, mutated.get("batch_stats", {})

  def forward(params, moving, views):
    (params, slow), (stats, slow_stats) = params, moving
    texts = {"tokens": views["tokens"]} if config.loss.name == "clip" else {}
    views = make_views(views)
    rows = views.reshape(views.shape[0] * count, *views.shape[2:])
    own = {name: tree for name, tree in stats.items() if name != "predictor"}
    (h, z), moved = run(model, params, own, rows, **texts)
    # Detached: the probe watches the features and never shapes them.
    seen = {"h": jax.lax.stop_gradient(h), "z": z}
    if predictor is not None:
      seen["foreseen"], following = run(
        predictor, params["predictor"], stats["predictor"], z
      )
      moved = {**moved, "predictor": following}
    if slow is not None:
      (_, keys), slow_stats = run(model, jax.lax.stop_gradient(slow), slow_stats, rows)
      seen["keys"] = jax.lax.stop_gradient(keys)
    return seen, (moved, slow_stats)

  return forward


def _contrast(config, params, slow, seen, labels, mesh, mapped):
  """The loss of pairs of views, and what the slow copy is to know of the batch."""

  def pairs(z):
    return mapped(z).reshape(-1, 2, z.shape[-1])

  f = pairs(seen.get("foreseen", seen["z"]))
  keys: Any = pairs(seen["keys"]) if "keys" in seen else None
  temperature = loss_lib.temperature(config, params)
  slow_seen = {}
  if config.loss.name == "dino":
    student, teacher = (mapped(p["prototypes"]) for p in (params, slow["params"]))
    loss, slow_seen["scores"] = pair_loss.prototype_loss(
      config, (f, student), (keys, teacher), slow["centre"], temperature
    )
  else:
    loss = pair_loss.pair_loss(config, f, keys, labels, temperature, mesh)
  loss = config.loss.weight * loss
  loss += loss_lib.penalty(config, pairs(seen["z"]))
  values = {"loss": loss}
  if config.loss.learn_temperature:
    values["temperature"] = temperature
  return loss, values, slow_seen


def _probe(params, h, labels):
  """The online probe's loss and accuracy; its gradient reaches the probe alone."""
  logits = h @ params["probe"]["kernel"] + params["probe"]["bias"][None]
  row_labels = jnp.repeat(labels, h.shape[0] // labels.shape[0])
  known = row_labels >= 0
  target = jnp.where(known, row_labels, 0)
  ce = optax.softmax_cross_entropy_with_integer_labels(logits, target)
  count = jnp.maximum(known.sum(), 1).astype(ce.dtype)
  loss = jnp.where(known, ce, 0).sum() / count
  hits = known & (logits.argmax(-1) == target)
  accuracy = hits.sum().astype(ce.dtype) / count
  return loss, {"probe_loss": loss, "probe_accuracy": accuracy}


def _classify(config, params, z, labels, num_classes):
  """The classifier's loss; labels [N] or their shares [N, K]."""
  if labels.ndim == 1:
    labels = jax.nn.one_hot(labels, num_classes)
  loss, values = classifier.loss(config, params["classifier"], z, labels)
  return loss, {"loss": loss} | values
