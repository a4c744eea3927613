"""Describes a run before it begins. Nothing is compiled, nothing is written."""

import math
import pathlib

import jax
import numpy as np
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax.data import decoded_cache
from ncl_jax.data.source import Source
from ncl_jax.host import paths, resources
from ncl_jax.runtime import checkpoint
from ncl_jax.training import cost, ema, input_pipeline
from ncl_jax.training import optimizer as optimizer_lib
from ncl_jax.training import state as state_lib
from ncl_jax.training import workdir as workdir_lib

# Of each split; spread over it.
IMAGES_READ = 16


# Temporaries over what the forward pass saves, both in float32, on a CPU: 6,359 MiB for
# a batch of 128 of the CIFAR recipe (docs/performance.md) are 2,840 saved.
_TEMPORARIES = 2.3

# What imports, tracing and XLA's compiler take on a CPU and do not give back: 700 MiB
# for the digits' recipe, 820 for a ResNet-10 of width 4.
_COMPILER = 700 << 20


def describe(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  recipe: ConfigDict | None = None,
  source: Source | None = None,
) -> str:
  """The settings, data, network, memory and length of a run, as text.

  Some images of each split are read, so that a source that cannot be read is noticed.

  Args:
    config: as for `train.train`.
    workdir: where it would train; may be a run that would go on.
    recipe: what `config` was before settings were changed on the command line.

  Raises:
    InputError: for all that would stop `train.train`.
  """
  config_lib.validate(config)
  source = source or workdir_lib.load_source(workdir_lib.streamed(config))
  resolved, path, mesh = workdir_lib.prepare(config, workdir, source)
  on_device = input_pipeline.layout(resolved, source, mesh).on_device
  cost.check_memory(resolved, source)
  read = 0
  for split in source.splits:
    last = source.num_examples(split) - 1
    rows = np.unique(np.linspace(0, last, IMAGES_READ).astype(np.int64))
    read += len(source.split(split).images[rows])
  changed = [] if recipe is None else config_lib.differences(recipe, config)
  filled = config_lib.differences(config, resolved)
  lines = [
    "Settings",
    config_lib.to_json(resolved).rstrip(),  # long: what matters stands below it
    "Changed here",
    *(f"  {line}" for line in changed or ["nothing: the settings are the file's"]),
    "From the data",
    *(f"  {line}" for line in filled or ["nothing"]),
    *_data(source, read, on_device),
    *_decoded_once(config, source),
    *(f"          {sentence}" for sentence in config_lib.texts_cut(resolved, source)),
    *_length(resolved, source, path),
    *_network(resolved, source, mesh.size, on_device),
    "Nothing was trained, and nothing written.",
  ]
  return "\n".join(lines)


def _data(source: Source, read: int, on_device: bool) -> list[str]:
  sizes = ", ".join(f"{source.num_examples(s)} {s}" for s in source.splits)
  lines = [
    f"Data      {source.name}: {sizes} "
    f"{source.form}; {read} of them read without fault",
    f"          {'on the devices whole' if on_device else 'sent batch by batch'}; "
    + source.classes,
  ]
  if not source.num_classes:
    lines.append(
      "          without labels there are sparsity, active dimensions, correlation,"
      "\n          SEPIN and the explorer; purity, accuracy and retrieval need labels"
    )
  return lines


def _decoded_once(config: ConfigDict, source: Source) -> list[str]:
  given = config.data.decoded_cache
  if not given:
    return []
  folder = paths.local(given).absolute()
  needed, free = decoded_cache.check_space(
    folder, decoded_cache.entries(source, folder)
  )
  return [
    f"          decoded once, into {given}: {needed / 2**30:,.2f} GiB to write, "
    f"{free / 2**30:,.2f} GiB free"
  ]


def _length(config: ConfigDict, source: Source, path: pathlib.Path) -> list[str]:
  per_epoch = source.steps_per_epoch(config.train.batch_size)
  total = per_epoch * config.train.epochs
  done = max(checkpoint.steps(path), default=0)
  begins = f"goes on from step {done}" if done else "begins at step 0"
  return [
    f"Training  {config.method.upper()} on {jax.device_count()} "
    f"{jax.default_backend()} device(s): {total} steps of {config.train.batch_size} "
    f"images, {config.train.epochs} epochs of {per_epoch}; {begins} in {path}",
    f"          loss {config.loss.name}: {config_lib.negatives(config)}",
  ]


def _network(
  config: ConfigDict, source: Source, devices: int, on_device: bool
) -> list[str]:
  params = state_lib.shapes(config, source)["params"]
  sizes = {name: sum(x.size for x in jax.tree.leaves(params[name])) for name in params}
  state = cost.tree_bytes(params) + state_bytes(config, source)
  kept = cost.kept_bytes(config, source) / devices
  temporary = _TEMPORARIES * kept
  flops = cost.step_flops(config, source)
  per_epoch = source.steps_per_epoch(config.train.batch_size)
  work = flops * per_epoch * config.train.epochs
  cpu = cost.cpu_seconds(config, work)
  process = []
  if jax.default_backend() == "cpu":
    images = source.num_examples("train") * math.prod(source.image_shape) * on_device
    held = devices * (state + temporary + images)
    total = resources.memory() + _COMPILER + held
    process = [
      f"          this process, with its programs, data and compiler: {mib(total)} "
      "(estimated)"
    ]
  return [
    f"Network   {config.model.backbone}, {sum(sizes.values()):,} parameters: "
    + ", ".join(f"{name} {size:,}" for name, size in sizes.items()),
    f"Memory    a device: {mib(state)} for weights, gradients and optimizer, "
    f"{mib(kept)} saved for the\n          backward pass, and with temporaries up to "
    f"{mib(temporary)} (estimated)",
    *process,
    f"Work      {flops:.1e} operations a step, {work:.1e} in all: about "
    f"{cost.duration(cpu)} on two CPU\n          cores, "
    f"{cost.duration(work / cost.GPU_FLOPS)} on a data-centre GPU (estimated)",
    *cost.advice(config, cpu),
  ]


def state_bytes(config: ConfigDict, source: Source) -> int:
  """Bytes of a checkpoint: weights, statistics, optimizer state, momentum encoder."""
  variables = state_lib.shapes(config, source)
  optimizer, _ = optimizer_lib.make_optimizer(config, 1)
  parts = (
    variables,
    jax.eval_shape(optimizer.init, variables["params"]),
    jax.eval_shape(lambda v: ema.init(config, v), variables),
  )
  return sum(map(cost.tree_bytes, parts))


def mib(count: float) -> str:
  """A number of bytes for a reader."""
  return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else "under 1 MiB"
