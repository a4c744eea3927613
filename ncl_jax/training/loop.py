"""Pretraining: the loop around the compiled step, its checkpoints and its log."""

import contextlib
import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from absl import logging
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import methods, numerics
from ncl_jax.data.source import Source
from ncl_jax.runtime import checkpoint, compiler, distributed, jsonl, profiler, timing
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import (
  collapse,
  cost,
  describe,
  heldout_accuracy,
  input_pipeline,
  restore,
)
from ncl_jax.training import workdir as workdir_lib
from ncl_jax.training.metric_logger import Recorder
from ncl_jax.training.optimizer import make_optimizer
from ncl_jax.training.state import TrainState, make_init, seed_of
from ncl_jax.training.step import make_steps, steps_in_call

# Compiled as one program: without it each of its operations would be compiled.
_epoch_summary = jax.jit(collapse.summary, static_argnums=1)
# Numbers the runs of this process, whose own start belongs to the first.
_numbers = itertools.count()


def train(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  source: Source | None = None,
  *,
  profile: str = "",
) -> pathlib.Path:
  """Trains to the end, from the newest checkpoint if there is one.

  A run that is killed at any moment and started again ends in the same state, bit for
  bit, as one that was never killed.

  Args:
    config: settings; those that mean "from the data" are filled in.
    workdir: gets config.json, metrics.jsonl, speed.jsonl and checkpoints/.
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
  # Refuses settings here, where nothing is written yet.
  layout = input_pipeline.layout(config, source, mesh)
  cost.check_memory(config, source)
  recording = profiler.Profile(profile, path / "profile")
  with (
    contextlib.closing(recording),
    distributed.StopRequests() as stop,
    workdir_lib.hold(path, config, source),
    checkpoint.Checkpoints(path, config.train.keep_checkpoints) as checkpoints,
    distributed.hang_watch() as beat,
  ):
    _Run(config, path, source, mesh, layout, checkpoints, recording, stop, beat).train()
  return path


@dataclasses.dataclass
class _Run:
  """A run that is ready to start, with resolved settings and an absolute path."""

  config: ConfigDict
  path: pathlib.Path
  source: Source
  mesh: Mesh
  layout: input_pipeline.Layout
  checkpoints: checkpoint.Checkpoints
  recording: profiler.Profile
  stop: distributed.StopRequests
  beat: Callable[[], None]

  def __post_init__(self) -> None:
    self.timer = timing.Timer(0.0 if next(_numbers) else None)
    self.per_epoch = self.source.steps_per_epoch(self.config.train.batch_size)
    self.total = self.per_epoch * self.config.train.epochs
    self.start = self.done = self.checkpoints.latest_step() or 0
    self.saved_at = time.monotonic()
    self.best: heldout_accuracy.Best | None = None

  def train(self) -> None:
    """Trains to the end, or until it is asked to stop."""
    config, source, mesh = self.config, self.source, self.mesh
    describe.run(config, source, mesh, self.total)
    if self.start >= self.total:
      logging.info("%s is complete: step %d of %d", self.path, self.start, self.total)
      return
    for line in cost.cost_warning(config, source):
      logging.info("%s", line)
    optimizer, learning_rate = make_optimizer(config, self.per_epoch)
    seed = jax.device_put(seed_of(config), sharding_lib.replicated(mesh))
    state = self._first_state(optimizer, seed)
    self.timer.lap("initialise")
    self.checkpoints.check_space("a checkpoint", state.items())
    describe.parameters(state.params, config.optimizer.name)
    metrics = self.path / "metrics.jsonl"
    if jax.process_index() == 0:
      jsonl.truncate(metrics, self.start)
    steps = make_steps(config, source, mesh, optimizer, learning_rate, self.layout)
    with contextlib.ExitStack() as opened:

      def closing(resource: Any) -> Any:
        return opened.enter_context(contextlib.closing(resource))

      progress = closing(
        jsonl.Progress(self.total, self.start, config.train.batch_size)
      )
      self.recorder = closing(Recorder(metrics, progress, self.per_epoch, config))
      if config.eval.test_every_epochs and methods.of(config).classifier:
        self.best = closing(heldout_accuracy.Best(self.path, config, self.start))
      on_device = self.layout.on_device
      feed = closing(
        input_pipeline.open_feed(source, config, mesh, self.start, on_device)
      )
      timed = self._steps(state, seed, steps, feed)
      describe.speed(config, source, self.path, self.timer, (self.start, timed))
    if self.done < self.total:
      raise self.stop.stopped(self.done, self.total)

  def _first_state(
    self, optimizer: optax.GradientTransformation, seed: jax.Array
  ) -> TrainState:
    """The state after `start` steps, on the devices."""
    config, source, mesh = self.config, self.source, self.mesh
    if self.start:
      state = restore.restored(
        self.checkpoints, self.start, config, source, optimizer, mesh
      )
      logging.info("resuming at step %d of %d", self.start, self.total)
    else:
      state = make_init(config, source, optimizer, mesh)(seed)
      if config.train.init_from:
        state = restore.with_weights_of(config.train.init_from, config, state, mesh)
    return jax.block_until_ready(state)

  def _steps(self, state: TrainState, seed: jax.Array, steps: Any, feed: Any) -> int:
    """All steps; returns how many came after the first call. `state` is donated."""
    data = feed.at(self.done)
    traced = steps.trace(state, data, seed)
    self.timer.lap("trace")
    compiled = traced.lower().compile(compiler.cpu_effort(1, self.mesh))
    self.timer.lap("compile")
    first, stopping = 0, False
    while self.done < self.total and not stopping:
      count = steps_in_call(
        self.done,
        self.layout.steps_per_call,
        self.per_epoch,
        self.config.train.log_every_steps,
      )
      self.recording.before(self.done, count)
      state, values, z, labels = compiled(state, data, seed)
      self.done += count
      self.recording.after(self.done, values)
      if not first:
        jax.block_until_ready(values)
        first = self.done
        self.timer.lap("first call")
      last = self._feature_statistics(state, z, labels)
      last |= self._test(state, count, values)
      # The next batch is sent while the devices compute, and the values of the previous
      # call are fetched now: neither waits for the other.
      if self.done < self.total:
        data = feed.at(self.done)
      self.recorder.add(self.done, count, values, last)
      self.checkpoints.check()
      self.beat()
      stopping = self.stop.at()
      if stopping or self._save_is_due(state):
        self.recorder.flush()
        self.checkpoints.save(self.done, **state.items())
        self.saved_at = time.monotonic()
    return self.done - first

  def _feature_statistics(
    self, state: TrainState, z: jax.Array, labels: jax.Array
  ) -> dict[str, Any]:
    """Statistics for the log, where this step is logged or ends an epoch."""
    threshold = self.config.eval.threshold
    found: dict[str, Any] = {}
    # Some are undefined for features that are all zero.
    with numerics.undefined_is_nan():
      if self.recorder.writes(self.done):
        found |= collapse.batch_statistics(
          z, labels, self.source.num_classes, threshold
        )
      if self.done % self.per_epoch == 0:
        found |= _epoch_summary(state.epoch, threshold)
        found["effective_rank"] = collapse.effective_rank(z)
    return found

  def _test(
    self, state: TrainState, count: int, values: dict[str, Any]
  ) -> dict[str, Any]:
    """A classifier's accuracy on the test split, where it is due."""
    config, done = self.config, self.done
    every = config.eval.test_every_epochs * self.per_epoch
    if not self.best or (done % every and done != self.total):
      return {}
    # Waited for: many programs at once on simulated devices can lock each other.
    jax.block_until_ready(state)
    self.recorder.check(done, count, values)
    with self.timer.paused("test"):
      model = state.items()["model"]
      found = heldout_accuracy.evaluate(config, model, self.source, self.mesh)
      self.best.offer(done, found["test_top1"], state.items())
    return found

  def _save_is_due(self, state: TrainState) -> bool:
    """Whether to save: after some epochs, and at logged steps by the clock."""
    train, done = self.config.train, self.done
    every = train.checkpoint_every_epochs * self.per_epoch
    if done % every == 0 or done == self.total:
      return True
    if not train.checkpoint_every_minutes or not self.recorder.writes(done):
      return False
    minutes = np.float32((time.monotonic() - self.saved_at) / 60)
    if jax.process_count() > 1:
      # Programs of simulated devices can lock each other.
      jax.block_until_ready(state)
      minutes = multihost_utils.broadcast_one_to_all(minutes)
    return bool(minutes >= train.checkpoint_every_minutes)
