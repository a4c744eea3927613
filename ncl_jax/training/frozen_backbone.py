"""CL or NCL of the projector alone, on a frozen backbone, in minutes.

The backbone computes features of a few random views of each training image; the
projector is trained on them. The result is a work directory like any other.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import (
  checks,
  interop,
  losses,
  methods,
  metrics,
  models,
  nonneg,
  numerics,
  optimizers,
)
from ncl_jax import config as config_lib
from ncl_jax import features as features_lib
from ncl_jax.checks import divergence
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.host import paths
from ncl_jax.numerics import l2_normalize
from ncl_jax.runtime import checkpoint, jsonl, tensors
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import restore
from ncl_jax.training import state as state_lib
from ncl_jax.training import workdir as workdir_lib

LEARNING_RATE = 1e-3  # AdamW's, for a projector on features of any network
MAX_BYTES = 2**33  # of the features of all views
# Fields that it sets itself.
OWN = (
  "train.epochs",
  "optimizer.name",
  "optimizer.learning_rate",
  "optimizer.warmup_epochs",
)
# Fields that it would ignore, so that another value is refused.
NOT_TAKEN = (
  "model.projector_batch_norm",
  "loss.learn_temperature",
  "loss.l1",
  "loss.weight",
  "train.init_from",
)


def train_projector(
  config: ConfigDict,
  backbone: str | pathlib.Path,
  workdir: str | pathlib.Path,
  *,
  views: int = 4,
  epochs: int = 100,
  source: Source | None = None,
) -> pathlib.Path:
  """Trains a projector on the features of a backbone that was trained elsewhere.

  The two views of an image that an epoch compares are drawn from those that the
  backbone has seen. Nothing of the backbone changes, BatchNorm's statistics included.
  Of the config's optimiser AdamW's weight decay is used, and nothing else.

  Args:
    config: of CL or NCL; its backbone must be the one given.
    backbone: file of a PyTorch network, see `interop.backbone_from_torch`, or the work
      directory of a run.
    workdir: new directory for the result.
    views: random views of each image that pass the backbone, at least 2 and even.

  Raises:
    InputError: for settings that cannot work, before anything is computed.
    FloatingPointError: if the loss, the gradient or a parameter stops being finite,
      naming the step; nothing is saved.
  """
  checks.whole("epochs", epochs, 1)
  if views < 2 or views % 2:
    raise InputError(f"views = {views}: it must be an even number, at least 2")
  config = _adapted(config, epochs)
  source = source or workdir_lib.load_source(config)
  if source.split("train").partners is not None:
    raise InputError(
      f"{source.name} pairs each image with another: here the pairs are views of one"
    )
  config, path, mesh = workdir_lib.prepare(config, workdir, source)
  given = _read(backbone, mesh)
  is_resnet = "layer1_0" in given["params"]["backbone"]
  if is_resnet and config.model.backbone not in models.VITS:
    restore.check_fit(given, config, source, str(backbone))
  expected = _backbone_of(state_lib.shapes(config, source))
  tensors.check_fit(given, expected, f"the backbone in {backbone}")
  need = 4 * source.num_examples("train") * views * config_lib.widths(config)["h"]
  if need > MAX_BYTES:
    raise InputError(
      f"the features of {views} views take {need / 2**30:.1f} GiB, allowed are "
      f"{MAX_BYTES / 2**30:.0f}: fewer --views, or --config.data.train_examples"
    )
  with (
    workdir_lib.hold(path, config, source),
    checkpoint.Checkpoints(path, config.train.keep_checkpoints) as checkpoints,
  ):
    if checkpoints.latest_step() is not None:
      raise InputError(f"{path} has a checkpoint already: choose another --workdir")
    model = state_lib.untrained(config, source, mesh)
    given = jax.tree.map(lambda s, a: jnp.asarray(a, s.dtype), expected, given)
    given = jax.device_put(given, sharding_lib.replicated(mesh))
    params = {**model["params"], **given["params"]}
    model = {"params": params, "batch_stats": given["batch_stats"]}
    network = state_lib.network(config, mesh)
    # Not of the config's own seed, whose views SEPIN looks at.
    h = np.stack(
      [
        view.h
        for seed in range(config.seed + 1, config.seed + 1 + views // 2)
        for view in features_lib.extract_two_views(
          model, source, "train", network, seed=seed
        )
      ],
      axis=1,
    )
    params["projector"] = _fit(h, params["projector"], config, mesh, path)
    last = source.steps_per_epoch(config.train.batch_size) * epochs
    checkpoints.save(last, model=model, train={"step": jnp.int32(last)})
  logging.info("a projector on %s is step %d of %s", backbone, last, path)
  return path


def _adapted(config: ConfigDict, epochs: int) -> ConfigDict:
  """The config with this training's own settings; refuses what it would ignore."""
  if not methods.of(config).projector_alone:
    allowed = ", ".join(m.name for m in methods.METHODS if m.projector_alone)
    raise InputError(f"loss.name is {config.loss.name}: allowed is {allowed}")
  config, usual = config.copy_and_resolve_references(), config_lib.defaults()
  for key in NOT_TAKEN:
    if (value := config_lib.get(config, key)) != config_lib.get(usual, key):
      raise InputError(f"{key} is {value}: a projector alone does not take it")
  config.train.epochs = epochs
  config.optimizer.update(
    name="adamw", learning_rate=LEARNING_RATE, warmup_epochs=0.1 * epochs
  )
  config_lib.validate(config)
  return config


