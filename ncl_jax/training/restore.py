"""The state that a run starts from: its checkpoint, or another run's network."""

import dataclasses
from typing import Any

import jax
import optax
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import interop, methods
from ncl_jax.data.source import Source
from ncl_jax.errors import InputError
from ncl_jax.runtime import checkpoint, tensors
from ncl_jax.runtime import sharding as sharding_lib
from ncl_jax.training import ema
from ncl_jax.training import workdir as workdir_lib
from ncl_jax.training.state import TrainState, init_state


def restored(
  checkpoints: checkpoint.Checkpoints,
  step: int,
  config: ConfigDict,
  source: Source,
  optimizer: optax.GradientTransformation,
  mesh: Mesh,
) -> TrainState:
  """The state after `step`, as it was saved, on every device."""
  whole = sharding_lib.replicated(mesh)
  shapes = jax.eval_shape(lambda: init_state(config, source, optimizer))
  targets = jax.tree.map(
    lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=whole), shapes
  )
  model, rest = checkpoints.restore(step, **targets.items())
  return TrainState(**model, **rest)


def with_weights_of(
  workdir: str, config: ConfigDict, state: TrainState, mesh: Mesh
) -> TrainState:
  """Returns the network of another run with a fresh optimiser.

  If the loss differs, takes the backbone, and the projector if both have one.
  """
  whole = sharding_lib.replicated(mesh)
  new = state.items()["model"]
  stored, step = checkpoint.load_model(workdir, None, whole)
  names = new["params"].keys() | stored["params"].keys()
  if methods.of(workdir_lib.read_config(workdir)) is not methods.of(config):
    both = new["params"].keys() & stored["params"].keys()
    names = {"backbone", "projector"} & both
    logging.info("the loss differs: %s loaded, the rest is new", sorted(names))

  def part(model: Any) -> Any:
    return {
      kind: {name: tree for name, tree in parts.items() if name in names}
      for kind, parts in model.items()
    }

  found = part(stored)
  tensors.check_fit(found, part(new), f"the checkpoint of step {step} in {workdir}")
  model: Any = {kind: {**parts, **found.get(kind, {})} for kind, parts in new.items()}
  logging.info(
    "starts from the %d tensors, %d numbers, of step %d in %s",
    len(jax.tree.leaves(found)),
    sum(x.size for x in jax.tree.leaves(found)),
    step,
    workdir,
  )
  if state.momentum is not None:
    begin = jax.jit(lambda model: ema.init(config, model), out_shardings=whole)
    state = dataclasses.replace(state, momentum=begin(model))
  return dataclasses.replace(state, **model)


def check_fit(variables: Any, config: ConfigDict, source: Source, file: str) -> None:
  """Raises unless a `ContrastiveModel` from `file` is the config's and takes the data.

  Raises:
    InputError: naming each difference, and how to take the other network.
  """
  found = interop.settings(variables)
  wrong = {key: value for key, value in found.items() if config.model[key] != value}
  faults = [
    f"model.{key}: {value} in the file, {config.model[key]} in the config"
    for key, value in wrong.items()
  ]
  channels = variables["params"]["backbone"]["conv1"]["kernel"].shape[2]
  if channels != source.image_shape[-1]:
    faults.append(
      f"channels: {channels} in the file, {source.image_shape[-1]} in {source.name}"
    )
  probe = variables["params"].get("probe")
  if probe is not None and len(probe["bias"]) != source.num_classes:
    faults.append(
      f"classes: {len(probe['bias'])} in the file, {source.num_classes} in "
      f"{source.name} (--noclassifier leaves the file's classifier out)"
    )
  if faults:
    hint = " ".join(f"--config.model.{key}={value}" for key, value in wrong.items())
    raise InputError(
      f"{file} does not fit: {'; '.join(faults)}"
      + (f". To take the file's network: {hint}" if hint else "")
    )
