"""Pretraining: the loop around the compiled step, its checkpoints and its log."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import numerics, optimizers
from ncl_jax.data.source import Source
from ncl_jax.errors import Stopped
from ncl_jax.runtime import (
  accelerator,
  checkpoint,
  distributed,
  jsonl,
  profiler,
  timing,
  watchdog,
)
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import collapse, cost, heldout_accuracy, input_pipeline, restore
from ncl_jax.training import workdir as workdir_lib
from ncl_jax.training.metric_logger import Recorder
from ncl_jax.training.save_times import SaveTimes
from ncl_jax.training.step import (
  batch_statistics,
  cpu_effort,
  init_variables,
  make_init,
  make_optimizer,
  make_steps,
  seed_of,
  steps_in_call,
)


def train(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  source: Source | None = None,
  *,
  profile: str = "",
) -> pathlib.Path:
  """Trains to the end, from the newest checkpoint if there is one.

  Killed at any moment and called again, it ends in the same state, bit for bit, as a
  run that was never killed.

  Args:
    config: settings; those that mean "from the data" are filled in.
    workdir: gets config.json, metrics.jsonl, speed.jsonl and checkpoints/.
    source: the data, if they are loaded already.
    profile: "FIRST:LAST", steps that are recorded in WORKDIR/profile; "": none.

  Returns:
    The absolute work directory.

  Raises:
    InputError: for settings that cannot work, before anything is compiled.
    FloatingPointError: at the first step after which the loss, the gradient, a
      parameter, a batch statistic or the momentum encoder is not finite, naming the
      step and what; the last good checkpoint is kept.
    SaveError: if a checkpoint cannot be written, naming its step; others are kept.
    Stopped: after one of `errors.SIGNALS`, with everything saved.
  """
  config_lib.validate(config)
  source = source or workdir_lib.load_source(config)
  config, path, mesh = workdir_lib.prepare(config, workdir, source)
  # Refused here, where nothing is written yet.
  input_pipeline.steps_per_call(
    config, input_pipeline.is_resident(config, source, mesh), mesh
  )
  cost.check_memory(config, source)
  recording = profiler.Profile(profile, path / "profile")
  with (
    distributed.StopRequests() as stop,
    workdir_lib.hold(path, config, source),
    checkpoint.Checkpoints(path, config.train.keep_checkpoints) as checkpoints,
    watchdog.Watchdog() as peers,
  ):
    _train(config, path, source, mesh, checkpoints, stop, recording, peers)
  return path


# How many runs this process has made.
_runs = 0


def _train(
  config: ConfigDict,
  path: pathlib.Path,
  source: Source,
  mesh: Mesh,
  checkpoints: checkpoint.Checkpoints,
  stop: distributed.StopRequests,
  recording: profiler.Profile,
  peers: watchdog.Watchdog,
) -> None:
  global _runs
  # Of a second run in this process, the start was the first one's.
  timer = timing.Timer(0.0 if _runs else None)
  _runs += 1
  batch_size = config.train.batch_size
  per_epoch = source.steps_per_epoch(batch_size)
  total = per_epoch * config.train.epochs
  resident = input_pipeline.is_resident(config, source, mesh)
  per_call = input_pipeline.steps_per_call(config, resident, mesh)
  _describe(config, source, mesh, total)
  optimizer, learning_rate = make_optimizer(config, per_epoch)
  start = checkpoints.latest_step() or 0
  if start >= total:
    logging.info("%s is complete: step %d of %d", path, start, total)
    return
  for line in cost.cost_warning(config, source):
    logging.info("%s", line)
  whole = sharding_lib.replicated(mesh)
  seed = jax.device_put(seed_of(config), whole)
  if start:
    state = restore.restored(checkpoints, start, config, source, optimizer, mesh)
    logging.info("going on from step %d of %d", start, total)
  else:
    state = make_init(config, source, optimizer, mesh)(seed)
    if config.train.init_from:
      state = restore.with_weights_of(config.train.init_from, config, state, mesh)
  jax.block_until_ready(state)
  timer.lap("initialise")
  checkpoints.check_space("a checkpoint", state.items())
  _describe_parameters(state.params, config.optimizer.name)
  metrics_file = path / "metrics.jsonl"
  if jax.process_index() == 0:
    jsonl.truncate(metrics_file, start)

  steps = make_steps(
    config,
    source,
    mesh,
    optimizer,
    learning_rate,
    resident=resident,
    per_call=per_call,
  )
  feed = input_pipeline.open_feed(source, config, mesh, start, resident)
  progress = jsonl.Progress(total, start, batch_size)
  recorder = Recorder(metrics_file, progress, per_epoch, config)
  save_every = config.train.checkpoint_every_epochs * per_epoch
  test_every = config.eval.test_every_epochs * per_epoch
  best = None
  if test_every and config.loss.name == "cross_entropy":
    best = heldout_accuracy.Best(path, config, start)
  save_times = SaveTimes(config.train.checkpoint_every_minutes)
  done, first = start, None
  try:
    data = feed.at(start)
    traced = steps.trace(state, data, seed)
    timer.lap("trace")
    compiled = traced.lower().compile(cpu_effort(1, mesh))
    timer.lap("compile")
    while done < total:
      count = steps_in_call(done, per_call, per_epoch, config.train.log_every_steps)
      recording.before(done, count)
      state, values, z, labels = compiled(state, data, seed)
      done += count
      recording.after(done, values)
      if first is None:
        jax.block_until_ready(values)
        first = done
        timer.lap("first call")
      last: dict[str, Any] = {}
      if recorder.writes(done):
        # Of features that are all zero some are undefined.
        with numerics.undefined_is_nan():
          last |= batch_statistics(z, labels, source.num_classes, config.eval.threshold)
      if done % per_epoch == 0:
        last |= _epoch_summary(state.epoch, config.eval.threshold)
      if best and (done % test_every == 0 or done == total):
        # Waited for: many programs at once on simulated devices can lock each other.
        jax.block_until_ready(state)
        recorder.check(done, count, values)
        with timer.paused("test"):
          model = state.items()["model"]
          last |= heldout_accuracy.evaluate(config, model, source, mesh)
          best.offer(done, last["test_top1"], state.items())
      # The next batch is on its way while the devices are at work, and the values of
      # the call before are fetched now: neither waits for the other.
      if done < total:
        data = feed.at(done)
      recorder.add(done, count, values, last)
      checkpoints.check()
      peers.beat()
      stopping = stop.at() and done < total
      at_epoch = done % save_every == 0 or done == total
      if stopping or at_epoch or save_times.due(state):
        recorder.flush()
        checkpoints.save(done, **state.items())
        save_times.saved()
      if stopping:
        checkpoints.wait()
        raise stop.stopped(done, total)
  except Stopped:
    _report_speed(path, config, source, timer, start, done - (first or start))
    raise
  else:
    _report_speed(path, config, source, timer, start, done - (first or start))
  finally:
    recording.close()
    feed.close()
    progress.close()
    if best:
      best.close()


def _report_speed(path, config, source, timer, start, steps):
  """Adds a row to speed.jsonl: this start of the run, however it ended."""
  size, channels = config.augment.size, source.image_shape[-1]
  model = config_lib.model(config)
  count = config_lib.views(config)
  views = jax.ShapeDtypeStruct((count, size, size, channels), jnp.float32)
  variables = jax.eval_shape(lambda: init_variables(config, source))
  row = timing.report(
    timer,
    steps=steps,
    seconds=timer.running(),
    images=config.train.batch_size,
    # The usual count: the backward pass is twice the forward pass.
    flops_per_image=3 * timing.flops(model.apply, variables, views),
  )
  if jax.process_index() == 0:
    jsonl.append(path / "speed.jsonl", {"from_step": start} | row)
    logging.info("%s", timing.sentence(row))


# A program of its own: its operations one by one would each be compiled.
_epoch_summary = jax.jit(collapse.summary, static_argnums=1)


def _describe_parameters(params: Any, optimizer: str) -> None:
  decays = jax.tree.leaves(optimizers.decay_mask(params))
  logging.info(
    "%s parameters in %d tensors; %d of them, biases and BatchNorm, without %s",
    f"{sum(p.size for p in jax.tree.leaves(params)):,}",
    len(decays),
    decays.count(False),
    "weight decay and LARS's scaling" if optimizer == "lars" else "weight decay",
  )


def _describe(config: ConfigDict, source: Source, mesh: Mesh, total: int) -> None:
  """One look at the log tells what runs."""
  logging.info(
    "%s on %s: %d training %s, %s; transform %s, %s %g",
    config.method.upper(),
    source.name,
    source.num_examples("train"),
    source.form,
    source.classes,
    config.loss.transform,
    "logits times" if config.loss.name == "cross_entropy" else "temperature",
    config.loss.logit_scale
    if config.loss.name == "cross_entropy"
    else config.loss.temperature,
  )
  unlabelled = int((source.split("train").labels < 0).sum())
  if source.num_classes and unlabelled:
    logging.info(
      "%d training images have no label: ignored where it counts", unlabelled
    )
  logging.info(
    "%d steps of %d images (%d epochs) on %d %s device(s), batch statistics %s",
    total,
    config.train.batch_size,
    config.train.epochs,
    mesh.size,
    jax.default_backend(),
    "per view, over all devices"
    if config.model.batch_norm == "per_view"
    else "over both views and all devices",
  )
  for sentence in accelerator.differences(
    config.model.dtype, sharding_lib.platform(mesh)
  ):
    logging.warning("%s", sentence)
  logging.info("loss %s: %s", config.loss.name, config_lib.negatives(config))
  for sentence in config_lib.texts_cut(config, source):
    logging.warning("%s: %s", source.name, sentence)
  if config.train.grad_cache_chunks > 1:
    logging.info(
      "each batch in %d chunks, batch statistics by chunk, the loss of the whole batch",
      config.train.grad_cache_chunks,
    )
  if not source.num_classes:
    logging.info("no labels: the online probe and class consistency are left out")
