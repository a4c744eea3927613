"""What a comparison would take: runs, time and disk, before anything is trained."""

import pathlib
import shutil
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from ncl_jax import config as config_lib
from ncl_jax.data.source import Source
from ncl_jax.evaluators import finetune, linear_probe, registry
from ncl_jax.experiments import compare
from ncl_jax.host import paths
from ncl_jax.preflight import dry_run
from ncl_jax.runtime import checkpoint
from ncl_jax.training import cost
from ncl_jax.training import workdir as workdir_lib


def describe(
  config: ConfigDict,
  workdir: str | pathlib.Path,
  recipe: ConfigDict | None = None,
  *,
  seeds: int,
  **asked: Any,
) -> str:
  """The plan of NCL's first run, and what the whole comparison adds to it, as text.

  Args:
    config: as for `compare.compare`.
    recipe: what `config` was before settings were changed on the command line.
    **asked: evaluators, controls and control_evaluators, as for `compare.compare`.

  Raises:
    InputError: for all that would stop `compare.compare` before it trains.
  """
  # Streamed: a plan decodes no images into a cache.
  streamed = workdir_lib.streamed(config)
  source, evaluators, made, trained = compare.settle(streamed, **asked)
  root = paths.absolute(workdir)
  folders = {
    (method, seed): root / f"seed{seed}" / method
    for seed in range(config.seed, config.seed + seeds)
    for method in ("cl", "ncl", *trained)
  }
  run = dry_run.describe(config, folders["ncl", config.seed], recipe, source)
  resolved = config_lib.resolve(config, source)
  forward = cost.image_flops(resolved, source) / (3 * config_lib.views(resolved))
  per_epoch = source.steps_per_epoch(resolved.train.batch_size)
  last = per_epoch * resolved.train.epochs
  left = sum(last - max(checkpoint.steps(f), default=0) for f in folders.values())
  training = left * cost.step_flops(resolved, source)
  # Controls that only look at another's features cost little.
  untrained = seeds * sum(key.startswith("untrained") for key in made)
  measuring = forward * (
    len(folders) * _images(source, evaluators)
    + untrained * _images(source, asked.get("control_evaluators") or evaluators)
  )
  kept = resolved.train.keep_checkpoints
  disk = len(folders) * (kept + 1) * dry_run.state_bytes(resolved, source)
  return "\n".join(
    [
      run,
      "",
      f"Compare   {len(folders)} runs and {len(made)} controls a seed, in {root};\n"
      f"          evaluated by {', '.join(evaluators)}",
      f"Time      on two CPU cores about {_time(resolved, training)} to train and "
      f"{_time(resolved, measuring)} to evaluate;\n          on a data-centre GPU "
      f"{cost.duration(training / cost.GPU_FLOPS)} and "
      f"{cost.duration(measuring / cost.GPU_FLOPS)} (estimated)",
      *_disk(root, disk),
    ]
  )


def _time(config: ConfigDict, work: float) -> str:
  return cost.duration(cost.cpu_seconds(config, work))


def _images(source: Source, evaluators: Sequence[str]) -> float:
  """Forward passes that the evaluators make of one image each, for one network."""
  train = source.num_examples("train")
  total = float(train + source.num_examples("test"))
  for name in evaluators:
    found = registry.registered()[name]
    if found.file == "finetune":
      share = found.options.get("label_fraction", 1.0)
      total += 3 * finetune.EPOCHS * share * train  # the backward pass counts twice
    elif found.trains:
      total += linear_probe.SGD_EPOCHS * train
  return total


def _disk(root: pathlib.Path, needed: int) -> list[str]:
  if paths.in_bucket(root):
    return [f"Disk      {dry_run.mib(needed)} of checkpoints"]
  place = next(folder for folder in (root, *root.parents) if folder.exists())
  free = shutil.disk_usage(place).free
  lines = [f"Disk      {dry_run.mib(needed)} of checkpoints; {dry_run.mib(free)} free"]
  if needed > free:
    lines.append(
      "          NOT ENOUGH: choose another --workdir, or lower "
      "--config.train.keep_checkpoints"
    )
  return lines
