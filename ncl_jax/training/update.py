"""One update of a train state from given views: loss, gradients, optimiser.

CL and NCL are the same program: the loss sees features after the transform, which is
"identity" for CL. The same holds for every other method.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import methods, nonneg
from ncl_jax.checks import divergence
from ncl_jax.training import classifier, ema, grad_cache
from ncl_jax.training import loss as loss_lib


def make_update(
  config: ConfigDict,
  num_classes: int,
  optimizer: optax.GradientTransformation,
  make_views: Callable[[Any], jax.Array] = lambda views: views,
  mesh: Mesh | None = None,
  steps_per_epoch: int = 1,
):
  """One update from given views: loss, gradients, optimiser, statistics.

  With `train.grad_cache_chunks` = k > 1 the network sees the batch in k chunks, for
  less memory; the loss is still that of the whole batch, see `grad_cache.in_chunks`.
  BatchNorm's statistics are then each chunk's, so k changes the result.

  Args:
    num_classes: K; 0 without labels.
    make_views: from what `update` gets for views, or a chunk of it, to the views.
    steps_per_epoch: updates in an epoch, for the momentum encoder's schedule.

  Returns:
    `update(state, views, labels) -> (state, metrics, z)` with views [N, V, h, w, C] (or
    what `make_views` takes: a tree of arrays [N, ...]; with a text tower among them
    "tokens" [N, L]) and labels [N], for a classifier also class probabilities [N, K].
    Metrics are scalars; "fault" among them is `divergence.mark` of the step. z
    [N, V, D] is what the loss saw, after the transform: with two towers the image's
    and the text's; with a predictor, its input. A pure function of global arrays.
  """
  total = config.train.epochs * steps_per_epoch
  loss_fn = _make_loss(config, num_classes, make_views, mesh)

  def update(state, views, labels):
    gradients, (batch_stats, for_teacher, z, values) = jax.grad(loss_fn, has_aux=True)(
      state.params, state, views, labels
    )
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    values["gradient_norm"] = optax.tree.norm(gradients)
    params = optax.apply_updates(state.params, updates)
    momentum = ema.move(config, state.momentum, params, for_teacher, state.step, total)
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


def _make_loss(config, num_classes, make_views, mesh):
  """The function that is differentiated, of the parameters and a batch."""
  forward = grad_cache.in_chunks(
    _make_forward(config, make_views), config.train.grad_cache_chunks
  )

  def loss_fn(params, state, views, labels):
    teacher = state.momentum or {}
    seen, (batch_stats, teacher_stats) = forward(
      (params, teacher.get("params")),
      (state.batch_stats, teacher.get("batch_stats")),
      views,
    )
    if methods.of(config).classifier:
      loss, values = _classify(config, params, seen["z"], labels, num_classes)
      for_teacher: dict[str, Any] = {}
    else:
      loss, values, for_teacher = loss_lib.of_pairs(
        config, params, teacher, seen, labels, mesh
      )
      if num_classes:
        probe, more = _probe(params, seen["h"], labels)
        loss, values = loss + probe, values | more
    for_teacher["batch_stats"] = teacher_stats
    z = nonneg.apply(seen["z"], config.loss.transform)
    z = z.reshape(labels.shape[0], -1, z.shape[-1])
    return loss, (batch_stats, for_teacher, z, values)

  return loss_fn


def _make_forward(config, make_views):
  """Views to the outputs of the network, its predictor and its momentum encoder."""
  model, predictor = config_lib.model(config), config_lib.predictor(config)
  count = config_lib.views(config)
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
    (params, teacher), (stats, teacher_stats) = params, moving
    texts = {"tokens": views["tokens"]} if methods.of(config).captions else {}
    views = make_views(views)
    rows = views.reshape(views.shape[0] * count, *views.shape[2:])
    own = {name: tree for name, tree in stats.items() if name != "predictor"}
    (h, z), moved = run(model, params, own, rows, **texts)
    # Detached: the probe watches the features and never shapes them.
    seen = {"h": jax.lax.stop_gradient(h), "z": z}
    if predictor is not None:
      seen["predicted"], following = run(
        predictor, params["predictor"], stats["predictor"], z
      )
      moved = {**moved, "predictor": following}
    if teacher is not None:
      (_, keys), teacher_stats = run(
        model, jax.lax.stop_gradient(teacher), teacher_stats, rows
      )
      seen["keys"] = jax.lax.stop_gradient(keys)
    return seen, (moved, teacher_stats)

  return forward


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
  """The classifier's loss; labels [N] or probabilities [N, K]."""
  if labels.ndim == 1:
    labels = jax.nn.one_hot(labels, num_classes)
  loss, values = classifier.loss(config, params["classifier"], z, labels)
  return loss, {"loss": loss} | values
