"""What a training would be, before it begins: nothing is compiled, nothing written."""

import math
import pathlib
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.runtime import checkpoint
from ncl_jax.training import cost, ema, input_pipeline
from ncl_jax.training import step as step_lib
from ncl_jax.training import workdir as workdir_lib

# Of each split; spread over it.
IMAGES_READ = 16


# Temporaries and what is kept over the latter alone, on a CPU: 6,359 MiB for a batch of
# 128 of the CIFAR recipe (README, "Batches that do not fit") are 2,840 kept.
_TEMPORARIES = 2.3


def describe(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  recipe: ConfigDict | None = None,
  source: Source | None = None,
) -> str:
  """The settings, data, network, memory and length of a training, as text.

  Some images of each split are read, so that a source that cannot be read is noticed.

  Args:
    config: as for `train.train`.
    workdir: where it would train; may be a run that would go on.
    recipe: what `config` was before settings were changed on the command line.
    source: the data, if they are loaded already.

  Raises:
    InputError: for all that would stop `train.train`.
  """
  config_lib.validate(config)
  source = source or workdir_lib.load_source(config)
  resolved, path, mesh = workdir_lib.prepare(config, workdir, source)
  resident = input_pipeline.is_resident(resolved, source, mesh)
  input_pipeline.steps_per_call(resolved, resident)
  read = sum(_read_some(source, split) for split in source.splits)
  changed = [] if recipe is None else config_lib.differences(recipe, config)
  filled = config_lib.differences(config, resolved)
  lines = [
    "Settings",
    config_lib.to_json(resolved).rstrip(),  # long: what matters stands below it
    *_listed("Changed here", changed, "nothing: the settings are the file's"),
    *_listed("From the data", filled, "nothing"),
    *_data(source, read, resident),
    *(f"          {sentence}" for sentence in config_lib.texts_cut(resolved, source)),
    *_length(resolved, source, path),
    *_network(resolved, source, mesh.size),
    "Nothing was trained, and nothing written.",
  ]
  return "\n".join(lines)


def _read_some(source: Source, split: str) -> int:
  count = source.num_examples(split)
  rows = np.unique(np.linspace(0, count - 1, min(count, IMAGES_READ)).astype(np.int64))
  return len(source.split(split).images[rows])


def _data(source: Source, read: int, resident: bool) -> list[str]:
  sizes = ", ".join(f"{source.num_examples(s)} {s}" for s in source.splits)
  lines = [
    f"Data      {source.name}: {sizes} "
    f"{source.form}; {read} of them read without fault",
    f"          {'on the devices whole' if resident else 'sent batch by batch'}; "
    + (f"{source.num_classes} classes" if source.num_classes else "no labels"),
  ]
  if not source.num_classes:
    lines.append(
      "          without labels there are sparsity, active dimensions, correlation,"
      "\n          SEPIN and the explorer; purity, accuracy and retrieval need labels"
    )
  return lines


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


def _network(config: ConfigDict, source: Source, devices: int) -> list[str]:
  variables = jax.eval_shape(lambda: step_lib.init_variables(config, source))
  parts = ", ".join(
    f"{name} {sum(math.prod(x.shape) for x in jax.tree.leaves(tree)):,}"
    for name, tree in variables["params"].items()
  )
  total = sum(math.prod(x.shape) for x in jax.tree.leaves(variables["params"]))
  optimizer, _ = step_lib.make_optimizer(config, 1)
  slots = _bytes(jax.eval_shape(optimizer.init, variables["params"]))
  state = 2 * _bytes(variables["params"]) + _bytes(variables["batch_stats"]) + slots
  # The slow copy of the methods that have one.
  state += _bytes(jax.eval_shape(lambda v: ema.init(config, v), variables))
  kept = _kept(config, source, variables) / devices
  flops = cost.step_flops(config, source, variables)
  per_epoch = source.steps_per_epoch(config.train.batch_size)
  work = flops * per_epoch * config.train.epochs
  cpu = cost.cpu_seconds(config, work)
  return [
    f"Network   {config.model.backbone}, {total:,} parameters: {parts}",
    f"Memory    a device: {_mib(state)} for weights, gradients and optimiser, "
    f"{_mib(kept)} kept for the\n          backward pass, and with temporaries up to "
    f"{_mib(_TEMPORARIES * kept)} (estimated)",
    f"Work      {flops:.1e} operations a step, {work:.1e} in all: about "
    f"{cost.duration(cpu)} on two CPU\n          cores, "
    f"{cost.duration(work / cost.GPU_FLOPS)} on a data-centre GPU (estimated)",
    *cost.advice(config, cpu),
  ]


def _kept(config: ConfigDict, source: Source, variables: Any) -> int:
  """Bytes of what the forward pass of a chunk of the batch leaves for the backward."""
  model = config_lib.model(config)
  views = config_lib.views(config)
  network = ("backbone", "projector", "text", "text_projector")
  params = {k: v for k, v in variables["params"].items() if k in network}
  chunk = config.train.batch_size // config.train.grad_cache_chunks

  def backward(params, batch_stats, images):
    def forward(params):
      return model.apply(
        {"params": params, "batch_stats": batch_stats},
        images,
        train=True,
        views=views,
        mutable=["batch_stats"],
      )

    return jax.vjp(forward, params, has_aux=True)[1]

  images = cost.images(config, source, views * chunk)
  left = jax.eval_shape(backward, params, variables["batch_stats"], images)
  return _bytes(left) - _bytes(params)


def _bytes(tree: Any) -> int:
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _mib(count: float) -> str:
  return f"{count / 2**20:,.0f} MiB" if count >= 2**20 else "under 1 MiB"


def _listed(title: str, lines: list[str], none: str) -> list[str]:
  return [title, *(f"  {line}" for line in lines or [none])]
