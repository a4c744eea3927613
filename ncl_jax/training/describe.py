"""Logs a run: what is trained, at its start; how fast it was, at its end."""

import pathlib
from typing import Any

import jax
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax import methods, optimizers
from ncl_jax.data.source import Source
from ncl_jax.runtime import accelerator, jsonl, timing
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import cost
from ncl_jax.training.state import shapes


def speed(
  config: ConfigDict,
  source: Source,
  path: pathlib.Path,
  timer: timing.Timer,
  steps: tuple[int, int],
) -> None:
  """Adds a row to speed.jsonl and logs it.

  Args:
    timer: whose open lap is that of the steps.
    steps: done before this start, and after its first call.
  """
  row = timing.report(
    timer,
    steps=steps[1],
    seconds=timer.running(),
    images=config.train.batch_size,
    flops_per_image=cost.image_flops(config, source),
  )
  if jax.process_index() == 0:
    jsonl.append(path / "speed.jsonl", {"from_step": steps[0]} | row)
    logging.info("%s", timing.sentence(row))


def parameters(params: Any, optimizer: str) -> None:
  """Logs how many parameters there are, and which of them decay."""
  decays = jax.tree.leaves(optimizers.decay_mask(params))
  logging.info(
    "%s parameters in %d tensors; %d of them, biases and BatchNorm, without %s",
    f"{sum(p.size for p in jax.tree.leaves(params)):,}",
    len(decays),
    decays.count(False),
    "weight decay and LARS's scaling" if optimizer == "lars" else "weight decay",
  )


def run(config: ConfigDict, source: Source, mesh: Mesh, total: int) -> None:
  """Logs method, data, steps, devices and negatives."""
  method = methods.of(config)
  logging.info(
    "%s on %s: %d training %s, %s; transform %s, %s %g",
    config.method.upper(),
    source.name,
    source.num_examples("train"),
    source.form,
    source.classes,
    config.loss.transform,
    "logit scale" if method.classifier else "temperature",
    config.loss.logit_scale if method.classifier else config.loss.temperature,
  )
  unlabelled = int((source.split("train").labels < 0).sum())
  if source.num_classes and unlabelled:
    logging.info(
      "%d training images have no label: left out of labelled losses and metrics",
      unlabelled,
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
  slices = sharding_lib.slices(mesh)
  # A mean and a variance for each layer.
  if slices > 1 and (statistics := shapes(config, source)["batch_stats"]):
    layers = len(jax.tree.leaves(statistics)) // 2
    logging.warning(
      "%d TPU slices: the statistics of %d BatchNorm layers cover all of them, so a "
      "step waits at least %d times for the network between the slices. ncl plan "
      "--slices counts what is sent. Use one slice, or a backbone without BatchNorm, "
      "as --config.model.backbone=vit_small",
      *(slices, layers, 2 * layers),
    )
  logging.info("loss %s: %s", method.name, config_lib.negatives(config))
  for sentence in config_lib.texts_cut(config, source):
    logging.warning("%s: %s", source.name, sentence)
  if config.train.grad_cache_chunks > 1:
    logging.info(
      "each batch in %d chunks, batch statistics by chunk, the loss of the whole batch",
      config.train.grad_cache_chunks,
    )
  if not source.num_classes:
    logging.info("no labels: the online probe and class consistency are left out")
