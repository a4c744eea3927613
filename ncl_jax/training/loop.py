"""Pretraining: the loop around the compiled step, its checkpoints and its log."""

import dataclasses
import pathlib
from typing import Any

import jax
import optax
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import methods, numerics
from ncl_jax.data.source import Source
from ncl_jax.errors import Stopped
from ncl_jax.runtime import (
  checkpoint,
  compiler,
  distributed,
  jsonl,
  profiler,
  timing,
  watchdog,
)
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
from ncl_jax.training.save_times import SaveTimes
from ncl_jax.training.state import TrainState, make_init, seed_of
from ncl_jax.training.step import make_steps, steps_in_call


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
    distributed.StopRequests() as stop,
    workdir_lib.hold(path, config, source),
    checkpoint.Checkpoints(path, config.train.keep_checkpoints) as checkpoints,
    watchdog.Watchdog() as peers,
  ):
    run = _Run(config, path, source, mesh, layout)
    _train(run, checkpoints, stop, recording, peers)
  return path


@dataclasses.dataclass(frozen=True)
class _Run:
  """A run that is ready to start: resolved settings, absolute path, data, devices."""

  config: ConfigDict
  path: pathlib.Path
  source: Source
  mesh: Mesh
  layout: input_pipeline.Layout

  @property
  def per_epoch(self) -> int:
    return self.source.steps_per_epoch(self.config.train.batch_size)

  @property
  def total(self) -> int:
    return self.per_epoch * self.config.train.epochs


# How many runs this process has started.
_runs = 0


def _train(
  run: _Run,
  checkpoints: checkpoint.Checkpoints,
  stop: distributed.StopRequests,
  recording: profiler.Profile,
  peers: watchdog.Watchdog,
) -> None:
  global _runs
  # The process's own start belongs to its first run.
  timer = timing.Timer(0.0 if _runs else None)
  _runs += 1
  config, source, mesh = run.config, run.source, run.mesh
  describe.run(config, source, mesh, run.total)
  start = checkpoints.latest_step() or 0
  if start >= run.total:
    logging.info("%s is complete: step %d of %d", run.path, start, run.total)
    return
  for line in cost.cost_warning(config, source):
    logging.info("%s", line)
  optimizer, learning_rate = make_optimizer(config, run.per_epoch)
  seed = jax.device_put(seed_of(config), sharding_lib.replicated(mesh))
  state = _first_state(run, checkpoints, start, optimizer, seed)
  timer.lap("initialise")
  checkpoints.check_space("a checkpoint", state.items())
  describe.parameters(state.params, config.optimizer.name)
  if jax.process_index() == 0:
    jsonl.truncate(run.path / "metrics.jsonl", start)
  steps = make_steps(config, source, mesh, optimizer, learning_rate, run.layout)
  loop = _Loop(run, start, checkpoints, stop, timer, peers)
  try:
    loop.run(state, seed, steps, recording)
  except Stopped:
    loop.report_speed()
    raise
  else:
    loop.report_speed()
  finally:
    recording.close()
    loop.close()


def _first_state(
  run: _Run,
  checkpoints: checkpoint.Checkpoints,
  start: int,
  optimizer: optax.GradientTransformation,
  seed: jax.Array,
) -> TrainState:
  """The state after `start` steps, on the devices."""
  config, source, mesh = run.config, run.source, run.mesh
  if start:
    state = restore.restored(checkpoints, start, config, source, optimizer, mesh)
    logging.info("resuming at step %d of %d", start, run.total)
  else:
    state = make_init(config, source, optimizer, mesh)(seed)
    if config.train.init_from:
      state = restore.with_weights_of(config.train.init_from, config, state, mesh)
  return jax.block_until_ready(state)


