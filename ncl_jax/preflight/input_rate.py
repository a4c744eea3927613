"""How many images a second this host decodes, against what an accelerator takes."""

import math
import time
from typing import NamedTuple

import jax
from ml_collections import ConfigDict

from ncl_jax import checks
from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.host import resources
from ncl_jax.runtime import sharding, timing
from ncl_jax.training import cost, input_pipeline, workdir

# Share of an accelerator's peak that a ResNet's training reaches at the most, in the
# best public programs: the need is not underestimated.
SHARE = 0.25


class Rate(NamedTuple):
  """What was measured."""

  images: int
  seconds: float  # of wall time
  cpu_seconds: float  # of all threads


def measure(config: ConfigDict, source: Source, batches: int) -> Rate:
  """Draws training batches as `train` does, the first one untimed, and no network."""
  checks.whole("batches", batches, 1)
  size = config_lib.resolve(config, source).train.batch_size
  stream = source.train_batches(config.seed, 0, size)
  next(stream)
  # What the background had ready is not to count: as many batches are begun as end.
  began, cpu = time.perf_counter(), time.process_time()
  for _ in range(batches):
    next(stream)
  seconds, spent = time.perf_counter() - began, time.process_time() - cpu
  stream.close()
  return Rate(batches * size, seconds, spent)


def need(config: ConfigDict, source: Source, accelerator: str) -> float:
  """Images a second that one of `timing.PEAKS` takes at `SHARE` of it: a bound."""
  checks.choice("accelerator", accelerator, tuple(sorted(timing.PEAKS)))
  flops = cost.image_flops(config_lib.resolve(config, source), source)
  return SHARE * timing.PEAKS[accelerator] * 1e12 / flops


def run(config: ConfigDict, batches: int, accelerator: str) -> str:
  """Measures, and compares with what an accelerator needs."""
  config_lib.validate(config)
  source = workdir.load_source(config)
  needed, rate = need(config, source, accelerator), measure(config, source, batches)
  per_second, per_core = rate.images / rate.seconds, rate.images / rate.cpu_seconds
  sent = per_second * math.prod(source.image_shape) / 2**20
  lines = [
    f"{source.name}, {'x'.join(map(str, source.image_shape))}: {rate.images:,} images "
    f"in {rate.seconds:.1f} s",
    f"{per_second:,.0f} images/s on {resources.cores()} cores, {per_core:,.0f} a "
    f"second of a core's time; {sent:,.1f} MiB/s to the devices; peak memory "
    f"{resources.peak_memory() / 2**20:,.0f} MiB",
    f"one {accelerator} takes up to {needed:,.0f} images/s of this network, at "
    f"{SHARE:.0%} of its peak: {needed / per_core:.1f} cores like these",
  ]
  mesh = sharding.make_mesh(jax.devices()[:1])
  resolved = config_lib.resolve(config, source)
  if input_pipeline.layout(resolved, source, mesh).on_device:
    lines.append("these data lie on the devices whole: training needs none of this")
  return "\n".join(lines)
