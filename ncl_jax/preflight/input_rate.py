"""How many images a second this host decodes, against what an accelerator takes."""

import dataclasses
import math
import time

import jax
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.host import resources
from ncl_jax.runtime import sharding, timing
from ncl_jax.training import cost, input_pipeline, workdir

# Share of an accelerator's peak that a ResNet's training reaches at the most, in the
# best public programs: the need is not underestimated.
SHARE = 0.25


@dataclasses.dataclass(frozen=True)
class Rate:
  """What was measured.

  Attributes:
    images: decoded, over
    seconds: of wall time, and
    cpu_seconds: of all threads.
    cores: that this process may use.
    on_device: whether training decodes nothing, see `input_pipeline.layout`.
    bytes_per_image: that go to the devices.
    peak_memory: bytes, of this process.
  """

  images: int
  seconds: float
  cpu_seconds: float
  cores: int
  on_device: bool
  bytes_per_image: int
  peak_memory: float

  @property
  def per_second(self) -> float:
    """Images a second."""
    return self.images / self.seconds

  @property
  def per_core(self) -> float:
    """Images a second of a core's time."""
    return self.images / self.cpu_seconds


def measure(config: ConfigDict, source: Source, batches: int) -> Rate:
  """Draws training batches as `train` does, with no network behind them.

  Args:
    batches: to time, after one that is not.
  """
  if batches < 1:
    raise InputError(f"batches is {batches}; allowed: 1 or more")
  config = config_lib.resolve(config, source)
  size = config.train.batch_size
  stream = source.train_batches(config.seed, 0, size)
  next(stream)
  # What the background had ready is not to count: as many batches are begun as end.
  began, cpu = time.perf_counter(), time.process_time()
  for _ in range(batches):
    next(stream)
  seconds, spent = time.perf_counter() - began, time.process_time() - cpu
  stream.close()
  return Rate(
    images=batches * size,
    seconds=seconds,
    cpu_seconds=spent,
    cores=resources.cores(),
    on_device=input_pipeline.layout(
      config, source, sharding.make_mesh(jax.devices()[:1])
    ).on_device,
    bytes_per_image=math.prod(source.image_shape),
    peak_memory=resources.peak_memory(),
  )


def need(config: ConfigDict, source: Source, accelerator: str) -> float:
  """Images a second that an accelerator takes at `SHARE` of its peak: an upper bound.

  Args:
    accelerator: a name of `speed.PEAKS`.
  """
  if accelerator not in timing.PEAKS:
    raise InputError(
      f"accelerator {accelerator!r}; allowed: {', '.join(sorted(timing.PEAKS))}"
    )
  config = config_lib.resolve(config, source)
  flops = cost.image_flops(config, source)
  return SHARE * timing.PEAKS[accelerator] * 1e12 / flops


def run(config: ConfigDict, batches: int, accelerator: str) -> str:
  """Measures and tells.

  Args:
    accelerator: whose need to compare with.
  """
  config_lib.validate(config)
  source = workdir.load_source(config)
  needed, rate = need(config, source, accelerator), measure(config, source, batches)
  lines = [
    f"{source.name}, {'x'.join(map(str, source.image_shape))}: {rate.images:,} images "
    f"in {rate.seconds:.1f} s",
    f"{rate.per_second:,.0f} images/s on {rate.cores} cores, {rate.per_core:,.0f} a "
    f"second of a core's time; {rate.bytes_per_image * rate.per_second / 2**20:,.1f} "
    f"MiB/s to the devices; peak memory {rate.peak_memory / 2**20:,.0f} MiB",
    f"one {accelerator} takes up to {needed:,.0f} images/s of this network, at "
    f"{SHARE:.0%} of its peak: {needed / rate.per_core:.1f} cores like these",
  ]
  if rate.on_device:
    lines.append("these data lie on the devices whole: training needs none of this")
  return "\n".join(lines)
