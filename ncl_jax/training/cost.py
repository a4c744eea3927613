"""Predicts what a run costs, and warns before a long one on a CPU."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import methods
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.host import npz
from ncl_jax.runtime import timing
from ncl_jax.training import state as state_lib

# Operations a second of two cores of a server on a ResNet-18 (docs/performance.md) and
# on a network narrower than `_NARROW`; of a GPU, a third of its best.
_CPU_FLOPS, _CPU_FLOPS_NARROW, GPU_FLOPS = 5e10, 1.6e10, 3e13
_NARROW = 32
_PIXEL_BYTES = 40_000  # saved for a pixel of a view; the CIFAR recipe has 11,000
_LONG = 3600.0  # seconds on a CPU; longer runs get a warning
_FEW_PIXELS = 3e8  # of all views of one kind; the digits' recipe has 1.3e7
_PHOTOGRAPH = 96  # from this side on, the first layers should shrink an image


def cost_warning(config: ConfigDict, source: Source) -> list[str]:
  """Sentences that warn of a CPU run that takes more than an hour."""
  steps = source.steps_per_epoch(config.train.batch_size) * config.train.epochs
  pixels = steps * config.train.batch_size * config.augment.size**2
  # Counting operations takes half a second, which short runs are spared.
  if jax.default_backend() != "cpu" or pixels < _FEW_PIXELS:
    return []
  cpu = cpu_seconds(config, step_flops(config, source) * steps)
  if cpu <= _LONG:
    return []
  lines = [f"about {duration(cpu)} on two CPU cores (estimated)", *advice(config, cpu)]
  return [" ".join(line.split()) for line in lines]


def cpu_seconds(config: ConfigDict, work: float) -> float:
  """Seconds that so many operations take on two CPU cores."""
  return work / (_CPU_FLOPS if config.model.width >= _NARROW else _CPU_FLOPS_NARROW)


def advice(config: ConfigDict, cpu_seconds: float) -> list[str]:
  """Ways to make a long run shorter, a line each."""
  lines = []
  on_cpu = jax.default_backend() == "cpu"
  is_resnet = config.model.backbone.startswith("resnet")
  if is_resnet and config.augment.size >= _PHOTOGRAPH and config.model.stem == "cifar":
    lines.append(
      "Advice    for images of this size --config.model.stem=imagenet: a sixteenth of "
      "the work\n          and memory"
    )
  if on_cpu and cpu_seconds > 86400:
    lines.append(
      "Advice    too long for a CPU: --config.data.image_size=32 "
      "--config.model.backbone=resnet10\n          --config.model.width=16 "
      "--config.model.dtype=float32 --config.train.epochs=100"
    )
  if on_cpu and cpu_seconds > _LONG and methods.of(config).projector_alone:
    lines.append(
      "Advice    or minutes: ncl train_projector trains the projector alone, on a "
      "pretrained\n          backbone's file; see docs/your_images.md"
    )
  return lines


def images(config: ConfigDict, source: Source, count: int) -> jax.ShapeDtypeStruct:
  """Shape of a batch of `count` views."""
  size = config.augment.size
  return jax.ShapeDtypeStruct((count, size, size, source.image_shape[-1]), jnp.float32)


def kept_bytes(config: ConfigDict, source: Source) -> int:
  """Bytes that the forward pass of a chunk of the batch saves for backward."""
  variables = state_lib.shapes(config, source)
  if jax.default_backend() == "cpu":
    # Its convolutions compute in float32, whatever the type.
    config = config.copy_and_resolve_references()
    with config.unlocked():
      config.model.dtype = "float32"
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

  batch = images(config, source, views * chunk)
  left = jax.eval_shape(backward, params, variables["batch_stats"], batch)
  return tree_bytes(left) - tree_bytes(params)


def check_memory(config: ConfigDict, source: Source) -> None:
  """Refuses a run on a CPU whose activations alone exceed the machine's memory.

  Raises:
    InputError: with what is needed and what there is.
  """
  chunk = config.train.batch_size // config.train.grad_cache_chunks
  views = config_lib.views(config) * chunk * config.augment.size**2
  there = npz.memory()
  # Tracing takes half a second, which runs are spared if a ResNet-50's would fit.
  if jax.default_backend() != "cpu" or not there or views * _PIXEL_BYTES < there:
    return
  needed = kept_bytes(config, source)
  if needed > there:
    raise InputError(
      f"a batch of {config.train.batch_size} images of {config.augment.size} pixels "
      f"leaves {needed / 2**30:,.1f} GiB for the backward pass, and this machine has "
      f"{there / 2**30:,.1f} GiB of memory; lower train.batch_size or augment.size, or "
      "raise train.grad_cache_chunks"
    )


def tree_bytes(tree: Any) -> int:
  """Bytes of the arrays of a tree."""
  return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def image_flops(config: ConfigDict, source: Source) -> int:
  """Operations for all views of an image: the backward pass counts twice."""
  views = images(config, source, config_lib.views(config))
  model = config_lib.model(config)
  return 3 * timing.flops(model.apply, state_lib.shapes(config, source), views)


def step_flops(config: ConfigDict, source: Source) -> int:
  """Operations of the network in a step."""
  return image_flops(config, source) * config.train.batch_size


def duration(seconds: float) -> str:
  """A length of time in words."""
  for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
    if seconds >= 1.5 * size:
      return f"{seconds / size:.0f} {unit}"
  return "a minute"