def _read(backbone: str | pathlib.Path, mesh: Mesh) -> Any:
  """{"params": {"backbone"}, "batch_stats"} from a file or a work directory."""
  path = paths.absolute(backbone)
  if path.is_dir():
    return _backbone_of(
      checkpoint.load_model(path, None, sharding_lib.replicated(mesh))[0]
    )
  try:
    return interop.backbone_from_torch(interop.read(path))
  except InputError as error:
    raise InputError(f"{backbone}: {error}") from error


def _backbone_of(model: Any) -> Any:
  """The backbone's part of a network's variables."""
  return {
    kind: {name: tree for name, tree in model[kind].items() if name == "backbone"}
    for kind in ("params", "batch_stats")
  }


def _fit(
  h: np.ndarray, params: Any, config: ConfigDict, mesh: Mesh, path: pathlib.Path
) -> Any:
  """The projector after training; writes a line of metrics.jsonl an epoch."""
  n = len(h)
  size = min(config.train.batch_size, n)
  steps, epochs = n // size, config.train.epochs
  projector = config_lib.model(config).projector
  optimizer = optimizers.adamw(
    optimizers.warmup_cosine(
      config.optimizer.learning_rate,
      warmup_steps=round(config.optimizer.warmup_epochs * steps),
      total_steps=epochs * steps,
    ),
    weight_decay=config.optimizer.weight_decay,
  )
  run_epoch = _make_epoch(config, projector, optimizer, steps, size)
  h = jax.device_put(h, sharding_lib.replicated(mesh))
  params = jax.device_put(params, sharding_lib.replicated(mesh))
  state = (params, jax.jit(optimizer.init)(params))
  if jax.process_index() == 0:
    jsonl.truncate(path / "metrics.jsonl", 0)  # of an attempt that was killed
  log = jsonl.Log(path / "metrics.jsonl")
  progress = jsonl.Progress(epochs * steps, 0, size)
  for epoch in range(1, epochs + 1):
    key = jax.random.fold_in(numerics.key(config.seed), epoch)
    state, values = run_epoch(state, h, key, config.loss.temperature)
    divergence.check(np.asarray(values.pop("fault")), epoch * steps)
    values = {name: float(value) for name, value in values.items()}
    if jax.process_index() == 0:
      log.append({"step": epoch * steps, "epoch": float(epoch)} | values)
    progress.update(epoch * steps, f"loss {values['loss']:.4f}")
  progress.close()
  log.flush()
  return state[0]


def _make_epoch(config, projector, optimizer, steps, size):
  """All steps of an epoch, and its metrics: means, of features the last batch's.

  "fault" is `divergence.mark` of each step.
  """

  def loss_of(params, pairs, temperature):
    z = projector.apply({"params": params}, pairs.reshape(2 * size, -1))
    f = nonneg.apply(z.reshape(size, 2, -1), config.loss.transform)
    rows = losses.nt_xent(f, temperature=temperature, precision=config.loss.precision)
    return jnp.mean(rows), f

  def epoch(state, h, key, temperature):
    n, views = h.shape[:2]
    order, choice = jax.random.split(key)
    rows = jax.random.permutation(order, n)[: steps * size].reshape(steps, size)

    def step(state, at):
      params, memory = state
      rows, number = at
      # Two different views of each image.
      keys = jax.random.split(jax.random.fold_in(choice, number), size)
      picked = jax.vmap(lambda k: jax.random.permutation(k, views)[:2])(keys)
      pairs = h[rows[:, None], picked]
      (loss, f), gradient = jax.value_and_grad(loss_of, has_aux=True)(
        params, pairs, temperature
      )
      updates, memory = optimizer.update(gradient, memory, params)
      params = optax.apply_updates(params, updates)
      fault = divergence.mark(loss, gradient, params)
      return (params, memory), (loss, f[:, 0], fault)

    state, (loss, f, fault) = jax.lax.scan(step, state, (rows, jnp.arange(steps)))
    last, threshold = l2_normalize(f[-1]), config.eval.threshold
    return state, {
      "loss": jnp.mean(loss),
      "fault": fault,
      "sparsity": metrics.sparsity(last, threshold),
      "active_dimensions": jnp.sum(metrics.active_dimensions(last, threshold)),
      "zero_rows": metrics.num_zero_rows(last),
    }

  return jax.jit(epoch)