class _Loop:
  """The steps of a run, from its first state on: an open resource, to be closed."""

  def __init__(
    self,
    run: _Run,
    start: int,
    checkpoints: checkpoint.Checkpoints,
    stop: distributed.StopRequests,
    timer: timing.Timer,
    peers: watchdog.Watchdog,
  ) -> None:
    config, per_epoch = run.config, run.per_epoch
    self._run, self._timer, self._peers = run, timer, peers
    self._checkpoints, self._stop = checkpoints, stop
    self._start = self._done = start
    self._first: int | None = None  # steps done after the first call
    self._save_every = config.train.checkpoint_every_epochs * per_epoch
    self._save_times = SaveTimes(config.train.checkpoint_every_minutes)
    self._test_every = config.eval.test_every_epochs * per_epoch
    self._progress = jsonl.Progress(run.total, start, config.train.batch_size)
    self._recorder = Recorder(
      run.path / "metrics.jsonl", self._progress, per_epoch, config
    )
    self._best = None
    if self._test_every and methods.of(config).classifier:
      self._best = heldout_accuracy.Best(run.path, config, start)
    self._feed = input_pipeline.open_feed(
      run.source, config, run.mesh, start, run.layout.on_device
    )

  def run(
    self, state: TrainState, seed: jax.Array, steps: Any, recording: profiler.Profile
  ) -> None:
    """Trains to the end, or until it is asked to stop.

    Args:
      state: after `start` steps; donated.
    """
    run, log_every = self._run, self._run.config.train.log_every_steps
    data = self._feed.at(self._done)
    traced = steps.trace(state, data, seed)
    self._timer.lap("trace")
    compiled = traced.lower().compile(compiler.cpu_effort(1, run.mesh))
    self._timer.lap("compile")
    while self._done < run.total:
      count = steps_in_call(
        self._done, run.layout.steps_per_call, run.per_epoch, log_every
      )
      recording.before(self._done, count)
      state, values, z, labels = compiled(state, data, seed)
      self._done += count
      recording.after(self._done, values)
      if self._first is None:
        jax.block_until_ready(values)
        self._first = self._done
        self._timer.lap("first call")
      last = self._feature_statistics(state, z, labels)
      last |= self._test(state, count, values)
      # The next batch is sent while the devices compute, and the values of the previous
      # call are fetched now: neither waits for the other.
      if self._done < run.total:
        data = self._feed.at(self._done)
      self._recorder.add(self._done, count, values, last)
      self._save(state)

  def report_speed(self) -> None:
    """Adds a row to speed.jsonl for this start of the run, however it ended."""
    run, steps = self._run, self._done - (self._first or self._start)
    describe.speed(run.config, run.source, run.path, self._timer, (self._start, steps))

  def close(self) -> None:
    """Ends background work."""
    self._feed.close()
    self._progress.close()
    self._recorder.close()
    if self._best:
      self._best.close()

  def _feature_statistics(
    self, state: TrainState, z: jax.Array, labels: jax.Array
  ) -> dict[str, Any]:
    """Statistics for the log, where this step is logged or ends an epoch."""
    threshold = self._run.config.eval.threshold
    found: dict[str, Any] = {}
    # Some are undefined for features that are all zero.
    with numerics.undefined_is_nan():
      if self._recorder.writes(self._done):
        found |= collapse.batch_statistics(
          z, labels, self._run.source.num_classes, threshold
        )
      if self._done % self._run.per_epoch == 0:
        found |= _epoch_summary(state.epoch, threshold)
        found["effective_rank"] = collapse.effective_rank(z)
    return found

  def _test(
    self, state: TrainState, count: int, values: dict[str, Any]
  ) -> dict[str, Any]:
    """A classifier's accuracy on the test split, where it is due."""
    run, done = self._run, self._done
    if not self._best or (done % self._test_every and done != run.total):
      return {}
    # Waited for: many programs at once on simulated devices can lock each other.
    jax.block_until_ready(state)
    self._recorder.check(done, count, values)
    with self._timer.paused("test"):
      model = state.items()["model"]
      found = heldout_accuracy.evaluate(run.config, model, run.source, run.mesh)
      self._best.offer(done, found["test_top1"], state.items())
    return found

  def _save(self, state: TrainState) -> None:
    """Saves where it is due, and stops if asked to."""
    done, total = self._done, self._run.total
    self._checkpoints.check()
    self._peers.beat()
    stopping = self._stop.at() and done < total
    at_epoch = done % self._save_every == 0 or done == total
    if stopping or at_epoch or self._save_times.due(state):
      self._recorder.flush()
      self._checkpoints.save(done, **state.items())
      self._save_times.saved()
    if stopping:
      self._checkpoints.wait()
      raise self._stop.stopped(done, total)


# Compiled as one program: without it each of its operations would be compiled.
_epoch_summary = jax.jit(collapse.summary, static_argnums=1)
