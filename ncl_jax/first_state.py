"""The state that a training goes on from: a checkpoint, or another run's network."""

import dataclasses

import jax
import optax
from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from ncl_jax import checkpoint, momentum
from ncl_jax import sharding as sharding_lib
from ncl_jax import workdir as workdir_lib
from ncl_jax.data.source import Source
from ncl_jax.step import TrainState, init_state


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
  """The network of another run under a fresh optimiser.

  Of a run with another loss: the backbone, and the projector where both have one.
  """
  whole = sharding_lib.replicated(mesh)
  new = state.items()["model"]
  if workdir_lib.read_config(workdir).loss.name == config.loss.name:
    model, step = checkpoint.load_model(workdir, new, whole)
    found = model
  else:
    stored, step = checkpoint.load_model(workdir, None, whole)
    both = new["params"].keys() & stored["params"].keys()
    names = [name for name in ("backbone", "projector") if name in both]

    def part(model):
      return {
        kind: {name: tree[name] for name in names if name in tree}
        for kind, tree in model.items()
      }

    found = part(stored)
    checkpoint.check_fit(
      found, part(new), f"the checkpoint of step {step} in {workdir}"
    )
    model = {kind: {**tree, **found.get(kind, {})} for kind, tree in new.items()}
    logging.info("another loss: %s taken, the rest is new", " and ".join(names))
  logging.info(
    "starts from the %d tensors, %d numbers, of step %d in %s",
    len(jax.tree.leaves(found)),
    sum(x.size for x in jax.tree.leaves(found)),
    step,
    workdir,
  )
  if state.momentum is not None:
    begin = jax.jit(lambda model: momentum.init(config, model), out_shardings=whole)
    state = dataclasses.replace(state, momentum=begin(model))
  return dataclasses.replace(state, **model)
